"""Scaling curves that a job's program predicts, and the scaler that goes by them."""

import pytest

from rota.policy.scaling import (
    FitScaler,
    Observations,
    Observed,
    PlannedCurve,
    ProbeScaler,
    Throughput,
    covers,
)

# Seconds of a step; 3 ranks are no better than 2, and 8 hardly better than 4.
PREDICTED = (8.0, 5.0, 5.0, 2.5, 2.5, 2.5, 2.5, 2.4)
SIZES = tuple(range(1, 9))


def search(scaler, seconds, predicted=PREDICTED, start=1):
    """The sizes that a job of such step times is given, and the last reason."""
    observations, memory, visited, why = Observations(), {}, [start], ""
    while len(visited) < 20:
        observations.add(visited[-1], Throughput(20, 1 / seconds[visited[-1] - 1], 0.0))
        choice = scaler.choose(Observed(observations, predicted=predicted), memory)
        memory, why = choice.memory, choice.why
        if choice.size == visited[-1]:
            return visited, why
        visited.append(choice.size)
    raise AssertionError(f"it never ends: {visited}")


def test_a_curve_is_measured_where_the_job_has_run_and_corrected_elsewhere(measured):
    curve = PlannedCurve(measured(lambda k: {1: 16.0, 2: 30.0}[k], [1, 2]), PREDICTED)
    assert curve.rate(1) == 16.0
    assert curve.rate(2) == 30.0
    assert curve.rate(4) == pytest.approx(30.0 * 5.0 / 2.5)


def test_a_curve_of_a_job_that_has_not_run_is_what_was_predicted():
    curve = PlannedCurve(Observations(), PREDICTED)
    assert [curve.rate(size) for size in (1, 8)] == [1 / 8.0, 1 / 2.4]


def test_what_was_not_measured_is_less_certain(measured):
    curve = PlannedCurve(measured(lambda k: 10.0 * k, [1, 2], deviation=0.01), PREDICTED)
    known, unknown = (curve.contrast_error([(size, 1.0)]) for size in (2, 4))
    assert known < unknown
    assert curve.contrast_error([(2, -1.0), (4, 1.0)]) > unknown


@pytest.mark.parametrize(
    ("sizes", "expected"), [((1, 2), True), ((1, 3), False), ((1, 4), False), ((), True)]
)
def test_a_prediction_counts_if_it_covers_all_sizes(sizes, expected):
    assert covers((8.0, 5.0, None), sizes) is expected


def test_a_job_goes_to_the_best_predicted_size_at_once():
    visited, why = search(FitScaler(SIZES, min_steps=3), PREDICTED)
    assert visited == [1, 4]
    assert why == "no other size is surely better"


def test_without_a_prediction_it_has_to_look_for_that_size():
    visited, _ = search(FitScaler(SIZES, min_steps=3), PREDICTED, predicted=())
    assert len(visited) > 2


@pytest.mark.parametrize("predicted", [(8.0, 5.0), (8.0, None, *PREDICTED[2:])])
def test_a_prediction_that_lacks_a_size_is_passed_over(predicted):
    scaler = FitScaler(SIZES, min_steps=3)
    assert search(scaler, PREDICTED, predicted) == search(scaler, PREDICTED, ())


def test_a_job_comes_back_from_a_size_that_proves_worse_than_predicted():
    slow = (8.0, 7.9, 7.9, 7.8, 7.8, 7.8, 7.8, 7.8)
    visited, _ = search(FitScaler(SIZES, min_steps=3), slow)
    assert visited[1] == 4
    assert visited[-1] == 1


def test_a_job_that_is_best_where_it_is_stays():
    flat = (8.0,) * 8
    assert search(FitScaler(SIZES, min_steps=3), flat, flat)[0] == [1]


def test_predictions_for_which_steps_are_twice_as_long_everywhere_change_nothing():
    twice = tuple(2 * seconds for seconds in PREDICTED)
    scaler = FitScaler(SIZES, min_steps=3)
    assert search(scaler, PREDICTED, twice) == search(scaler, PREDICTED)


def test_the_published_probe_goes_by_what_it_has_run_alone():
    scaler = ProbeScaler(SIZES, min_steps=3)
    assert search(scaler, PREDICTED) == search(scaler, PREDICTED, ())
