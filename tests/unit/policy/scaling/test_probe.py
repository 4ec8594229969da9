"""The published search, rule by rule, and the walks it is known to take."""

import json
from math import ceil

import pytest

from rota.errors import InputError
from rota.policy.scaling import (
    LinearUtility,
    Observations,
    Observed,
    ProbeScaler,
    StepUtility,
    Throughput,
    ThroughputScaling,
    UtilityOverCost,
    replay,
    sizes_every,
)

ANY = tuple(range(4, 61))


def observed(rates, *, at, steps=10, counts=None):
    job = Observations()
    for size in [size for size in rates if size != at] + [at]:
        job.add(size, Throughput((counts or {}).get(size, 100), rates[size], 0.0))
    job.steps = steps
    return Observed(job, 100.0, 1000.0)


@pytest.mark.parametrize(
    ("rates", "at", "target"),
    [
        # One observation: up, at the top down.
        ({8: 8.0}, 8, 12),
        ({60: 8.0}, 60, 56),
        # All pass: on from the largest, wherever it stands.
        ({8: 8.0, 12: 11.0}, 12, 16),
        ({8: 8.0, 12: 11.0, 16: 14.0}, 8, 20),
        # A failure within the first three: down from the smallest.
        ({8: 8.0, 12: 8.0}, 12, 4),
        ({8: 8.0, 12: 11.0, 16: 11.0}, 16, 4),
        # At the bottom: the last before the first failure.
        ({4: 4.0, 8: 4.0}, 8, 4),
        ({4: 4.0, 8: 7.0, 12: 7.0, 16: 12.0}, 16, 8),
        # Three passes, then a failure.
        ({8: 8.0, 12: 11.0, 16: 14.0, 20: 17.0, 24: 17.0}, 24, 20),
        # All pass up to the largest allowed size: stay there.
        ({48: 48.0, 52: 51.0, 56: 54.0, 60: 57.0}, 60, 60),
    ],
)
def test_the_rules(rates, at, target):
    scaler = ProbeScaler(sizes_every(4, 4, 60))
    assert scaler.choose(observed(rates, at=at)).size == target


def test_a_size_is_not_rejected_before_a_hundred_steps():
    rates = {4: 4.0, 8: 7.0, 12: 7.1}
    scaler = ProbeScaler(sizes_every(4, 4, 12))
    assert scaler.choose(observed(rates, at=8, counts={12: 99})).size == 12
    assert scaler.choose(observed(rates, at=8, counts={12: 100})).size == 8


def test_nothing_is_decided_within_ten_steps_of_a_resize():
    scaler = ProbeScaler(sizes_every(4, 4, 60))
    assert scaler.choose(observed({8: 8.0, 12: 11.0}, at=12, steps=9)).size == 12


def test_the_published_walks(closed_form):
    up = replay(closed_form(0.15518), ProbeScaler(ANY), start=4, steps=2000)
    assert (up.sizes[-1], up.resizes) == (48, 46)
    down = replay(closed_form(0.4737), ProbeScaler(ANY), start=16, steps=2000)
    assert down.sizes == (16, 17, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 10, 9)


@pytest.mark.parametrize(
    ("a", "threshold", "start"),
    [
        (0.155, 0.1, 4),
        (0.3, 0.1, 4),
        (0.3, 0.2, 30),
        (0.25, 0.1, 60),
        (0.48, 0.1, 16),
        (0.08, 0.3, 10),
        (0.9, 0.1, 8),
        (0.01, 0.1, 4),
    ],
)
def test_it_settles_where_the_closed_form_says(closed_form, a, threshold, start):
    expected = min(max(ceil(((1 - a) / threshold - 1) / a), 4), 60)
    scaler = ProbeScaler(ANY, ThroughputScaling(threshold))
    assert replay(closed_form(a), scaler, start=start, steps=3000).sizes[-1] == expected


@pytest.mark.parametrize("a", [0.02, 0.05, 0.1, 0.3])
def test_it_settles_where_the_closed_form_of_utility_says(closed_form, a):
    # Grow while k (k + 1) < m (1 - a) / (P a), slope m of utility, price P per second.
    bound = 1 / 8 * (1 - a) / a / (1 / 100)
    expected = max(4, next(k for k in range(1, 100) if k * (k + 1) >= bound))
    scaler = ProbeScaler(ANY, UtilityOverCost(LinearUtility(1000, 8000), 36))
    assert replay(closed_form(a), scaler, start=4, steps=3000).sizes[-1] == expected


def test_one_size_is_never_left(closed_form):
    assert replay(closed_form(0.1), ProbeScaler((8,)), start=8, steps=300).sizes == (8,)


def test_the_last_point_of_a_utility_is_remembered_from_the_first_size(closed_form):
    scaler = ProbeScaler(ANY, UtilityOverCost(StepUtility([(100, 500)]), 0.0))
    first = scaler.choose(observed({4: 1.0}, at=4))
    assert first.memory == {"initial_jct_s": 1100.0}
    assert scaler.choose(observed({4: 1.0, 5: 1.2}, at=5), first.memory).size == 6
    # Without that point there would be no slope to climb.
    assert scaler.choose(observed({4: 1.0, 5: 3.0}, at=5), {"initial_jct_s": 400.0}).size == 4


def test_its_memory_is_json_even_if_nobody_knows_what_remains():
    job = observed({8: 8.0}, at=8)._replace(remaining_samples=float("inf"))
    assert json.dumps(ProbeScaler(ANY).choose(job).memory, allow_nan=False) == "{}"


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"min_steps": 0}, {"passes": 0}, {"steps_for_staying": -1}):
        with pytest.raises(InputError, match="give at least"):
            ProbeScaler(ANY, **wrong)
    for sizes in ((), (0, 1)):
        with pytest.raises(InputError, match="sizes"):
            ProbeScaler(sizes)
