"""One turn of the wheel: ask the policy, check what it says, write it down as an event."""

from math import isfinite
from typing import Any

from rota.errors import PlanError
from rota.model.allocation import Allocation
from rota.model.events import DecisionTaken, new
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state import ClusterState
from rota.model.view import View, identity

CODES = frozenset(map(int, Reason))
NOTHING = Plan({}, {}, {})


class Decider:
    """Takes one decision after another by one policy on one state, with one view of it."""

    __slots__ = ("_identity", "_state", "_view", "policy")

    def __init__(self, state: ClusterState, policy: Any) -> None:
        self.policy = policy
        self._identity = identity(policy)
        self._state = state
        self._view = View(state, 0.0, policy)

    def decide(self, now_s: float) -> DecisionTaken:
        """Let the policy decide at ``now_s`` and apply its plan.

        Raises PlanError, before anything has changed, if the plan breaks the contract.
        """
        state = self._state
        if not self._view.renew(now_s):
            self._view = View(state, now_s, self.policy)
        plan: Plan = self.policy.decide(self._view)
        if plan != NOTHING:
            check(state, plan, now_s)
        event = new(DecisionTaken, (now_s, state.decision_seq + 1, self._identity, *plan))
        state.apply(event)
        state.plan = plan
        return event


def take_decision(state: ClusterState, policy: Any, now_s: float) -> DecisionTaken:
    """Let ``policy`` decide on ``state`` at ``now_s`` once; see :meth:`Decider.decide`."""
    return Decider(state, policy).decide(now_s)


def check(state: ClusterState, plan: Plan, now_s: float) -> None:
    """Hold a plan against the contract. Raises PlanError saying what it breaks."""
    allocations, reasons, marks, policy_mark, wake_at_s = plan
    if wake_at_s is not None and not wake_at_s > now_s:
        raise PlanError(
            f"the plan wants to be woken at {wake_at_s} s, which is not after now ({now_s} s)"
        )
    if not (allocations or reasons or marks or policy_mark is not None):
        return
    active = state.active
    for rows in (allocations, reasons, marks):
        for row in rows:
            if row not in active:
                raise PlanError(f"the plan speaks of row {row}, which is not an active job")
    for row, code in reasons.items():
        if code not in CODES:
            raise PlanError(f"the plan gives job {state.spec[row].job_id} the reason {code!r}")
    if policy_mark is not None:
        _check_mark(policy_mark)
    for mark in marks.values():
        _check_mark(mark)
    if allocations:
        _check_allocations(state, allocations)


def _check_mark(mark: Any) -> None:
    if not is_plain(mark):
        raise PlanError(f"the plan wants to remember {mark!r}, which JSON can't carry exactly")


def _check_allocations(state: ClusterState, allocations: dict[int, Allocation | None]) -> None:
    masks, free = state.assumed.masks, dict[int, int]()
    target, home, num_gpus = state.target, state.home, state.num_gpus
    for row in allocations:
        old = target[row]
        if old is not None:
            for node, mask in old.parts:
                free[node] = free.get(node, masks[node]) | mask
    for row, allocation in allocations.items():
        if allocation is None:
            continue
        if allocation.num_gpus != num_gpus[row]:
            raise PlanError(
                f"the plan gives job {state.spec[row].job_id} {allocation.num_gpus} GPUs; "
                f"it is a gang of {state.num_gpus[row]}"
            )
        if home[row] is not None and not state.movable[row] and allocation != home[row]:
            raise PlanError(
                f"the plan moves job {state.spec[row].job_id}, which can go on only on {home[row]}"
            )
        for node, mask in allocation.parts:
            if not 0 <= node < len(masks):
                raise PlanError(
                    f"the plan gives job {state.spec[row].job_id} GPUs of node {node}, "
                    "which is not there"
                )
            left = free.get(node, masks[node])
            if mask & ~left:
                raise PlanError(
                    f"the plan gives job {state.spec[row].job_id} GPUs of "
                    f"{state.nodes[node].name} that are taken"
                )
            free[node] = left & ~mask


def is_plain(value: Any) -> bool:
    """Whether JSON gives the value back as it is: numbers, text, lists and mappings from text."""
    if isinstance(value, list):
        for each in value:  # marks are lists of numbers: look at these without a call for each
            if type(each) is float:
                if not isfinite(each):
                    return False
            elif type(each) is not int and not is_plain(each):
                return False
        return True
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, str | int)
