"""Nodes that are cordoned or drained: who stays, who leaves, and who has which GPUs."""

import pytest

from rota.errors import TransitionError
from rota.model.commands import Migrate, Resume, Suspend
from rota.model.decide.live_limits import all_gpus
from rota.model.events import (
    AttemptLost,
    JobFinished,
    JobSubmitted,
    NodeClosed,
    NodeJoined,
    NodeLost,
    NodeOpened,
    ResumeRequested,
    SuspendRequested,
    WorkerRegistered,
)
from rota.model.job import JobState, Suspension
from rota.model.reason import Reason
from rota.model.view import View
from rota.testing.builders import job
from support.driven import DrivenCluster


@pytest.fixture
def cluster():
    """Two nodes of 4 GPUs; each has a job with 2 of them, row and node 0 and 1."""
    cluster = DrivenCluster(job("a", 2), cluster="2x4")
    cluster.settle()
    cluster.happens(NodeClosed, "node0")
    cluster.happens(JobSubmitted, job("b", 2))
    cluster.settle()
    cluster.happens(NodeOpened, "node0")
    cluster.settle()
    assert nodes(cluster) == [(0,), (1,)]
    return cluster


def nodes(cluster):
    return [held and held.nodes() for held in cluster.state.held]


def pin(cluster, row):
    """The job's processes can't go to another node."""
    cluster.happens(WorkerRegistered, row, Suspension.PROCESS, True, False, 0, False)


def finish(cluster, row):
    cluster.happens(JobFinished, row, JobState.SUCCEEDED)
    cluster.settle()


def test_on_a_cordoned_node_jobs_go_on_and_none_begins(cluster):
    cluster.happens(NodeClosed, "node0")
    cluster.happens(JobSubmitted, job("c", 2))
    cluster.happens(JobSubmitted, job("d", 1))
    cluster.settle()
    assert nodes(cluster) == [(0,), (1,), (1,), None]
    assert list(cluster.state.staying) == [0]
    finish(cluster, 0)
    assert cluster.state.held[3] is None
    cluster.state.validate()
    cluster.happens(NodeOpened, "node0")
    cluster.settle()
    assert nodes(cluster)[3] == (0,)
    cluster.state.validate()


def test_policies_see_a_closed_node_as_one_that_is_not_there(cluster):
    cluster.happens(NodeClosed, "node0")
    view = View(cluster.state, cluster.now_s, cluster.policy)
    assert [node.alive for node in view.nodes] == [False, True]
    assert [node.alive for node in cluster.state.nodes] == [True, True]
    assert (view.total_gpus, view.free_gpus, list(view.active)) == (4, 2, [1])
    assert all_gpus(cluster.state) == 8


def test_a_job_leaves_a_drained_node_with_its_state(cluster):
    cluster.happens(NodeClosed, "node0", True)
    cluster.decide()
    (command,) = cluster.send()
    assert isinstance(command, Suspend)
    cluster.confirm(command)
    cluster.decide()
    (command,) = cluster.send()
    assert isinstance(command, Migrate)
    cluster.confirm(command)
    assert nodes(cluster) == [(1,), (1,)]
    cluster.state.validate()


def test_a_job_for_which_no_other_node_has_room_leaves_all_the_same(cluster):
    cluster.happens(JobSubmitted, job("c", 2))
    cluster.happens(NodeClosed, "node0")  # it goes to node1
    cluster.settle()
    cluster.happens(NodeClosed, "node0", True)
    cluster.settle()
    assert cluster.state_of(0) == JobState.SUSPENDED
    assert cluster.state.reason[0] == Reason.WAIT_RESOURCES
    finish(cluster, 1)
    assert nodes(cluster)[0] == (1,)


def test_a_job_that_can_not_leave_stays_until_its_end(cluster):
    pin(cluster, 0)
    cluster.happens(NodeClosed, "node0", True)
    cluster.settle()
    assert nodes(cluster) == [(0,), (1,)]
    assert list(cluster.state.staying) == [0]
    finish(cluster, 0)
    assert not cluster.state.staying
    cluster.state.validate()


