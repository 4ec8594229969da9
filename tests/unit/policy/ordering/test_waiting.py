"""Lines of waiting jobs that are kept between decisions."""

import pytest

from rota.model.decide.decision import take_decision
from rota.model.events import JobFinished, NodeJoined, NodeLost, SuspendRequested
from rota.model.job import JobState
from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.ordering.waiting import Waiting
from rota.testing.builders import job
from support.driven import DrivenCluster

GANGS = (4, 2, 1, 2)


@pytest.fixture
def cluster():
    return DrivenCluster(*(job(i, gpus) for i, gpus in enumerate(GANGS)))


class Nobody(Policy):
    """A policy that starts nobody, and keeps the lines."""

    def __init__(self, waiting):
        self.waiting = waiting

    def decide(self, view):
        self.waiting.update(view)
        self.seen = view
        return self.waiting.sign(Plan({}, {}, {}))


def order(waiting, view, most_gpus=1 << 60):
    rows = []
    while (row := waiting.first(view, most_gpus)) is not None:
        rows.append(row)
        waiting.take(view, row)
    return rows


@pytest.mark.parametrize("by_size", [False, True])
def test_jobs_come_in_order_of_arrival(cluster, by_size):
    waiting = Waiting(by_size=by_size)
    view = View(cluster.state, 0.0, None)
    waiting.update(view)
    assert order(waiting, view) == [0, 1, 2, 3]


def test_by_size_the_first_that_fits_comes_though_a_larger_one_came_before(cluster):
    waiting = Waiting(by_size=True)
    view = View(cluster.state, 0.0, None)
    waiting.update(view)
    assert order(waiting, view, 2) == [1, 2, 3]


def test_only_what_changed_is_new_at_the_next_decision(cluster):
    waiting = Waiting(by_size=False)
    policy = Nobody(waiting)
    take_decision(cluster.state, policy, 1.0)
    assert waiting.new == [0, 1, 2, 3]
    cluster.happens(SuspendRequested, 1)
    take_decision(cluster.state, policy, 2.0)
    assert waiting.new == []
    assert order(waiting, policy.seen) == [0, 2, 3]


@pytest.mark.parametrize("event", [(NodeLost, "node0"), (NodeJoined, "node9", 4)])
def test_a_cluster_of_another_size_makes_everybody_new(cluster, event):
    waiting = Waiting(by_size=False)
    policy = Nobody(waiting)
    take_decision(cluster.state, policy, 1.0)
    cluster.happens(*event)
    take_decision(cluster.state, policy, 2.0)
    assert waiting.new == [0, 1, 2, 3]


def test_another_policys_plan_makes_the_lines_void(cluster):
    waiting = Waiting(by_size=False)
    policy = Nobody(waiting)
    take_decision(cluster.state, policy, 1.0)
    cluster.settle()  # by another policy
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    take_decision(cluster.state, policy, 2.0)
    assert waiting.new == [1, 2, 3]
