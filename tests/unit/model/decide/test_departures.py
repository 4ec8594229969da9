"""Nodes that must go: when they are closed, and what makes that undone."""

import pytest

from rota.model.decide.departures import VACATE_S, closing_times, closings_due
from rota.model.events import (
    JobSubmitted,
    NodeClosed,
    NodeDeadlineChanged,
    NodeLost,
    NodeOpened,
    joined,
)
from rota.model.job import Program
from rota.model.view import View
from rota.testing.builders import job
from support.driven import DrivenCluster

LEAVES_S, TURN_S = 1000.0, 60.0
LAST_TURN_S, LEFT_S = LEAVES_S - VACATE_S - TURN_S, LEAVES_S - VACATE_S


@pytest.fixture
def cluster():
    """Two nodes of 4 GPUs, of which the first goes, with a job of 2 GPUs."""
    cluster = DrivenCluster(job("a", 2), cluster="2x4")
    cluster.settle()
    cluster.happens(NodeDeadlineChanged, "node0", LEAVES_S)
    return cluster


def at(cluster, now_s):
    """The closings of node0 that are due at that time, applied."""
    cluster.now_s = now_s
    due = closings_due(cluster.state, now_s, TURN_S)
    for event in due:
        cluster.state.apply(event)
    return [(event.drains, event.by_s) for event in due]


def nodes(cluster):
    return [held and held.nodes() for held in cluster.state.held]


def test_a_node_is_cordoned_before_its_last_turn_and_drained_in_time_to_be_left(cluster):
    assert closing_times(LEAVES_S, TURN_S) == (LAST_TURN_S, LEFT_S)
    assert dict(View(cluster.state, 0.0, cluster.policy).leaves_s) == {0: LEAVES_S}
    assert at(cluster, LAST_TURN_S - 1) == []
    assert at(cluster, LAST_TURN_S) == [(False, LEAVES_S)]
    assert at(cluster, LAST_TURN_S + 1) == []
    cluster.happens(JobSubmitted, job("b", 2))
    cluster.settle()
    assert nodes(cluster) == [(0,), (1,)]
    assert at(cluster, LEFT_S) == [(True, LEAVES_S)]
    assert at(cluster, LEFT_S + 1) == []
    cluster.settle()
    assert nodes(cluster) == [(1,), (1,)]
    cluster.state.validate()


def test_on_short_notice_it_is_drained_at_once(cluster):
    cluster.happens(NodeDeadlineChanged, "node1", 30.0)
    assert at(cluster, 0.0) == [(True, 30.0)]


@pytest.mark.parametrize("later_s", [None, 2 * LEAVES_S])
def test_a_node_that_need_not_go_yet_takes_jobs_again(cluster, later_s):
    at(cluster, LEFT_S)
    cluster.happens(NodeDeadlineChanged, "node0", later_s)
    assert cluster.state.closed == {}
    assert at(cluster, LEFT_S) == []
    cluster.happens(JobSubmitted, job("b", 4))
    cluster.settle()
    assert None not in nodes(cluster)


def test_what_an_administrator_closed_stays_closed(cluster):
    cluster.happens(NodeClosed, "node0", False, None, "ann")
    assert at(cluster, LAST_TURN_S) == []
    cluster.happens(NodeDeadlineChanged, "node0", None)
    assert cluster.state.closed == {0: (False, None)}


@pytest.mark.parametrize("by_s", [None, 2 * LEAVES_S])
def test_what_an_administrator_drains_for_longer_is_drained_by_then(cluster, by_s):
    cluster.happens(NodeClosed, "node0", True, by_s, "ann")
    assert at(cluster, LAST_TURN_S) == []
    assert at(cluster, LEFT_S) == [(True, LEAVES_S)]


def test_what_an_administrator_enables_is_closed_again(cluster):
    at(cluster, LEFT_S)
    cluster.happens(NodeOpened, "node0", "ann")
    assert at(cluster, LEFT_S + 1) == [(True, LEAVES_S)]


def test_a_node_that_is_gone_comes_back_without_a_deadline(cluster):
    at(cluster, LEFT_S)
    cluster.settle()
    node = cluster.state.nodes[0]
    cluster.happens(NodeLost, "node0")
    assert (cluster.state.leaves_s, cluster.state.closed) == ({}, {})
    cluster.state.apply(joined(LEAVES_S, node))
    assert cluster.state.total_gpus == 8
    cluster.state.validate()


@pytest.mark.parametrize(("grace_s", "before_s"), [(10.0, VACATE_S), (600.0, 660.0)])
def test_a_node_is_drained_early_enough_for_the_grace_of_its_jobs(grace_s, before_s):
    program = Program("python a.py", "/", suspend="restart", grace_s=grace_s)
    other = Program("python b.py", "/", grace_s=3000.0)  # it has no use for one
    jobs = (job("a", 2, program=program), job("b", 2, program=other))
    cluster = DrivenCluster(*jobs, cluster="1x4")
    cluster.settle()
    cluster.happens(NodeDeadlineChanged, "node0", LEAVES_S)
    left_s = LEAVES_S - before_s
    assert at(cluster, left_s - TURN_S - 1) == []
    assert at(cluster, left_s - 1) == [(False, LEAVES_S)]
    assert at(cluster, left_s) == [(True, LEAVES_S)]
