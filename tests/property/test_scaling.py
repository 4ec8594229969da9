"""Per-job scalers and the allotment, whatever the curve."""

from itertools import pairwise, product
from math import ceil, log

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytest import approx

from rota.policy.scaling import (
    Claim,
    FitScaler,
    LinearUtility,
    Observations,
    Observed,
    ProbeScaler,
    Throughput,
    ThroughputScaling,
    UtilityOverCost,
    allot,
    replay,
)

SERIAL = st.floats(0.01, 0.95)


def closed_form(a):
    return lambda k: 1 / (a + (1 - a) / k)


@given(SERIAL, st.floats(0.02, 0.6), st.integers(1, 40), st.integers(20, 60))
@settings(max_examples=20, deadline=None)
def test_both_scalers_end_where_throughput_stops_scaling(a, threshold, start, most):
    assume(start <= most)
    exact = ((1 - a) / threshold - 1) / a
    assume(abs(exact - round(exact)) > 1e-3)  # there, rounding decides
    expected = min(max(ceil(exact), 1), most)
    sizes, condition = tuple(range(1, most + 1)), ThroughputScaling(threshold)
    rate = closed_form(a)
    walk = replay(rate, ProbeScaler(sizes, condition), start=start, steps=1500)
    fit = replay(rate, FitScaler(sizes, condition), start=start, steps=1500)
    assert walk.sizes[-1] == fit.sizes[-1] == expected
    assert fit.resizes <= 4


@given(SERIAL, st.floats(0.001, 10.0), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_both_scalers_end_where_time_is_worth_no_more_than_it_costs(a, slope, start):
    sizes, price = tuple(range(1, 41)), 0.01  # value per second, price per worker and second
    bound = slope * (1 - a) / (price * a)
    exact = (-1 + (1 + 4 * bound) ** 0.5) / 2  # k (k + 1) = bound
    assume(abs(exact - round(exact)) > 1e-3)
    expected = min(max(ceil(exact), 1), 40)
    condition = UtilityOverCost(LinearUtility(slope * 1e4, 1e4), price * 3600)
    rate = closed_form(a)
    walk = replay(rate, ProbeScaler(sizes, condition), start=start, steps=1500)
    fit = replay(rate, FitScaler(sizes, condition), start=start, steps=1500)
    assert walk.sizes[-1] == fit.sizes[-1] == expected
    assert fit.resizes <= 4


RATES = st.lists(st.floats(0.5, 20.0), min_size=2, max_size=7)


@given(RATES, st.integers(0, 6))
@settings(max_examples=33, deadline=None)
def test_on_any_curve_it_never_ends_at_a_size_that_measured_worse(rates, at):
    sizes = tuple(1 << power for power in range(len(rates)))
    curve = dict(zip(sizes, rates, strict=True))
    start = sizes[min(at, len(sizes) - 1)]
    found = replay(curve.get, FitScaler(sizes), start=start, steps=600)
    asked = dict.fromkeys(sizes, 0.0)
    for old, new in pairwise(sizes):
        asked[new] = asked[old] + log(1 + 0.1 * (new - old) / old)
    worth = {size: log(curve[size]) - asked[size] for size in sizes}
    # 1 % of throughput is what a resize must gain, and how near a fit counts as exact.
    assert worth[found.sizes[-1]] >= max(worth[size] for size in found.sizes) - 0.03
    assert found.resizes <= 8


@given(RATES, st.integers(0, 6), st.integers(1, 200), st.booleans())
def test_every_choice_is_an_allowed_size_whatever_was_measured(rates, at, steps, settled):
    sizes = (1, 2, 3, 5, 8, 13, 21)
    measured = sizes[: len(rates)]
    job = Observations()
    here = measured[min(at, len(measured) - 1)]
    for size, rate in zip(measured, rates, strict=True):
        job.add(size, Throughput(steps, rate, rate * 0.01 * steps))
    job.add(here, Throughput(steps, rates[0], 0.0))
    memory = {"settled": here} if settled else None
    for scaler in (ProbeScaler(sizes), FitScaler(sizes)):
        choice = scaler.choose(Observed(job), memory)
        assert choice.size in sizes
        assert scaler.choose(Observed(Observations.from_dict(job.as_dict())), memory) == choice


@st.composite
def claims(draw):
    sizes = sorted(draw(st.sets(st.integers(0, 7), min_size=1, max_size=4)))
    values = draw(st.lists(st.integers(-5, 20), min_size=len(sizes), max_size=len(sizes)))
    return Claim(tuple(sizes), tuple(map(float, values)))


def best_sum(gpus, jobs):
    choices = product(*(zip(job.sizes, job.values, strict=True) for job in jobs))
    return max(
        sum(value for _, value in chosen)
        for chosen in choices
        if sum(size for size, _ in chosen) <= gpus
    )


def total(jobs, sizes):
    return sum(job.values[job.sizes.index(size)] for job, size in zip(jobs, sizes, strict=True))


@given(st.lists(claims(), min_size=1, max_size=4), st.integers(0, 20))
@settings(max_examples=100)
def test_the_allotment_is_the_best_there_is(jobs, spare):
    gpus = sum(job.sizes[0] for job in jobs) + spare
    sizes = allot(gpus, jobs)
    assert sum(sizes) <= gpus
    assert total(jobs, sizes) == approx(best_sum(gpus, jobs))


@given(st.lists(claims(), min_size=1, max_size=4), st.integers(0, 20))
@settings(max_examples=100)
def test_without_effort_it_is_short_by_less_than_the_largest_step(jobs, spare):
    gpus = sum(job.sizes[0] for job in jobs) + spare
    sizes = allot(gpus, jobs, effort=0)
    largest = max(max(job.values) - min(job.values) for job in jobs)
    assert sum(sizes) <= gpus
    assert total(jobs, sizes) >= best_sum(gpus, jobs) - largest - 1e-9


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4))
def test_on_concave_claims_greedy_alone_is_the_best(gains):
    jobs = []
    for each in gains:
        values = [0.0]
        for gain in sorted(each, reverse=True):
            values.append(values[-1] + gain)
        jobs.append(Claim(tuple(range(len(values))), tuple(values)))
    for gpus in range(12):
        assert total(jobs, allot(gpus, jobs, effort=0)) == approx(best_sum(gpus, jobs))
