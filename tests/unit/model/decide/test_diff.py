"""From a plan to commands: which can be sent now, which must wait, and of which kind."""

import pytest

from rota.errors import PlanError
from rota.model.allocation import Allocation, on_node
from rota.model.commands import Launch, Migrate, Resume, Stop, Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import JobFinished, JobSubmitted, StopRequested
from rota.model.job import JobState
from rota.model.plan import Plan
from rota.policy.base import Policy
from rota.testing.builders import job
from support.driven import DrivenCluster, cluster_with_a_job_that_is


class Says(Policy):
    """A policy that gives the plan it was given."""

    def __init__(self, allocations=None, **rest):
        rest = {"reasons": {}, "marks": {}} | rest
        self.plan = Plan(allocations or {}, **rest)

    def decide(self, view):
        return self.plan


def kinds(commands):
    return [(type(command), command.row) for command in commands]


def test_a_plan_becomes_launches_in_row_order_with_ids_that_rise():
    cluster = DrivenCluster(job(0), job(1), job(2))
    cluster.decide()
    commands = diff(cluster.state)
    assert kinds(commands) == [(Launch, 0), (Launch, 1), (Launch, 2)]
    ids = [command.command_id for command in commands]
    assert ids == sorted(set(ids))
    assert cluster.send() == commands
    assert diff(cluster.state) == []


def test_a_launch_waits_until_the_gpus_that_it_gets_are_released():
    cluster = DrivenCluster(job("old", 4), job("new", 4))
    cluster.settle()
    cluster.policy = Says({0: None, 1: on_node(0, 0b1111)}, reasons={0: 15})
    cluster.decide()
    (suspend,) = cluster.send()
    assert isinstance(suspend, Suspend)
    assert cluster.send() == []
    cluster.confirm(suspend)
    assert kinds(cluster.send()) == [(Launch, 1)]
    cluster.state.validate()


def test_new_gpus_on_the_same_node_are_a_resumption_and_on_another_a_migration():
    for node, kind in ((0, Resume), (1, Migrate)):
        cluster = DrivenCluster(job(0, 2), cluster="2x4")
        cluster.settle()
        cluster.policy = Says({0: on_node(node, 0b1100)})
        cluster.decide()
        (suspend,) = cluster.send()
        assert isinstance(suspend, Suspend)
        cluster.confirm(suspend)
        assert kinds(cluster.send()) == [(kind, 0)]


def test_a_target_that_is_taken_back_before_it_was_sent_needs_no_command():
    cluster = DrivenCluster(job(0, 2))
    cluster.decide()
    cluster.policy = Says({0: None}, reasons={0: 1})
    cluster.decide()
    assert cluster.send() == []
    assert not cluster.state.unsettled


def test_a_newer_target_waits_behind_the_command_on_its_way():
    cluster = DrivenCluster(job(0, 2))
    cluster.decide()
    (launch,) = cluster.send()
    cluster.policy = Says({0: None}, reasons={0: 1})
    cluster.decide()
    assert cluster.send() == []
    cluster.confirm(launch)
    assert kinds(cluster.send()) == [(Suspend, 0)]


def test_stops_and_suspensions_come_before_starts():
    cluster = DrivenCluster(job(0, 2), job(1, 2))
    cluster.settle()
    cluster.happens(JobSubmitted, job(2, 2))
    cluster.happens(StopRequested, 1)
    cluster.policy = Says({2: on_node(0, 0b1100)})
    cluster.decide()
    (stop,) = cluster.send()
    assert isinstance(stop, Stop)
    cluster.confirm(stop)
    assert kinds(cluster.send()) == [(Launch, 2)]


def test_two_jobs_are_never_promised_the_same_released_gpus():
    cluster = DrivenCluster(job(0, 4), job(1, 4))
    cluster.settle()
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.state.held == [None, on_node(0, 0b1111)]
    cluster.state.validate()


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        pytest.param(Says({0: on_node(0, 0b1)}), "gang of 2", id="part of a gang"),
        pytest.param(Says({0: on_node(5, 0b11)}), "not there", id="a node that is not there"),
        pytest.param(Says({0: on_node(0, 0b110000)}), "taken", id="GPUs that the node has not"),
        pytest.param(Says({0: on_node(0, 0b1100)}), "taken", id="GPUs that another job has"),
        pytest.param(
            Says({0: on_node(0, 0b11), 2: on_node(0, 0b11)}), "taken", id="GPUs given twice"
        ),
        pytest.param(Says({9: None}), "row 9", id="a job that does not exist"),
        pytest.param(Says(reasons={3: 1}), "row 3", id="a reason for a job that has ended"),
        pytest.param(Says(marks={3: 1}), "row 3", id="a mark for a job that has ended"),
        pytest.param(Says(wake_at_s=5.0), "no time after now", id="a wake-up now"),
        pytest.param(Says(wake_at_s=float("nan")), "no time after now", id="a wake-up at no time"),
    ],
)
def test_a_plan_that_breaks_the_contract_changes_nothing(policy, says):
    cluster = DrivenCluster(job(0, 2), job(1, 2), job(2, 2), job(3, 2))
    cluster.happens(StopRequested, 3)
    cluster.policy = Says({1: on_node(0, 0b1100)})
    cluster.settle()
    before = cluster.state.decision_seq, list(cluster.state.target), list(cluster.state.reason)
    cluster.now_s = 5.0
    with pytest.raises(PlanError, match=says):
        take_decision(cluster.state, policy, 5.0)
    after = cluster.state.decision_seq, list(cluster.state.target), list(cluster.state.reason)
    assert after == before
    cluster.state.validate()


def test_two_jobs_may_swap_their_gpus_in_one_plan():
    cluster = DrivenCluster(job(0, 2), job(1, 2))
    cluster.settle()
    left, right = cluster.state.held
    cluster.policy = Says({0: right, 1: left})
    cluster.settle()
    assert cluster.state.held == [right, left]
    cluster.state.validate()


def test_what_a_policy_remembers_dies_with_the_job_and_with_the_policy():
    cluster = DrivenCluster(job(0), job(1))
    cluster.policy = Says(marks={0: [1, 2], 1: [3]}, policy_mark="round")
    cluster.policy.identity = "a"
    cluster.decide()
    assert cluster.state.marks == [[1, 2], [3]]
    cluster.happens(StopRequested, 0)
    assert cluster.state.marks == [None, [3]]
    cluster.policy = Says()
    cluster.policy.identity = "b"
    cluster.decide()
    assert cluster.state.marks == [None, None]
    assert cluster.state.policy_mark is None


def test_a_gang_over_several_nodes_is_launched_whole_or_not_at_all():
    cluster = DrivenCluster(job("half", 2), job("wide", 8), cluster="2x4")
    cluster.policy = Says({0: on_node(0, 0b11)})
    cluster.settle()
    cluster.policy = Says({0: None, 1: Allocation(((0, 15), (1, 15)))}, reasons={0: 15})
    cluster.decide()
    (suspend,) = cluster.send()
    assert cluster.send() == []
    cluster.confirm(suspend)
    (launch,) = cluster.send()
    assert launch.allocation.num_gpus == 8


def test_a_stopping_job_is_told_once_at_a_time():
    cluster = cluster_with_a_job_that_is(JobState.STOPPING)
    assert kinds(cluster.send()) == [(Stop, 0)]
    assert cluster.send() == []
