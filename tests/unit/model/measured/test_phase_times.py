"""Reports of the times of steps, and what in them can't be."""

import pytest

from rota.errors import InputError
from rota.model.measured.phase_times import PhaseTime, read

TRAIN = {"steps": 4, "step_s": 0.5, "wait_s": 0.125, "since_s": 9.0, "workers": 2}


def test_the_part_of_a_step_that_waits_is_that_of_its_time():
    (told,) = read({"phases": {"train": TRAIN}})
    assert told == PhaseTime("train", 4, 0.5, 0.125, 9.0, 2)
    assert told.wait_share == 0.25
    assert told.told() == TRAIN


def test_times_without_waits_and_reports_without_times_are_fine():
    (told,) = read({"phases": {"evaluate": {"steps": 1, "step_s": 30, "since_s": 0.0}}})
    assert (told.wait_s, told.wait_share, told.workers) == (None, None, None)
    assert read({}) == read({"phases": None}) == ()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"step_s": 0}, "phases.train.step_s: 0 s"),
        ({"step_s": None}, "phases.train.step_s: None"),
        ({"step_s": float("nan")}, "phases.train.step_s: nan"),
        ({"step_s": float("inf")}, "phases.train.step_s: inf"),
        ({"step_s": True}, "phases.train.step_s: True"),
        ({"step_s": "fast"}, "phases.train.step_s: 'fast'"),
        ({"wait_s": -0.5}, "phases.train.wait_s: -0.5 s"),
        ({"wait_s": float("nan")}, "phases.train.wait_s: nan"),
        ({"wait_s": 0.75}, "phases.train.wait_s: 0.75 s is more than the whole step's 0.5 s"),
        ({"steps": 0}, "phases.train.steps: 0"),
        ({"steps": 2.5}, "phases.train.steps: 2.5"),
        ({"since_s": -1.0}, "phases.train.since_s: -1.0"),
        ({"workers": -1}, "phases.train.workers: -1"),
        ({"workers": 1 << 62}, "phases.train.workers: "),
    ],
    ids=str,
)
def test_a_figure_that_can_not_be_is_named_with_its_value(wrong, field):
    with pytest.raises(InputError) as refused:
        read({"phases": {"train": TRAIN | wrong}})
    assert str(refused.value).startswith(field)


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ({"sleep": TRAIN}, "'sleep' is no phase; there are train and evaluate"),
        ({"train": [1]}, "phases.train: [1] is no mapping"),
        ([TRAIN], "is no mapping"),
    ],
    ids=["unknown phase", "no entry", "a list"],
)
def test_what_is_no_time_of_a_phase_is_named(phases, words):
    with pytest.raises(InputError, match="phases") as refused:
        read({"phases": phases})
    assert words in str(refused.value)
