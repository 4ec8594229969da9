"""Lengths of time, and the messages of jobs that were over their time limits."""

import pytest

from rota.model.ending import end_text
from rota.model.job import JobState
from rota.model.length import length_text
from rota.testing.builders import job


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.5, "0.5s"),
        (45.0, "45s"),
        (3600.0, "1h"),
        (5400.0, "1h30m"),
        (90061, "1d1h1m1s"),
    ],
)
def test_a_length_is_told_exactly(seconds, text):
    assert length_text(seconds) == text


def test_the_end_of_a_job_over_its_limit_tells_the_limit_first():
    spec = job("a", 1, time_limit_s=3600.0)
    assert end_text(spec, JobState.TIMEOUT, "") == "its time limit of 1h was over"
    told = end_text(spec, JobState.TIMEOUT, "it ended with exit code 3 after SIGTERM")
    assert told == "its time limit of 1h was over; it ended with exit code 3 after SIGTERM"
    assert end_text(spec, JobState.FAILED, "killed by SIGSEGV") == "killed by SIGSEGV"
