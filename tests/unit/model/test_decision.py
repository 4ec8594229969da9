"""A plan that breaks the contract is refused before anything has changed."""

import math

import pytest

from rota.errors import PlanError
from rota.model.allocation import on_node
from rota.model.decision import is_plain, take_decision
from rota.model.events import ResumeRequested, WorkerRegistered
from rota.model.job import JobState, Suspension
from rota.model.plan import Plan
from rota.testing.driven import cluster_with_a_job_that_is


class Says:
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


@pytest.mark.parametrize("value", [None, 1, 0.5, "x", [1, [2.0, None]], {"a": [1]}])
def test_plain_values_can_be_remembered(value):
    assert is_plain(value)


@pytest.mark.parametrize("value", [(1,), {1: 2}, math.nan, {"a": (1,)}, object(), {1}])
def test_values_that_json_changes_can_not(value):
    assert not is_plain(value)
