"""What a report tells of the time that steps and validations take, and of waits for data."""

import pytest

from rota.train.phase_times import PhaseTimes
from rota.train.progress import Progress


def step(times, seconds, wait_s=None, evaluated=()):
    times.begin_step()
    for each in evaluated:
        times.evaluated(each)
    if wait_s is not None:
        times.loaded(wait_s, 2)
    times.end_step(seconds)


def test_steps_and_their_waits_are_told_as_means():
    times = PhaseTimes()
    step(times, 1.0, 0.5)
    step(times, 3.0, 0.1)
    told = times.message()
    assert set(told) == {"train"}
    del told["train"]["since_s"]
    assert told["train"] == {"steps": 2, "step_s": 2.0, "wait_s": 0.3, "workers": 2}


def test_validations_are_told_by_themselves_and_are_no_part_of_the_step_they_are_in():
    times = PhaseTimes()
    step(times, 10.0, 0.25, evaluated=[4.0, 5.0])
    told = times.message()
    assert (told["train"]["step_s"], told["train"]["wait_s"]) == (1.0, 0.25)
    assert (told["evaluate"]["steps"], told["evaluate"]["step_s"]) == (1, 5.0), "the last one"
    assert told["evaluate"]["wait_s"] is None


def test_a_validation_between_two_steps_is_not_taken_from_the_next_one():
    times = PhaseTimes()
    times.evaluated(4.0)
    step(times, 1.0)
    assert times.message()["train"]["step_s"] == 1.0


def test_the_last_validation_is_told_until_there_is_another():
    times = PhaseTimes()
    times.evaluated(4.0)
    first = times.message()
    times.sent()
    assert times.message() == first
    times.evaluated(5.0)
    assert times.message()["evaluate"]["step_s"] == 5.0


def test_where_nobody_measures_waits_none_are_told():
    times = PhaseTimes()
    step(times, 1.0)
    assert times.message()["train"]["wait_s"] is None
    assert times.message()["train"]["workers"] is None


def test_a_wait_is_never_longer_than_its_step():
    times = PhaseTimes()
    step(times, 1.0, 1.5)
    assert times.message()["train"]["wait_s"] == 1.0


def test_each_report_tells_of_the_time_since_the_last_one():
    progress = Progress()
    assert progress.message()["phases"] is None
    progress.begin_step()
    progress.end_step()
    first = progress.message()
    assert first["phases"]["train"]["steps"] == 1
    assert first["phases"]["train"]["step_s"] == pytest.approx(first["step_time_s"])
    progress.sent()
    assert progress.message()["phases"] is None
    progress.begin_step()
    progress.end_step()
    assert progress.message()["phases"]["train"]["since_s"] >= first["at_s"]