def test_stopped_processes_go_on_on_a_closed_node_one_after_another(cluster):
    """Each of two jobs has had all GPUs of the node, where alone it can go on."""
    for row in (0, 1):
        cluster.happens(JobFinished, row, JobState.SUCCEEDED)
    cluster.happens(NodeClosed, "node1")
    for name in ("c", "d"):
        cluster.happens(JobSubmitted, job(name, 4))
        cluster.settle()
        if name == "c":
            pin(cluster, 2)
            cluster.happens(SuspendRequested, 2)
            cluster.settle()
    pin(cluster, 3)
    cluster.happens(NodeClosed, "node0", True)
    cluster.happens(ResumeRequested, 2)
    cluster.settle()
    assert nodes(cluster)[2:] == [None, (0,)]
    assert cluster.state.reason[2] == Reason.WAIT_TOPOLOGY
    cluster.happens(JobFinished, 3, JobState.SUCCEEDED)
    cluster.decide()
    (command,) = cluster.send()
    assert isinstance(command, Resume)
    cluster.confirm(command)
    assert nodes(cluster)[2:] == [(0,), None]
    cluster.state.validate()


def test_a_job_that_stays_and_loses_its_attempt_starts_anew_elsewhere(cluster):
    pin(cluster, 0)
    cluster.happens(NodeClosed, "node0", True, 100.0)
    cluster.happens(AttemptLost, 0, 1, "its node was drained")
    cluster.settle()
    assert nodes(cluster) == [(1,), (1,)]
    assert cluster.state.attempt[0] == 2
    cluster.state.validate()


def test_an_owner_who_suspends_a_job_that_stays_frees_nothing_for_others(cluster):
    cluster.happens(NodeClosed, "node0")
    cluster.happens(SuspendRequested, 0)
    cluster.happens(JobSubmitted, job("c", 4))
    cluster.settle()
    assert nodes(cluster) == [None, (1,), None]
    cluster.happens(ResumeRequested, 0)
    cluster.settle()
    assert nodes(cluster) == [(1,), (1,), None]
    cluster.state.validate()


def test_a_drain_after_a_cordon_sends_the_jobs_away_and_a_cordon_lets_them_stay(cluster):
    cluster.happens(NodeClosed, "node0")
    cluster.happens(NodeClosed, "node0", True)
    assert cluster.state.target[0] is None
    assert cluster.state.total_gpus == 4
    cluster.happens(NodeClosed, "node1")
    cluster.happens(NodeClosed, "node1", True)
    cluster.happens(NodeClosed, "node1")
    assert cluster.state.total_gpus == 0
    cluster.state.validate()


def test_a_closed_node_that_is_lost_comes_back_closed(cluster):
    cluster.happens(NodeClosed, "node0")
    cluster.happens(NodeLost, "node0")
    assert (cluster.state.total_gpus, sorted(cluster.state.active)) == (4, [0, 1])
    cluster.happens(NodeJoined, "node0", 4)
    cluster.settle()
    assert (cluster.state.total_gpus, nodes(cluster)) == (4, [(1,), (1,)])
    cluster.state.validate()
    cluster.happens(NodeOpened, "node0")
    assert cluster.state.total_gpus == 8
    cluster.state.validate()


def test_a_job_that_only_closed_nodes_are_large_enough_for_waits_for_these(cluster):
    cluster.happens(NodeClosed, "node0")
    cluster.happens(JobSubmitted, job("c", 8))
    cluster.settle()
    assert cluster.state.reason[2] == Reason.NODE_CLOSED
    cluster.happens(JobSubmitted, job("d", 9))
    cluster.settle()
    assert cluster.state.reason[3] == Reason.NEVER_FITS


@pytest.mark.parametrize("event", [NodeClosed, NodeOpened])
def test_only_a_node_that_has_joined_can_be_closed_and_opened(event):
    with pytest.raises(TransitionError, match="node7"):
        DrivenCluster().happens(event, "node7")


def test_a_gang_that_stays_takes_its_gpus_of_open_nodes_from_no_other_job():
    """It is partly on a closed node; a policy gives the rest of its GPUs to others meanwhile."""
    cluster = DrivenCluster(job("a", 6), cluster="2x4")
    cluster.settle()
    pin(cluster, 0)
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    home = cluster.state.home[0]
    assert home.parts == ((0, 0b1111), (1, 0b11))
    cluster.happens(NodeClosed, "node0")
    cluster.happens(JobSubmitted, job("b", 4))
    cluster.settle()
    cluster.happens(ResumeRequested, 0)
    cluster.settle()
    cluster.state.validate()
    assert cluster.state.reason[0] == Reason.WAIT_TOPOLOGY
    cluster.happens(JobFinished, 1, JobState.SUCCEEDED)
    cluster.happens(JobSubmitted, job("c", 4))
    cluster.settle()
    assert (cluster.state.held[0].parts, cluster.state.held[2]) == (home.parts, None)
    cluster.state.validate()
