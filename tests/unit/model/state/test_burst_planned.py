"""The plans by layer that programs tell: the last one of each job, as long as it lives."""

import pytest

from rota.errors import TransitionError
from rota.model.events import BurstPlanned, JobFinished
from rota.model.job import JobState
from rota.model.view import View
from rota.policy.ordering.fifo import Fifo
from rota.testing.builders import job
from support.driven import DrivenCluster

FIRST = BurstPlanned(5.0, 0, 32, (0.5, 0.3), (0.0, 0.4))
SECOND = FIRST._replace(at_s=6.0, idle=(0.2,))


def cluster():
    found = DrivenCluster(job("a", 2), job("b", 2), cluster="1x2", policy=Fifo())
    found.settle()
    return found


def test_the_last_plan_of_a_job_is_what_a_view_shows():
    state = cluster().state
    assert View(state, 5.0, None).burst_planned(0) is None
    for event in (FIRST, SECOND):
        state.decision_needed = False
        state.apply(event)
        assert View(state, 6.0, None).burst_planned(0) == event
        assert state.decision_needed
    assert View(state, 6.0, None).burst_planned(1) is None


def test_a_copy_of_the_state_has_the_plan_of_its_own():
    state = cluster().state
    state.apply(FIRST)
    twin = state.copy()
    state.apply(SECOND)
    assert twin.burst_planned == {0: FIRST}


def test_a_job_that_has_ended_has_none():
    state = cluster().state
    state.apply(FIRST)
    state.apply(JobFinished(7.0, 0, JobState.SUCCEEDED, 0))
    assert state.burst_planned == {}
    state.apply(SECOND)
    assert state.burst_planned == {}


@pytest.mark.parametrize("idle", [(), (0.0, 0.0, 0.0)])
def test_a_plan_for_ranks_of_which_no_step_is_told_is_refused(idle):
    with pytest.raises(TransitionError, match=f"planned for {len(idle)} of 2 ranks"):
        cluster().state.apply(FIRST._replace(idle=idle))
