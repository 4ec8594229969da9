"""What a policy sees, and its what-if copy."""

import pytest

from rota.errors import PlanError
from rota.model.allocation import on_node
from rota.model.events import JobFinished, WorkerRegistered
from rota.model.job import JobState, Suspension
from rota.model.reason import SENTENCES, Reason
from rota.model.view import View
from rota.policy.ordering.fifo import FifoBackfill
from rota.policy.ordering.shortest import ShortestRemaining
from rota.testing.builders import job
from support.driven import DrivenCluster, cluster_with_a_job_that_is


def view_of(cluster, policy=None):
    return View(cluster.state, cluster.now_s, policy or cluster.policy)


def test_attained_service_grows_while_the_job_runs():
    cluster = DrivenCluster(job(0, 4))
    cluster.settle()
    cluster.passes(25.0)
    view = view_of(cluster)
    assert view.attained_s(0) == 25.0
    assert view.attained_gpu_s(0) == 100.0


def test_a_policy_sees_who_submitted_a_job_and_where_to():
    cluster = DrivenCluster(job(0, user="ann", vc="vision"), job(1))
    view = view_of(cluster)
    assert [(view.user(row), view.queue(row)) for row in (0, 1)] == [("ann", "vision"), ("", "")]


def test_only_a_declared_oracle_may_read_durations():
    cluster = DrivenCluster(job(0, lasts=60))
    cluster.settle()
    cluster.passes(20.0)
    assert view_of(cluster, ShortestRemaining()).remaining_s(0) == 40.0
    with pytest.raises(PlanError, match="needs_duration = True"):
        view_of(cluster, FifoBackfill()).remaining_s(0)


def test_a_policy_does_not_see_the_marks_of_another():
    cluster = DrivenCluster(job(0))
    cluster.state.marks[0] = "mine"
    cluster.state.policy = "another"
    assert view_of(cluster).marks[0] is None


def test_a_trial_changes_nothing_until_its_plan_is_applied():
    cluster = DrivenCluster(job(0, 2), job(1, 2))
    cluster.settle()
    what_if = view_of(cluster).what_if()
    held = cluster.state.target[0]
    what_if.release(0, Reason.PREEMPTED_BY)
    assert what_if.target(0) is None
    assert what_if.free.fits(held)
    assert cluster.state.target[0] is held
    cluster.state.validate()
    assert what_if.plan().allocations == {0: None}
    assert what_if.plan().reasons == {0: Reason.PREEMPTED_BY}


def test_what_a_trial_takes_and_gives_back_is_no_change():
    cluster = DrivenCluster(job(0, 2))
    cluster.settle()
    what_if = view_of(cluster).what_if()
    held = what_if.target(0)
    what_if.release(0, Reason.PREEMPTED_BY)
    what_if.give(0, held)
    plan = what_if.plan()
    assert plan.allocations == {}
    assert plan.reasons == {}


@pytest.mark.parametrize(
    "misuse",
    [
        pytest.param(lambda what_if: what_if.release(1, Reason.PREEMPTED_BY), id="release nothing"),
        pytest.param(lambda what_if: what_if.give(0, on_node(0, 0b1100)), id="give a second time"),
        pytest.param(lambda what_if: what_if.give(1, on_node(0, 0b1111)), id="give what is taken"),
        pytest.param(lambda what_if: what_if.give(1, on_node(0, 0b1100)), id="give half a gang"),
    ],
)
def test_a_trial_refuses_what_no_plan_may_say(misuse):
    cluster = DrivenCluster(job(0, 2), job(1, 4))
    cluster.settle()
    with pytest.raises(PlanError):
        misuse(view_of(cluster).what_if())


def test_a_reason_that_stands_already_is_not_written_again():
    cluster = DrivenCluster(job(0, 4), job(1, 4))
    cluster.settle()
    what_if = view_of(cluster).what_if()
    what_if.wait(1, Reason.WAIT_RESOURCES)
    assert what_if.plan().reasons == {}
    what_if.wait(1, Reason.WAIT_QUOTA)
    assert what_if.plan().reasons == {1: Reason.WAIT_QUOTA}


@pytest.mark.parametrize("movable", [True, False], ids=["can move", "bound to its place"])
def test_a_suspended_job_goes_elsewhere_only_if_it_can_move(movable):
    cluster = DrivenCluster(job(0))
    cluster.settle()
    cluster.happens(WorkerRegistered, 0, Suspension.PROCESS, movable)
    assert not view_of(cluster).must_stay(0), "it is not suspended yet"
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDED)
    cluster.happens(WorkerRegistered, 0, Suspension.PROCESS, movable)
    assert view_of(cluster).must_stay(0) is not movable


def test_changed_rows_are_those_since_the_last_decision():
    cluster = DrivenCluster(job(0), job(1))
    assert set(view_of(cluster).changed) == {0, 1}
    cluster.decide()
    assert set(view_of(cluster).changed) == set()
    cluster.settle()
    assert set(view_of(cluster).changed) == {0, 1}, "they began to run"
    cluster.decide()
    cluster.happens(JobFinished, 1, JobState.SUCCEEDED)
    assert set(view_of(cluster).changed) == {1}


def test_every_reason_has_a_sentence():
    assert set(SENTENCES) == set(Reason)
    assert all(sentence.strip() for sentence in SENTENCES.values())
