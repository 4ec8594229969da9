"""What an objective refuses before anything runs, and how it names searches."""

import pytest

from rota.errors import JobFileError
from rota.sweep.objective import Objective, _name


@pytest.mark.parametrize(
    ("study", "sweep"),
    [
        ("digits", "digits"),
        ("my study: 2nd/try", "my-study-2nd-try"),
        ("-_x_-", "x"),
        ("2024", "study-2024"),
        ("データ", "study"),
        ("", "study"),
        ("no-name-3f2a0b3e-0d2e-4d4c-8a5b-a5b6c7d8e9f0", "study"),
        ("n" * 100, "n" * 48),
        ("9" * 100, f"study-{'9' * 42}"),
    ],
)
def test_a_search_is_named_after_its_study_as_far_as_searches_can_be(study, sweep):
    assert _name(study) == sweep


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"run": ""}, "run"),
        ({"metric": ""}, "sweep.metric"),
        ({"resources": {"gpus": 0}}, "resources.gpus"),
        ({"gpus": 1}, "gpus"),
        ({"name": "no name"}, "name"),
        ({"env": {"ROTA_TRIAL": "1"}}, "env.ROTA_TRIAL"),
    ],
)
def test_what_is_wrong_with_the_job_is_said_at_once(arguments, field):
    with pytest.raises(JobFileError, match=field):
        Objective(**{"run": "python train.py", "metric": "val_acc"} | arguments)
