"""Nodes that are not heard: their jobs keep their GPUs, and nothing is placed there."""

import pytest

from rota.errors import TransitionError
from rota.explain.why import explain
from rota.model.events import (
    JobSubmitted,
    NodeClosed,
    NodeLost,
    NodeOpened,
    NodeReachable,
    NodeUnreachable,
    ResumeRequested,
    SuspendRequested,
    WorkerRegistered,
)
from rota.model.job import JobState, Suspension
from rota.model.reason import Reason
from rota.testing.builders import job
from support.driven import DrivenCluster


@pytest.fixture
def cluster():
    """Two nodes of 4 GPUs; job a has 2 of the first one, and could go on on the other one."""
    cluster = DrivenCluster(job("a", 2), cluster="2x4")
    cluster.settle()
    cluster.happens(WorkerRegistered, 0, Suspension.BOUNDARY, True, False, 0, True)
    return cluster


def nodes(cluster):
    return [held and held.nodes() for held in cluster.state.held]


def until(cluster, seconds):
    cluster.happens(NodeUnreachable, "node0", cluster.now_s + seconds)


def test_jobs_stay_and_none_begins_until_the_node_is_heard_again(cluster):
    until(cluster, 60.0)
    for name in "bcd":
        cluster.happens(JobSubmitted, job(name, 2))
    cluster.settle()
    assert nodes(cluster) == [(0,), (1,), (1,), None]
    assert list(cluster.state.staying) == [0]
    cluster.state.validate()
    cluster.happens(NodeReachable, "node0")
    cluster.settle()
    assert nodes(cluster)[3] == (0,)
    assert not cluster.state.staying
    cluster.state.validate()


def test_a_job_whose_state_is_there_waits_for_it(cluster):
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    until(cluster, 60.0)
    cluster.happens(ResumeRequested, 0)
    cluster.settle()
    assert cluster.state_of(0) == JobState.SUSPENDED
    assert cluster.state.reason[0] == Reason.NODE_UNHEALTHY
    blocked = explain(cluster.state, 0, cluster.now_s)["blockers"][0]
    assert (blocked["need"], blocked["have"]) == ("the node that holds it", "it does not answer")
    cluster.state.validate()
    cluster.happens(NodeReachable, "node0")
    cluster.settle()
    assert cluster.state_of(0) == JobState.RUNNING


def test_jobs_of_a_node_that_is_lost_start_elsewhere(cluster):
    until(cluster, 60.0)
    cluster.settle()
    cluster.happens(NodeLost, "node0")
    cluster.settle()
    assert not cluster.state.staying and not cluster.state.unreachable
    assert (nodes(cluster), cluster.state.attempt[0]) == ([(1,)], 2)
    cluster.state.validate()


def test_a_node_that_is_heard_again_is_as_closed_as_it_was(cluster):
    until(cluster, 60.0)
    cluster.happens(NodeClosed, "node0", True)
    cluster.settle()
    assert nodes(cluster) == [(0,)]  # nobody there can be told to leave
    cluster.happens(NodeReachable, "node0")
    cluster.settle()
    assert nodes(cluster) == [(1,)]
    cluster.happens(NodeOpened, "node0")
    cluster.state.validate()


def test_what_will_become_of_a_job_is_told(cluster):
    until(cluster, 60.0)
    [told] = explain(cluster.state, 0, cluster.now_s + 20.0)["warnings"]
    assert told == (
        "node node0 is not heard, and the job stays there for 40 s; then it starts anew elsewhere"
    )
    cluster.happens(NodeUnreachable, "node0")
    [told] = explain(cluster.state, 0, cluster.now_s)["warnings"]
    assert told.endswith("stays there unless it is removed: rota node remove --force node0")
    cluster.happens(JobSubmitted, job("b", 4))
    cluster.happens(JobSubmitted, job("c", 2))
    cluster.settle()
    blocked = explain(cluster.state, 2, cluster.now_s)
    have = [blocker["have"] for blocker in blocked["blockers"]]
    assert have == ["none of 4 free", "2 GPUs free that take no job; away: node0"]
    assert blocked["would_start_if"] == "nodes that are away came back"


@pytest.mark.parametrize("event", [NodeUnreachable, NodeReachable])
def test_a_node_that_was_never_there_is_refused(cluster, event):
    with pytest.raises(TransitionError, match="no such node has ever been there"):
        cluster.happens(event, "node7")
