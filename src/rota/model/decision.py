"""One turn of the wheel: ask the policy, check what it says, write it down as an event."""

import math
from typing import Any

from rota.errors import PlanError
from rota.model.events import DecisionTaken
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state import ClusterState
from rota.model.view import View, identity

CODES = frozenset(Reason)


def take_decision(state: ClusterState, policy: Any, now_s: float) -> DecisionTaken:
    """Let ``policy`` decide on ``state`` at ``now_s`` and apply its plan.

    Raises PlanError, before anything has changed, if the plan breaks the contract.
    """
    view = View(state, now_s, policy)
    plan: Plan = policy.decide(view)
    check(state, plan, now_s)
    event = DecisionTaken(
        now_s,
        state.decision_seq + 1,
        identity(policy),
        plan.allocations,
        plan.reasons,
        plan.marks,
        plan.policy_mark,
        plan.wake_at_s,
    )
    state.apply(event)
    state.plan = plan
    return event


def check(state: ClusterState, plan: Plan, now_s: float) -> None:
    """Hold a plan against the contract. Raises PlanError saying what it breaks."""
    if plan.wake_at_s is not None and not plan.wake_at_s > now_s:
        raise PlanError(
            f"the plan wants to be woken at {plan.wake_at_s} s, which is not after now ({now_s} s)"
        )
    for rows in (plan.allocations, plan.reasons, plan.marks):
        for row in rows:
            if row not in state.active:
                raise PlanError(f"the plan speaks of row {row}, which is not an active job")
    for row, code in plan.reasons.items():
        if code not in CODES:
            raise PlanError(f"the plan gives job {state.spec[row].job_id} the reason {code!r}")
    for mark in (plan.policy_mark, *plan.marks.values()):
        if not is_plain(mark):
            raise PlanError(f"the plan wants to remember {mark!r}, which JSON can't carry exactly")
    moved = {row: allocation for row, allocation in plan.allocations.items() if allocation}
    if not moved:
        return
    free = dict[int, int]()
    for row in plan.allocations:
        old = state.target[row]
        for node, mask in old.parts if old else ():
            free[node] = free.get(node, state.assumed.masks[node]) | mask
    for row, allocation in moved.items():
        name = state.spec[row].job_id
        if allocation.num_gpus != state.num_gpus[row]:
            raise PlanError(
                f"the plan gives job {name} {allocation.num_gpus} GPUs; "
                f"it is a gang of {state.num_gpus[row]}"
            )
        home = state.home[row]
        if home is not None and not state.movable[row] and allocation != home:
            raise PlanError(f"the plan moves job {name}, which can go on only on {home}")
        for node, mask in allocation.parts:
            if not 0 <= node < len(state.nodes):
                raise PlanError(
                    f"the plan gives job {name} GPUs of node {node}, which is not there"
                )
            left = free.get(node, state.assumed.masks[node])
            if mask & ~left:
                raise PlanError(
                    f"the plan gives job {name} GPUs of {state.nodes[node].name} that are taken"
                )
            free[node] = left & ~mask


def is_plain(value: Any) -> bool:
    """Whether JSON gives the value back as it is: numbers, text, lists and mappings from text."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | bool)
