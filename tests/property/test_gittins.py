"""The Gittins index, whatever the sample, against the definition evaluated size by size."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from rota.policy.registry import create
from rota.predict.gittins import Gittins
from rota.testing.builders import run
from support.strategies import traces

# Multiples of 1/1024 add up without rounding.
EXACT = st.integers(1, 10**10).map(lambda n: n / 1024)
SIZES = st.lists(st.one_of(st.integers(1, 30), EXACT), min_size=1, max_size=40)
ATTAINED = st.one_of(st.integers(0, 31), EXACT)
GRANT = st.one_of(st.integers(1, 31), EXACT, st.just(inf))


def by_definition(sizes, attained, grant):
    """P(S - a <= delta | S > a) / E[min(S - a, delta) | S > a]."""
    longer = [size for size in sizes if size > attained]
    if not longer:
        return 0.0
    ends = sum(size <= attained + grant for size in longer)
    return ends / sum(min(size - attained, grant) for size in longer)


@given(SIZES, ATTAINED, GRANT)
def test_the_index_is_that_of_the_definition(sizes, attained, grant):
    ours = Gittins(sizes).index(attained, grant)
    assert ours == approx(by_definition(sizes, attained, grant), rel=1e-12)


@given(traces())
def test_with_one_queue_the_index_changes_nothing(jobs):
    one = {"thresholds": ""}
    plain, _ = run(jobs, create("tiresias", one), "1x8")
    ranked, _ = run(jobs, create("tiresias-gittins", one | {"distribution": "30,60,600"}), "1x8")
    assert ranked.finish_s == plain.finish_s
