"""How many nodes the queue asks for."""

import pytest

from rota.model.cluster import Node
from rota.model.decide.nodes_wanted import nodes_wanted
from rota.model.events import (
    JobFinished,
    JobSubmitted,
    NodeClosed,
    NodeLost,
    SuspendRequested,
    WorkerRegistered,
    joined,
)
from rota.model.job import JobState, Program, Suspension
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.testing.builders import job
from support.driven import DrivenCluster


@pytest.fixture
def queue():
    """Makes a cluster on which jobs of these sizes have come, and been decided on."""

    def make(*sizes, cluster="1x4", **about):
        driven = DrivenCluster(
            *(job(str(n), size, **about) for n, size in enumerate(sizes)), cluster=cluster
        )
        driven.settle()
        return driven

    return make


def test_a_cluster_without_nodes_or_jobs_asks_for_none(queue):
    assert nodes_wanted(ClusterState()) == 0
    assert nodes_wanted(queue(cluster="3x4").state) == 0


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((1,), 1),
        ((4, 4), 2),
        ((4, 1, 3), 2),  # together on the second one
        ((2, 3, 3), 3),
        ((4, 1, 3, 2, 2), 3),
        ((4, 5), 1),  # no node is large enough
    ],
)
def test_it_asks_for_the_nodes_on_which_all_jobs_have_their_gpus(queue, sizes, wanted):
    assert nodes_wanted(queue(*sizes).state) == wanted


def test_free_gpus_come_first_those_of_nodes_in_use_before_others(queue):
    cluster = queue(2, cluster="3x4")
    cluster.happens(JobSubmitted, job("a", 2))
    cluster.happens(JobSubmitted, job("b", 1))
    assert nodes_wanted(cluster.state) == 2


def test_a_node_is_in_use_until_its_last_job_has_ended(queue):
    cluster = queue(4, 4, cluster="3x4")
    assert nodes_wanted(cluster.state) == 2
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert nodes_wanted(cluster.state) == 1


def test_jobs_that_their_owners_hold_ask_for_none(queue):
    cluster = queue(4, 4)
    cluster.happens(SuspendRequested, 1)
    assert nodes_wanted(cluster.state) == 1


def test_jobs_of_another_type_of_gpu_ask_for_none(queue):
    wants = {"gpu_types": ("a100",)}
    assert nodes_wanted(queue(4, 4, cluster="1x4:t4", **wants).state) == 1
    assert nodes_wanted(queue(4, 4, cluster="1x4:a100", **wants).state) == 2


@pytest.mark.parametrize(("portable", "wanted"), [(True, 2), (False, 1)])
def test_jobs_of_a_node_that_is_left_want_another_one_if_they_can_go(queue, portable, wanted):
    cluster = queue(2)
    cluster.happens(WorkerRegistered, 0, Suspension.PROCESS, True, False, 0, portable)
    cluster.happens(NodeClosed, "node0", True, 100.0)
    assert nodes_wanted(cluster.state) == wanted


def test_nodes_that_are_gone_do_not_count(queue):
    cluster = queue(4, cluster="2x4")
    cluster.happens(NodeClosed, "node1")
    assert nodes_wanted(cluster.state) == 2
    cluster.happens(NodeLost, "node1")
    assert nodes_wanted(cluster.state) == 1


def reached(*sizes, most_nodes, nodes=1, reach="10.0.0.1", processes="gpu"):
    """A live cluster of nodes of 4 GPUs with gangs of these sizes, decided on."""
    driven = DrivenCluster(cluster="", most_nodes=most_nodes)
    for number in range(nodes):
        driven.state.apply(joined(0.0, Node(f"n{number}", 4, "cuda", reach=reach)))
    program = Program("python train.py", "/work", processes=processes)
    for number, size in enumerate(sizes):
        driven.happens(JobSubmitted, job(str(number), size, program=program))
    driven.settle()
    return driven.state


@pytest.mark.parametrize(
    ("sizes", "nodes", "wanted"),
    [
        ((8,), 1, 2),
        ((9,), 1, 3),
        ((12, 4), 1, 4),
        ((6, 2), 1, 2),  # together on the second one
        ((4, 6), 1, 3),
        ((3, 6), 2, 3),  # what the first one leaves is not enough
        ((33,), 1, 0),  # more than eight nodes have
        ((33, 8), 1, 2),
    ],
)
def test_a_gang_that_is_larger_than_a_node_asks_for_several(sizes, nodes, wanted):
    assert nodes_wanted(reached(*sizes, nodes=nodes, most_nodes=8), 8) == wanted


def test_a_gang_asks_for_no_second_node_that_can_not_call_the_first_or_have_its_processes():
    assert nodes_wanted(reached(8, most_nodes=8, reach=""), 8) == 0
    assert nodes_wanted(reached(8, most_nodes=8, processes="node"), 8) == 0


@pytest.mark.parametrize(
    ("most_nodes", "told"), [(2, Reason.WAIT_RESOURCES), (1, Reason.NEVER_FITS)]
)
def test_a_gang_is_told_to_wait_for_nodes_that_can_still_be_asked_for(most_nodes, told):
    state = reached(8, 4, most_nodes=most_nodes)
    assert state.reason[0] == told
    assert state.target[1] is not None, "others do not wait for it"
