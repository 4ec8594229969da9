"""FitScaler: the same final sizes as the published search, in a handful of resizes."""

import json
from math import ceil, log

import pytest

from rota.errors import InputError
from rota.policy.scaling import (
    DeadlineUtility,
    FitScaler,
    LinearUtility,
    Observed,
    ProbeScaler,
    Resizing,
    ThroughputScaling,
    UtilityOverCost,
    allowed_sizes,
    replay,
)

ANY = tuple(range(4, 61))
# Samples/s of a curve that falls when a second node is entered, and of one with a sharp peak.
DIP = {1: 1.0, 2: 1.9, 4: 3.6, 8: 2.9, 16: 5.2, 32: 6.0, 64: 6.1}
PEAK = {1: 1.0, 2: 2.0, 4: 4.0, 8: 7.5, 16: 11.4, 32: 8.0, 64: 4.4}


def worth(rate, sizes, threshold=0.1):
    found, asked = {}, 0.0
    for before, size in zip((sizes[0], *sizes), sizes, strict=False):
        asked += log(1 + threshold * (size - before) / before)
        found[size] = log(rate(size)) - asked
    return found


@pytest.mark.parametrize(
    ("a", "threshold", "start"),
    [
        (0.15518, 0.1, 4),
        (0.155, 0.1, 4),
        (0.3, 0.1, 4),
        (0.3, 0.2, 30),
        (0.25, 0.1, 60),
        (0.48, 0.1, 16),
        (0.4737, 0.1, 16),
        (0.08, 0.3, 10),
        (0.9, 0.1, 8),
        (0.01, 0.1, 4),
    ],
)
def test_it_ends_where_the_closed_form_says_in_four_resizes(closed_form, a, threshold, start):
    expected = min(max(ceil(((1 - a) / threshold - 1) / a), 4), 60)
    condition = ThroughputScaling(threshold)
    found = replay(closed_form(a), FitScaler(ANY, condition), start=start, steps=2000)
    assert found.sizes[-1] == expected
    assert found.resizes <= 4
    walk = replay(closed_form(a), ProbeScaler(ANY, condition), start=start, steps=2000)
    assert found.resizes <= walk.resizes


@pytest.mark.parametrize("a", [0.02, 0.05, 0.1, 0.3])
def test_it_ends_where_the_closed_form_of_utility_says(closed_form, a):
    bound = 1 / 8 * (1 - a) / a / (1 / 100)
    expected = max(4, next(k for k in range(1, 100) if k * (k + 1) >= bound))
    condition = UtilityOverCost(LinearUtility(1000, 8000), 36)
    found = replay(closed_form(a), FitScaler(ANY, condition), start=4, steps=2000)
    assert found.sizes[-1] == expected
    assert found.resizes <= 4


@pytest.mark.parametrize(("a", "threshold", "expected"), [(0.5, 0.1, 8), (0.25, 0.25, 8)])
def test_a_step_that_scales_exactly_as_asked_is_not_taken(closed_form, a, threshold, expected):
    assert (1 - a) / (1 + a * expected) == threshold
    scaler = FitScaler(tuple(range(1, 33)), ThroughputScaling(threshold))
    assert replay(closed_form(a), scaler, start=1, steps=1000).sizes[-1] == expected


def test_the_cost_of_each_further_worker_is_seen_at_the_third_size(closed_form):
    rate = closed_form(0.05, c=0.004)
    best = max(ANY, key=worth(rate, ANY).get)
    found = replay(rate, FitScaler(ANY), start=4, steps=2000)
    assert found.sizes[-1] == best
    assert found.resizes <= 4


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("a", [0.15518, 0.3, 0.05, 0.9])
def test_noise_costs_neither_resizes_nor_worth(closed_form, a, noise):
    worths = worth(closed_form(a), ANY)
    for seed in range(3):
        found = replay(closed_form(a), FitScaler(ANY), start=4, steps=1500, noise=noise, seed=seed)
        assert found.resizes <= 4
        assert max(worths.values()) - worths[found.sizes[-1]] < 0.01


def test_once_settled_noise_moves_nothing(closed_form):
    found = replay(closed_form(0.3), FitScaler(ANY), start=4, steps=20_000, noise=0.1, seed=3)
    assert found.resizes <= 4


