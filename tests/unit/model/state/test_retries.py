"""Jobs whose retries allow another attempt after they have failed."""

from rota.model.events import (
    AttemptLost,
    JobSubmitted,
    ResumeRequested,
    RetryDue,
    StopRequested,
    SuspendRequested,
)
from rota.model.job import JobState, Retries
from rota.model.reason import Reason
from rota.testing.builders import job
from support.driven import DrivenCluster


def failing(*more):
    cluster = DrivenCluster(job("first")._replace(retries=Retries(3)), *more, cluster="1x1")
    cluster.settle()
    cluster.passes(5.0)
    return cluster


def fail(cluster, row=0):
    attempt = cluster.state.attempt[row]
    again_s = cluster.now_s + 10.0
    cluster.happens(AttemptLost, row, attempt, "exit code 3", 0.0, False, again_s, 3)


def test_a_job_that_is_retried_waits_out_of_the_policys_sight_and_starts_anew():
    cluster = failing()
    fail(cluster)
    state = cluster.state
    assert cluster.state_of(0) == JobState.PENDING
    assert Reason(state.reason[0]) == Reason.WAIT_BACKOFF
    assert state.backoff == {0: 15.0}
    assert 0 not in state.active
    cluster.settle()
    assert state.attempt[0] == 1
    cluster.passes(10.0)
    cluster.happens(RetryDue, 0)
    cluster.settle()
    assert (cluster.state_of(0), state.attempt[0]) == (JobState.RUNNING, 2)
    state.validate()


def test_the_story_tells_of_each_attempt_and_its_exit():
    cluster = failing()
    fail(cluster)
    lines = [line for _, line in cluster.state.story(0)]
    assert lines[-2:] == ["attempt 1 failed: exit code 3", "retry 1 of 3 comes in 10 s"]
    assert cluster.state.retried == {0: 1}


def test_the_pause_does_not_cost_the_job_its_place():
    cluster = failing(job("second"), job("third"))
    fail(cluster)
    cluster.settle()  # the second has the GPU
    cluster.passes(10.0)
    cluster.happens(RetryDue, 0)
    cluster.happens(StopRequested, 1)
    cluster.settle()
    assert cluster.state_of(0) == JobState.RUNNING
    assert cluster.state_of(2) == JobState.PENDING


def test_a_suspension_is_no_failure_and_ends_the_pause():
    cluster = failing()
    fail(cluster)
    cluster.happens(SuspendRequested, 0)
    assert cluster.state_of(0) == JobState.HELD
    assert not cluster.state.backoff
    cluster.happens(ResumeRequested, 0)
    cluster.settle()
    assert (cluster.state_of(0), cluster.state.retried) == (JobState.RUNNING, {0: 1})


def test_a_job_that_its_owner_has_suspended_is_held_when_it_fails():
    cluster = failing()
    cluster.happens(SuspendRequested, 0)
    fail(cluster)
    assert cluster.state_of(0) == JobState.HELD
    assert Reason(cluster.state.reason[0]) == Reason.HELD_BY_USER
    assert not cluster.state.backoff


def test_a_job_that_was_to_stop_ends_as_it_was_asked_to():
    cluster = failing()
    cluster.happens(StopRequested, 0)
    fail(cluster)
    assert cluster.state_of(0) == JobState.CANCELLED


def test_a_job_that_waits_can_be_cancelled():
    cluster = failing()
    fail(cluster)
    cluster.happens(StopRequested, 0)
    assert cluster.state_of(0) == JobState.CANCELLED
    assert not cluster.state.backoff
    cluster.happens(JobSubmitted, job("next"))
    cluster.settle()
    assert cluster.state_of(1) == JobState.RUNNING
