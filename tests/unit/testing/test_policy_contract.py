"""The contract suite must catch policies that break it."""

import pytest

from rota.errors import PlanError, PolicyError
from rota.model.allocation import Allocation
from rota.model.reason import Reason
from rota.policy.ordering.fifo import FifoBackfill
from rota.testing.policy_contract import FREE, PolicyContract


class SplitsGangs(FifoBackfill):
    def decide(self, view):
        plan = super().decide(view)
        for row, allocation in plan.allocations.items():
            if allocation and allocation.num_gpus > 1:
                plan.allocations[row] = Allocation(((allocation.parts[0][0], 1),))
        return plan


class Idles(FifoBackfill):
    def decide(self, view):
        plan = super().decide(view)
        return plan if view.now_s > 60 else plan._replace(allocations={}, wake_at_s=61.0)


class WritesIntoTheView(FifoBackfill):
    def decide(self, view):
        for row in view.active:
            view.priority[row] += 1
        return super().decide(view)


class GivesNoReason(FifoBackfill):
    def decide(self, view):
        plan = super().decide(view)
        return plan._replace(reasons=dict.fromkeys(view.active, Reason.NONE))


class CountsItsDecisions(FifoBackfill):
    def __init__(self):
        super().__init__()
        self.count = 0

    def decide(self, view):
        self.count += 1
        return super().decide(view)._replace(policy_mark=self.count)


class DecidesByItsIndex(FifoBackfill):
    def decide(self, view):
        indexed = view.plan is not None and bool(view.active)
        return super().decide(view)._replace(wake_at_s=view.now_s + 50.0 if indexed else None)


class RemembersWhatJsonForgets(FifoBackfill):
    def decide(self, view):
        known = view.policy_mark or {}
        seen = {row: known.get(row, view.now_s) for row in view.active}  # keys become text
        return super().decide(view)._replace(policy_mark=seen)


class DiffersEachTimeItIsMade(FifoBackfill):
    made = 0

    def __init__(self):
        super().__init__()
        DiffersEachTimeItIsMade.made += 1
        self.pause_s = 50.0 + self.made

    def decide(self, view):
        wake_at_s = view.now_s + self.pause_s if view.active else None
        return super().decide(view)._replace(wake_at_s=wake_at_s)


class Preempts(FifoBackfill):
    def decide(self, view):
        what_if = view.what_if()
        for row in [row for row in view.active if view.target[row] is not None]:
            what_if.release(row, Reason.PREEMPTED_BY)
        wake_at_s = view.now_s + 50.0 if view.active else None
        if what_if.plan().allocations:
            return what_if.plan(wake_at_s=wake_at_s)
        return super().decide(view)._replace(wake_at_s=wake_at_s)


def test_a_good_policy_passes_what_the_bad_ones_fail():
    assert not failures(FifoBackfill, preemptive=False)


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        (SplitsGangs, "gangs_are_whole"),
        (Idles, "no_job_waits"),
        (WritesIntoTheView, "deciding_changes_nothing"),
        (GivesNoReason, "has_a_reason"),
        (DiffersEachTimeItIsMade, "gives_the_same_events_twice"),
        (CountsItsDecisions, "rebuilt_policy"),
        (DecidesByItsIndex, "indexes_thrown_away"),
        (RemembersWhatJsonForgets, "rebuilt_policy"),
        (Preempts, "keeps_its_gpus"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_the_suite_catches_a_policy_that(policy, promise):
    assert any(promise in name for name in failures(policy, preemptive=False))


def failures(policy_class, **flags):
    """The names of the contract's tests that the policy fails, with the first seed."""
    suite = type("Suite", (PolicyContract,), {**flags, "policy": lambda self: policy_class()})()
    failed = []
    for name in dir(suite):
        if not name.startswith("test_"):
            continue
        test = getattr(suite, name)
        wants = test.__code__.co_varnames[: test.__code__.co_argcount]
        arguments = {"seed": 2, "costs": FREE, "how": "drained"}
        try:
            test(**{key: value for key, value in arguments.items() if key in wants})
        except (AssertionError, PlanError, PolicyError, pytest.fail.Exception):
            failed.append(name)
        except pytest.skip.Exception:
            pass
    return failed
