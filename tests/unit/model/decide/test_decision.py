"""A plan that breaks the contract is refused before anything has changed."""

import math

import pytest

from rota.errors import PlanError, PolicyError
from rota.model.allocation import Allocation, on_node
from rota.model.decide.decision import Decider, take_decision
from rota.model.decide.plain import is_plain
from rota.model.events import JobSubmitted, NodeJoined, ResumeRequested, WorkerRegistered
from rota.model.job import JobState, Suspension
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.policy.base import Policy
from rota.testing.builders import job
from support.driven import DrivenCluster, cluster_with_a_job_that_is


class Says(Policy):
    """A policy that gives one fixed plan."""

    def __init__(self, **plan):
        self.plan = Plan(**{"allocations": {}, "reasons": {}, "marks": {}} | plan)

    def decide(self, view):
        return self.plan


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ({"reasons": {0: 99}}, "reason 99"),
        ({"marks": {0: (1, 2)}}, "remember"),
        ({"policy_mark": math.inf}, "remember"),
        ({"reasons": {7: 1}}, "row 7"),
        ({"wake_at_s": -1.0}, "woken"),
        ({"allocations": {0: on_node(9, 1)}}, "node 9"),
    ],
    ids=["unknown reason", "tuple mark", "infinite mark", "unknown job", "past wake", "no node"],
)
def test_it_is_refused_and_the_state_stays(plan, what):
    state = cluster_with_a_job_that_is(JobState.PENDING).state
    before = (state.decision_seq, list(state.reason), list(state.target), list(state.marks))
    with pytest.raises(PlanError, match=what):
        take_decision(state, Says(**plan), 1000.0)
    assert before == (state.decision_seq, list(state.reason), list(state.target), state.marks)


class Broken(Policy):
    """It gives a job GPUs that are not there, or reads a row that is not."""

    def __init__(self, *, plans: bool) -> None:
        self.plans = plans

    def decide(self, view):
        if self.plans:
            view.what_if().give(0, on_node(7, 1))
        return view.submit_s[99]


@pytest.mark.parametrize(("plans", "word"), [(True, "Error"), (False, "IndexError: ")])
def test_an_exception_of_a_policy_is_told_by_its_file_and_line(plans, word):
    cluster = DrivenCluster(job("a"))
    with pytest.raises((PolicyError, PlanError)) as error:
        take_decision(cluster.state, Broken(plans=plans), 0.0)
    assert str(error.value).startswith("policy Broken: ")
    assert word in str(error.value)
    assert f"({__file__}, line " in str(error.value)
    assert "in decide)" in str(error.value)


def test_a_job_that_must_stay_is_not_moved():
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDED)
    state = cluster.state
    if 0 not in state.active:
        cluster.happens(ResumeRequested, 0)
    cluster.happens(WorkerRegistered, 0, Suspension.PROCESS, False)
    home, whole_gang = state.home[0], (1 << state.num_gpus[0]) - 1
    other = next(on_node(n, whole_gang) for n in range(len(state.nodes)) if n not in home.nodes())
    with pytest.raises(PlanError, match="go on only on"):
        take_decision(state, Says(allocations={0: other}), 1000.0)
    take_decision(state, Says(allocations={0: home}), 1000.0)
    assert state.target[0] == home


@pytest.mark.parametrize(
    "value", [None, 1, 0.5, "x", [1, [2.0, None]], {"a": [1]}, [1e308, 1e308], [10**400, 0.5]]
)
def test_plain_values_can_be_remembered(value):
    assert is_plain(value)


@pytest.mark.parametrize(
    "value",
    [(1,), {1: 2}, math.nan, {"a": (1,)}, object(), {1}, [1.0, math.inf], [math.inf, -math.inf]],
)
def test_values_that_json_changes_can_not(value):
    assert not is_plain(value)


class Tries(Policy):
    """A policy that makes a plan on a what-if, and may lay hands on both."""

    def __init__(self, meddle=None):
        self.meddle = meddle
        self.plan = None

    def decide(self, view):
        if self.plan is None:
            what_if = view.what_if()
            what_if.give(1, on_node(1, 0b0011))
            self.plan = what_if.plan()
            if self.meddle is not None:
                self.meddle(what_if, self.plan)
        return self.plan