@pytest.mark.parametrize("rates", [DIP, PEAK], ids=["dip", "peak"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("start", [1, 8, 64])
def test_on_a_curve_of_another_shape_it_ends_no_worse_than_the_walk(rates, noise, start):
    sizes = allowed_sizes("pow2", 1, 64)
    worths = worth(rates.get, sizes)
    walk = replay(rates.get, ProbeScaler(sizes), start=start, steps=3000, noise=noise)
    found = replay(rates.get, FitScaler(sizes), start=start, steps=3000, noise=noise)
    assert worths[found.sizes[-1]] >= worths[walk.sizes[-1]] - 0.05
    assert found.resizes <= 8


def test_a_third_worker_that_cannot_help_is_given_back():
    rates = {1: 1.0, 2: 1.9, 3: 1.9, 4: 1.85}
    for sizes in ((1, 2), (1, 2, 3, 4), (1, 2, 4)):
        found = replay(rates.get, FitScaler(sizes), start=1, steps=500, noise=0.03)
        assert found.sizes[-1] == 2
        assert found.resizes <= 4


def test_one_size_is_never_left(closed_form):
    assert replay(closed_form(0.1), FitScaler((8,)), start=8, steps=300).sizes == (8,)


def test_a_job_outside_the_allowed_sizes_comes_back(closed_form, measured):
    scaler = FitScaler((4, 8))
    job = Observed(measured(closed_form(0.1), [4, 8, 6]))
    assert scaler.choose(job, {"settled": 6}).size == 8


def test_a_job_that_is_nearly_done_is_left_alone(closed_form, measured):
    job = Observed(measured(closed_form(0.1), [4]), 0.0, remaining_samples=100.0)
    pause_s = 0.2 * 100.0 / closed_form(0.1)(4)
    for share in (1.0, 0.1, 0.05):
        assert FitScaler(ANY, pause_s=share * pause_s).choose(job).size == (4 if share > 0.1 else 8)
    done = job._replace(remaining_samples=0.0)
    assert FitScaler(ANY).choose(done).size == ProbeScaler(ANY).choose(done).size == 4
    assert FitScaler(ANY).choose(job).size == 8


def test_a_gain_smaller_than_the_pause_is_not_taken(closed_form, measured):
    rate = closed_form(0.15518)
    gain = worth(rate, ANY)[48] - worth(rate, ANY)[30]
    left = 10_000.0
    job = Observed(measured(rate, [4, 8, 30]), 0.0, left)
    moves = FitScaler(ANY, pause_s=0.9 * gain * left / rate(48), least_gain=0.0)
    stays = FitScaler(ANY, pause_s=1.1 * gain * left / rate(48), least_gain=0.0)
    assert moves.choose(job, {"settled": 30}).size == 48
    assert stays.choose(job, {"settled": 30}).size == 30


def test_a_gain_within_the_noise_is_not_taken(measured):
    rates = {4: 4.0, 5: 4.9}
    noisy = measured(rates.get, [5, 4], deviation=0.4)
    sure = measured(rates.get, [5, 4], deviation=0.05)
    scaler = FitScaler((4, 5), most_steps=10)
    assert scaler.choose(Observed(noisy), {"settled": 4}).size == 4
    assert scaler.choose(Observed(sure), {"settled": 4}).size == 5


def test_more_steps_are_taken_where_throughput_varies(closed_form, measured):
    known = [4, 8, 32]
    quiet = measured(closed_form(0.1), known, steps=10, deviation=0.01)
    noisy = measured(closed_form(0.1), known, steps=10, deviation=0.05)
    enough = measured(closed_form(0.1), known, steps=100, deviation=0.05)
    sizes = [FitScaler(ANY).choose(Observed(job)).size for job in (quiet, noisy, enough)]
    assert sizes[1] == 32
    assert sizes[0] > 50
    assert sizes[2] > 50


def test_a_size_that_is_surely_worse_is_left_at_once(measured):
    rates = {4: 4.0, 8: 7.0, 32: 2.0}
    job = measured(rates.get, rates, steps=10, deviation=0.1)
    assert FitScaler(ANY).choose(Observed(job)).size < 32


def test_a_deadline_is_met_with_as_few_workers_as_do(closed_form):
    rate, steps = closed_form(0.05), 3000
    condition = UtilityOverCost(DeadlineUtility(100, 600), 1.0)
    scaler = FitScaler(tuple(range(1, 65)), condition, pause_s=1.0)
    found = replay(rate, scaler, start=1, steps=steps, resizing=Resizing(1.0))
    assert found.jct_s <= 602
    least = next(k for k in range(1, 65) if steps / rate(k) <= 600)
    assert found.sizes[-1] <= least + 1


def test_the_memory_is_json_and_all_there_is(closed_form, measured):
    job = Observed(measured(closed_form(0.3), [4, 8, 20]), 10.0, 5000.0)
    scaler = FitScaler(ANY)
    first = scaler.choose(job)
    memory = json.loads(json.dumps(first.memory, allow_nan=False))
    assert memory["settled"] == first.size == 20
    assert FitScaler(ANY).choose(job, memory) == scaler.choose(job, first.memory)
    unknown = scaler.choose(job._replace(remaining_samples=float("inf")))
    assert json.dumps(unknown.memory, allow_nan=False) == '{"settled": 20}'


@pytest.mark.parametrize(
    "wrong",
    [
        {"pause_s": -1},
        {"confidence": 1.0},
        {"precision": "high"},
        {"min_steps": 1},
        {"min_steps": 200},
        {"least_gain": -0.1},
        {"max_resizes": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        FitScaler(ANY, **wrong)
