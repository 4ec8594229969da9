"""Background jobs lie on a layer of their own, which the main layer does not see."""

import pytest

from rota.errors import PlanError, TransitionError
from rota.live.controller.recovery import overdue
from rota.model.allocation import Allocation, background_on_node, of_parts, on_node
from rota.model.commands import Launch
from rota.model.events import (
    AttemptLost,
    CommandSent,
    FillMeasured,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    NodeClosed,
    NodeLost,
    NodeOpened,
    ResumeRequested,
    RetryDue,
    StopRequested,
    SuspendRequested,
    WorkerRegistered,
)
from rota.model.job import BACKGROUND, FOREGROUND, Dependency, JobState, Retries, Share, Suspension
from rota.model.reason import Reason
from rota.policy.registry import create
from rota.testing.builders import job
from support.driven import DrivenCluster


def background(name, **more):
    return job(name, share=Share(BACKGROUND), **more)


def cluster(*jobs, nodes="1x2", policy="fifo", **settings):
    found = DrivenCluster(*jobs, cluster=nodes, policy=create(policy, settings))
    found.settle()
    found.state.validate()
    return found


def test_an_allocation_keeps_its_layer_through_every_change():
    place = background_on_node(0, 0b1)
    assert place is background_on_node(0, 0b1)
    assert place is of_parts(((0, 0b1),), background=True)
    assert place != on_node(0, 0b1)
    assert len({place, on_node(0, 0b1)}) == 2
    assert "background" in repr(place)
    assert place.with_batch((4, 0)).background
    assert place.joined(background_on_node(0, 0b10)).background
    assert background_on_node(0, 0b11).without(place) is background_on_node(0, 0b10)
    assert not place.overlaps(on_node(0, 0b11))
    assert place.meets(on_node(0, 0b11))
    assert place.overlaps(background_on_node(0, 0b11))
    assert not place.meets(on_node(1, 0b1))
    assert Allocation(((0, 1),), background=True) == place


def test_a_background_job_runs_beside_one_that_has_all_gpus():
    state = cluster(job("train", 2), background("search")).state
    assert [state.state[row] for row in (0, 1)] == [JobState.RUNNING, JobState.RUNNING]
    assert state.held[1] is background_on_node(0, 0b1)
    assert (state.assumed.count, state.idle.count) == (0, 0)
    assert (state.assumed_background.count, state.idle_background.count) == (1, 1)
    assert list(state.active) == [0]
    assert list(state.background) == [1]


def test_one_background_job_is_on_a_gpu_and_the_others_wait_for_gaps():
    found = cluster(*(background(f"b{i}") for i in range(3)))
    state = found.state
    assert state.reason[2] == Reason.WAIT_GAPS
    assert state.total_gpus == state.assumed.count == 2
    found.happens(JobFinished, 0, JobState.SUCCEEDED)
    found.settle()
    state.validate()
    assert state.held[2] is background_on_node(0, 0b1)
    assert state.background == {1: None, 2: None}
    assert list(state.completed_gpu_s) == []


def test_the_policies_history_has_foreground_jobs_alone():
    found = cluster(job("a", priority=30), background("b", priority=90))
    assert found.state.priorities == {30}


def test_the_owner_suspends_and_resumes_it():
    found = cluster(background("b"))
    state = found.state
    found.happens(SuspendRequested, 0)
    assert not state.background
    assert state.reason[0] == Reason.HELD_BY_USER
    found.settle()
    assert state.state[0] == JobState.SUSPENDED
    found.happens(ResumeRequested, 0)
    assert (list(state.background), list(state.active)) == ([0], [])
    assert state.reason[0] == Reason.WAIT_GAPS
    found.settle()
    state.validate()
    assert state.state[0] == JobState.RUNNING


def test_it_waits_for_others_and_starts_when_they_have_ended():
    found = cluster(job("a"), background("b", depends_on=(Dependency("a"),)))
    state = found.state
    assert not state.background
    assert state.reason[1] == Reason.WAIT_DEPENDENCY
    found.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert list(state.background) == [1]
    found.settle()
    assert state.state[1] == JobState.RUNNING


def test_a_lost_attempt_starts_anew_on_its_layer_after_the_pause():
    found = cluster(background("b", retries=Retries(2)))
    state = found.state
    found.happens(AttemptLost, 0, 1, "exit code 1", 0.0, False, 10.0, 1)
    assert not state.background
    assert state.reason[0] == Reason.WAIT_BACKOFF
    found.passes(10.0)
    found.happens(RetryDue, 0)
    assert list(state.background) == [0]
    found.settle()
    state.validate()
    assert state.held[0].background


