"""A policy that fails stops no cluster: a fallback decides until the policy decides again."""

import pytest

from rota.errors import PlanError, PolicyError
from rota.model.allocation import on_node
from rota.model.commands import Launch
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.decide.fallback import LONGEST_RETRY_S, MOST_FAILURES, RETRY_S, retry_after_s
from rota.model.events import (
    CommandSent,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    NodeJoined,
    PolicyFailed,
)
from rota.model.fallback import IN_ORDER, WITHOUT_MARKS, WITHOUT_MEMORY, sentence
from rota.model.job import JobState, Program
from rota.model.state.state import ClusterState
from rota.policy.base import Policy
from rota.store.codec import decode, encode
from rota.testing.builders import job


class Remembers(Policy):
    """Every job gets the GPU of its row; a mark or a memory of the word ``poison`` is an error."""

    name = identity = "remembers"

    def decide(self, view):
        what_if = view.what_if()
        if view.policy_mark == "poison":
            raise KeyError(3)
        for row in view.active:
            if view.marks[row] == "poison":
                what_if.give(row, on_node(0, 0b11))
            if view.target[row] is None and row < 4 and view.num_gpus[row] == 1:
                what_if.give(row, on_node(0, 1 << row))
            what_if.mark(row, "seen")
        return what_if.plan(policy_mark="seen")


class Live:
    """A cluster of one live node with four GPUs; launches happen at once."""

    def __init__(self, policy, kind="cpu", gpus=4):
        self.state, self.policy, self.now_s = ClusterState(), policy, 0.0
        self.state.log = []
        self.errors = []
        self.state.apply(NodeJoined(0.0, "n0", gpus, kind))

    def submit(self, gpus=1):
        number, program = len(self.state.spec) + 1, Program("./x", "/w")
        spec = job(number, gpus, at=self.now_s)._replace(program=program, duration_s=None)
        self.state.apply(JobSubmitted(self.now_s, spec))
        return number - 1

    def decide(self):
        self.now_s += 1.0
        event = take_decision(self.state, self.policy, self.now_s, failed=self.errors.append)
        for command in diff(self.state):
            self.state.apply(CommandSent(self.now_s, command))
            if isinstance(command, Launch):
                self.state.apply(JobLaunched(self.now_s, command.row, command.attempt))
        self.state.validate()
        return event

    def running(self):
        return [row for row, each in enumerate(self.state.state) if each == JobState.RUNNING]


def test_a_job_that_the_error_names_is_decided_on_without_what_was_remembered_of_it():
    live = Live(Remembers())
    first, second = live.submit(), live.submit()
    assert live.decide().fallback == ""
    live.state.marks[first] = "poison"
    third = live.submit()
    event = live.decide()
    assert (event.fallback, live.running()) == (WITHOUT_MARKS, [first, second, third])
    assert isinstance(live.errors[0], PlanError)
    assert live.errors[0].rows == (first,)
    assert live.state.marks[first] == "seen"
    assert live.decide().fallback == ""
    assert live.state.fallback.by == ""


def test_after_any_other_error_jobs_start_in_order_and_none_loses_its_gpus():
    live = Live(Remembers())
    first = live.submit()
    live.decide()
    live.state.policy_mark = "poison"
    second, large, small = live.submit(), live.submit(3), live.submit()
    event = live.decide()
    assert event.fallback == IN_ORDER
    assert live.running() == [first, second, small]
    assert live.state.policy_mark == "poison", "its memory stays"
    assert event.wake_at_s == live.now_s + RETRY_S
    live.state.apply(JobFinished(live.now_s, first, JobState.SUCCEEDED))
    live.state.policy_mark = None
    assert live.decide().fallback == ""
    assert live.state.fallback == type(live.state.fallback)()
    assert live.state.target[large] is None


class Ends(BaseException):
    """What ``except Exception`` lets pass."""


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), Ends("enough")])
def test_a_policy_that_ends_its_program_has_failed_like_any_other(error, monkeypatch):
    live = Live(Remembers())
    first = live.submit()

    def decide(_):
        raise error

    monkeypatch.setattr(live.policy, "decide", decide)
    assert live.decide().fallback == IN_ORDER
    assert live.running() == [first]
    assert isinstance(live.errors[0], PolicyError)


def test_a_policy_that_goes_on_failing_is_asked_less_often_and_then_without_its_memory():
    live = Live(Remembers())
    live.submit()
    live.decide()
    live.state.policy_mark = "poison"
    ways = [live.decide().fallback for _ in range(MOST_FAILURES + 1)]
    assert ways == [IN_ORDER] * MOST_FAILURES + [WITHOUT_MEMORY]
    assert (live.state.policy_mark, live.state.marks[0]) == ("seen", "seen")
    assert live.decide().fallback == ""
    waits = [retry_after_s(failures) for failures in range(12)]
    assert waits[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert waits[-1] == LONGEST_RETRY_S


class Nothing(Policy):
    """Starts nothing, and loses nothing."""

    name = "nothing"

    def decide(self, view):
        return view.unchanged()


def test_another_fallback_than_the_usual_one_is_told_by_its_name():
    live = Live(Remembers())
    live.policy.fallback = Nothing
    live.submit()
    live.state.policy, live.state.policy_mark = "remembers", "poison"
    ways = [live.decide().fallback for _ in range(MOST_FAILURES + 1)]
    assert ways == ["nothing"] * MOST_FAILURES + [WITHOUT_MEMORY]
    assert sentence("nothing") == "until it decides again, the policy nothing decides"


@pytest.mark.parametrize("plan", [None, 7, (1, 2)])
def test_what_is_no_plan_is_a_failure_as_any_other(plan):
    policy = Remembers()
    policy.decide = lambda view: plan
    live = Live(policy)
    row = live.submit()
    assert live.decide().fallback == IN_ORDER
    assert live.running() == [row]


def test_a_replay_of_the_log_comes_to_the_same_decisions_and_commands():
    live = Live(Remembers())
    live.submit()
    live.decide()
    live.state.apply(PolicyFailed(live.now_s, "remembers", "KeyError: 3"))
    poisoned = DecisionTaken(live.now_s, 2, "remembers", {}, {}, {0: "poison"}, "poison", None)
    live.state.apply(poisoned)
    for _ in range(MOST_FAILURES + 2):
        live.submit()
        live.decide()
    log = [decode(encode(event)) for event in live.state.log]
    again, ways = ClusterState(), []
    for event in log:
        if isinstance(event, DecisionTaken) and event != poisoned:
            assert take_decision(again, Remembers(), event.at_s) == event
            ways.append(event.fallback)
        elif isinstance(event, CommandSent):
            assert event.command in diff(again)
            again.apply(event)
        else:
            again.apply(event)
    assert {IN_ORDER, WITHOUT_MEMORY, ""} <= set(ways)


def test_a_simulation_ends_with_the_error():
    live = Live(Remembers(), kind="gpu")
    live.submit()
    live.decide()
    live.state.policy_mark = "poison"
    live.state.decision_needed = True
    with pytest.raises(PolicyError, match="KeyError: 3"):
        live.decide()
