import pytest

from rota.model.job import JobState
from rota.model.trial_standing import Standing, standing_of


@pytest.mark.parametrize(
    ("state", "stopped", "values", "standing"),
    [
        (JobState.PENDING, False, [], Standing.OPEN),
        (JobState.SUSPENDED, False, [0.5], Standing.OPEN),
        (JobState.RUNNING, True, [0.5], Standing.STOPPED),
        (JobState.RUNNING, False, [0.5, None], Standing.FAILED),
        (JobState.SUCCEEDED, False, [0.5], Standing.DONE),
        (JobState.SUCCEEDED, True, [0.5], Standing.DONE),  # it was sooner at its end
        (JobState.SUCCEEDED, False, [], Standing.FAILED),
        (JobState.SUCCEEDED, False, [None], Standing.FAILED),
        (JobState.FAILED, False, [0.5], Standing.FAILED),
        (JobState.TIMEOUT, False, [0.5], Standing.FAILED),
        (JobState.CANCELLED, True, [0.5], Standing.STOPPED),
        (JobState.CANCELLED, True, [0.5, None], Standing.FAILED),
        (JobState.CANCELLED, False, [0.5, None], Standing.CANCELLED),
    ],
)
def test_what_a_trial_is_to_its_search(state, stopped, values, standing):
    assert standing_of(state, stopped, values) is standing
