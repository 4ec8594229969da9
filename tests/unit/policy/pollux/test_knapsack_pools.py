"""One choice for each item, from one of several pools: most value within their capacities."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.policy.pollux.knapsack import solve
from rota.policy.pollux.knapsack_pools import solve_pools

WEIGHTS, POOLS = [0, 1, 2, 1, 3], [0, 0, 0, 1, 1]
offer = st.one_of(st.just(-inf), st.integers(-3, 9).map(float))
items = st.lists(st.tuples(st.integers(-2, 2).map(float), offer, offer, offer, offer), max_size=4)


def taken(choices, weights=WEIGHTS, pools=POOLS, number=2):
    sums = [0] * number
    for choice in choices:
        sums[pools[choice]] += weights[choice]
    return sums


def best_of_all(values, capacities):
    return max(
        sum(offers[choice] for offers, choice in zip(values, choices, strict=True))
        for choices in product(range(len(WEIGHTS)), repeat=len(values))
        if all(s <= c for s, c in zip(taken(choices), capacities, strict=True))
    )


@settings(deadline=None)  # the first call loads SciPy
@given(items, st.tuples(st.integers(0, 5), st.integers(0, 6)))
def test_no_other_choices_within_the_capacities_are_worth_more(values, capacities):
    table = np.array(values).reshape(-1, len(WEIGHTS))
    found = solve_pools(table, WEIGHTS, POOLS, capacities)
    assert all(s <= c for s, c in zip(taken(found.choices), capacities, strict=True))
    assert found.value == pytest.approx(best_of_all(values, capacities))
    assert found.bound >= found.value


def random_values(number, weights, pools, power):
    rng = np.random.default_rng(7)
    faster = np.exp(rng.normal(0.7, 0.5, (number, 1)))
    gains = np.array(weights) ** rng.uniform(0.3, 1.0, (number, 1))
    gains *= np.where(np.array(pools) == 1, faster, 1.0)
    values = ((gains + 1e-3) ** power - 1e-3**power) / power
    return values * rng.uniform(0.2, 1.0, (number, 1))


@pytest.mark.parametrize("power", [-1.0, 0.5])
def test_the_bound_certifies_what_was_found_for_sixty_jobs_on_two_types(power):
    sizes = [1, 2, *range(4, 33, 4)]
    weights, pools = [0, *sizes, *sizes], [0] * (1 + len(sizes)) + [1] * len(sizes)
    values = random_values(60, weights, pools, power)
    found = solve_pools(values, weights, pools, [32, 32])
    assert max(taken(found.choices, weights, pools)) <= 32
    assert found.bound - found.value <= 2e-3 * found.bound


@pytest.mark.parametrize("capacity", [0, 13, 40])
def test_with_one_pool_it_finds_what_the_knapsack_of_one_finds(capacity):
    weights = [0, 1, 2, 4, 8, 12]
    values = random_values(20, weights, [0] * 6, 0.5)
    one = solve(values, weights, capacity)
    assert solve_pools(values, weights, [0] * 6, [capacity]).value == pytest.approx(one.value)


def test_where_there_is_too_much_to_search_the_bound_tells_how_far_off_it_may_be(monkeypatch):
    monkeypatch.setattr("rota.policy.pollux.knapsack.MOST_CELLS", 0)
    sizes = [1, 2, *range(4, 33, 4)]
    weights, pools = [0, *sizes, *sizes], [0] * (1 + len(sizes)) + [1] * len(sizes)
    values = random_values(60, weights, pools, 0.5)
    found = solve_pools(values, weights, pools, [32, 32])
    assert max(taken(found.choices, weights, pools)) <= 32
    assert 0 <= found.bound - found.value <= 0.05 * found.bound


def test_an_item_that_has_no_choice_takes_nothing():
    values = np.array([[0.0, -inf, -inf, -inf, -inf], [0.0, 5.0, 6.0, 7.0, 8.0]])
    assert solve_pools(values, WEIGHTS, POOLS, [0, 1]).choices == [0, 3]


def test_nothing_is_to_be_shared_among_nobody():
    assert solve_pools(np.zeros((0, 5)), WEIGHTS, POOLS, [4, 4]).choices == []