def two_nodes():
    """Job 0 runs on GPUs 0 and 1 of node 0; job 1 waits for two."""
    cluster = DrivenCluster(job(0, 2), cluster="2x4")
    cluster.settle()
    cluster.happens(JobSubmitted, job(1, 2))
    return cluster


def swaps_a_node_for_another(what_if, plan):
    """As a policy may that asks what would come of it, and forgets to undo it."""
    what_if.free.take(on_node(0, 0b1100))
    what_if.free.give(on_node(1, 0b0011))


@pytest.mark.parametrize(
    "meddle",
    [
        None,
        lambda what_if, plan: plan.allocations.update({1: on_node(1, 0b1100)}),
        lambda what_if, plan: plan.allocations.clear(),
        lambda what_if, plan: what_if.release(1, Reason.PREEMPTED_BY),
        swaps_a_node_for_another,
    ],
    ids=[
        "as it was tried",
        "other GPUs",
        "emptied",
        "it goes on",
        "free GPUs changed by hand",
    ],
)
def test_the_free_gpus_are_right_whatever_becomes_of_a_plan_after_its_trial(meddle):
    cluster = two_nodes()
    policy = Tries(meddle)
    take_decision(cluster.state, policy, 1.0)
    assert cluster.state.target[1] == policy.plan.allocations.get(1)
    cluster.state.validate()


@pytest.mark.parametrize(
    ("allocation", "what"),
    [
        (on_node(0, 0b0110), "taken"),
        (on_node(1, 0b0111), "gang of 2"),
        (on_node(9, 0b11), "node 9"),
    ],
    ids=["GPUs of another", "too many", "no such node"],
)
def test_what_a_plan_is_changed_to_after_its_trial_is_held_against_the_contract(allocation, what):
    cluster = two_nodes()
    policy = Tries(lambda what_if, plan: plan.allocations.update({1: allocation}))
    with pytest.raises(PlanError, match=what):
        take_decision(cluster.state, policy, 1.0)
    assert cluster.state.target[1] is None
    cluster.state.validate()


def test_gpus_that_a_trial_takes_for_free_because_of_changes_by_hand_are_refused():
    class Fools(Policy):
        def decide(self, view):
            what_if = view.what_if()
            what_if.free.give(on_node(0, 0b0011))
            what_if.give(1, on_node(0, 0b0011))
            return what_if.plan()

    cluster = two_nodes()
    with pytest.raises(PlanError, match="taken"):
        take_decision(cluster.state, Fools(), 1.0)
    cluster.state.validate()


def test_a_plan_tried_at_an_earlier_decision_is_not_believed():
    cluster = two_nodes()
    policy = Tries()
    decider = Decider(cluster.state, policy)
    decider.decide(1.0)
    cluster.happens(JobSubmitted, job(2, 4))
    decider.decide(2.0)
    cluster.state.validate()
    policy.plan.allocations[2] = on_node(1, 0b1111)
    with pytest.raises(PlanError, match="taken"):
        decider.decide(3.0)


def test_a_decision_read_from_a_log_comes_to_the_same_as_one_just_taken():
    cluster, again = two_nodes(), two_nodes()
    again.state.apply(take_decision(cluster.state, Tries(), 1.0))
    for free in (lambda state: state.assumed, lambda state: state.idle):
        assert free(cluster.state).masks == free(again.state).masks
        assert free(cluster.state).by_count == free(again.state).by_count
    assert cluster.state.target == again.state.target


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_the_plan_that_a_view_shows_is_the_very_one_of_the_policy_on_any_node(kind):
    """By that policies know that their indexes are still valid."""
    state = ClusterState()
    state.apply(NodeJoined(0.0, "n0", 4, kind))
    state.apply(JobSubmitted(0.0, job(0, 2)))
    policy = Says(allocations={0: on_node(0, 0b11)})
    take_decision(state, policy, 1.0)
    assert state.plan is policy.plan


def test_a_live_plan_that_can_not_be_carried_out_as_it_is_is_not_shown_as_the_policy_s():
    state = ClusterState()
    for name in ("n0", "n1"):
        state.apply(NodeJoined(0.0, name, 2, "cpu"))
    state.apply(JobSubmitted(0.0, job(0, 2)))
    policy = Says(allocations={0: Allocation(((0, 1), (1, 1)))})
    take_decision(state, policy, 1.0)
    assert state.target[0] == on_node(0, 0b11)
    assert state.plan is not policy.plan