def test_a_lost_node_takes_it_along():
    found = cluster(background("b"), nodes="2x1")
    found.happens(NodeLost, "node0")
    state = found.state
    state.validate()
    assert (state.state[0], state.reason[0]) == (JobState.PENDING, Reason.WAIT_GAPS)
    found.settle()
    assert state.held[0] is background_on_node(1, 0b1)


@pytest.mark.parametrize("drains", [False, True])
def test_it_leaves_a_closed_node_at_once(drains):
    found = cluster(background("b"), nodes="2x1")
    state = found.state
    found.happens(NodeClosed, "node0", drains)
    assert state.target[0] is None
    state.validate()
    found.settle()
    assert state.held[0] is background_on_node(1, 0b1)
    found.happens(NodeOpened, "node0")
    state.validate()
    assert state.assumed_background.masks == [1, 0]


def test_one_that_cannot_leave_a_closed_node_waits_for_its_opening():
    found = cluster(background("b"), nodes="2x1")
    state = found.state
    found.happens(WorkerRegistered, 0, Suspension.PROCESS, False, False, 0, False)
    found.happens(NodeClosed, "node0")
    found.settle()
    assert (state.state[0], state.reason[0]) == (JobState.SUSPENDED, Reason.WAIT_GAPS)
    assert not state.staying
    found.happens(NodeOpened, "node0")
    found.settle()
    state.validate()
    assert state.held[0] is background_on_node(0, 0b1)


def test_it_stops_when_it_is_asked_to():
    found = cluster(background("b"))
    found.happens(StopRequested, 0)
    found.settle()
    found.state.validate()
    assert found.state_of(0) == JobState.CANCELLED
    assert found.state.idle_background.count == 2


def test_the_last_measurement_is_kept_until_the_job_ends():
    found = cluster(job("a", 2), background("b"))
    state = found.state
    state.decision_needed = state.policy_needed = False
    found.happens(FillMeasured, 1, 0, 1.02, 0.4)
    found.happens(FillMeasured, 1, 0, 1.05, 0.5)
    assert state.fill_measured[1] == FillMeasured(0.0, 1, 0, 1.05, 0.5)
    assert state.decision_needed
    assert not state.policy_needed
    assert state.copy().fill_measured == state.fill_measured
    found.happens(JobFinished, 1, JobState.SUCCEEDED)
    assert not state.fill_measured
    found.happens(FillMeasured, 1, 0, 1.05, 0.5)  # told too late
    assert not state.fill_measured


def test_a_foreground_job_is_not_measured_so():
    found = cluster(job("a"))
    with pytest.raises(TransitionError, match="measured as a background job"):
        found.happens(FillMeasured, 0, -1, 1.0, 1.0)


def test_a_foreground_jobs_wish_changes_nothing_else():
    plain, wishing = job("a"), job("b", share=Share(FOREGROUND, 1.02))
    assert (plain.max_slowdown, wishing.max_slowdown) == (1.1, 1.02)
    state = cluster(wishing).state
    assert list(state.active) == [0]


def test_an_allocation_on_the_wrong_layer_is_a_breach():
    found = DrivenCluster(background("b"))
    found.happens(CommandSent, Launch(1, 0, 1, 0, on_node(0, 1)))
    found.happens(JobLaunched, 0, 1)
    with pytest.raises(PlanError, match="on the wrong layer"):
        found.state.validate()


def test_decisions_about_background_jobs_leave_what_the_policy_has_to_see():
    found = cluster(job("a"))
    state = found.state
    plan = state.plan
    state.changed.append(0)
    found.happens(JobSubmitted, background("b"))
    found.decide()
    assert state.plan is plan
    assert 0 in state.changed
    assert state.target[1] is not None


def test_one_that_cannot_leave_a_drained_node_is_overdue_there_at_once():
    found = cluster(background("b"), job("a"), nodes="1x1")
    state = found.state
    for row in (0, 1):
        found.happens(WorkerRegistered, row, Suspension.PROCESS, False, False, 0, False)
    found.happens(NodeClosed, "node0", True)
    assert overdue(state, 0.0) == []
    found.settle()
    assert found.state_of(0) == JobState.SUSPENDED
    assert overdue(state, 0.0) == [(0, 0)]
