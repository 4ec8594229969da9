"""Keeps jobs off a GPU where a stopped job's device memory leaves them too little.

A job whose processes are stopped as they are keeps its device memory. If a policy let it take turns
on a GPU with a job that needs more than what is left, the other would run out of memory, and fail.
So the first keeps its GPUs until it ends, whatever the policy plans, unless the two are known to
fit together. A background job keeps no GPU from others: agents have it give its memory up.
"""

from collections.abc import Callable

from rota.model.allocation import Allocation
from rota.model.decide.live_limits import MOST_ASKS, hidden, left_free, other_place
from rota.model.job import Suspension
from rota.model.measured.usage import fit_together, usage_of
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state.state import ClusterState


def leave_memory(state: ClusterState, plan: Plan, ask_again: Callable[[], Plan]) -> Plan:
    """The plan without the starts for which device memory of other jobs leaves no room.

    Jobs that were to make room but can't keep their GPUs, and the policy is asked again as if they
    were not there: ``ask_again`` gives that plan. A job that is still wanted beside the memory of
    suspended ones gets other free GPUs if there are any; else it waits with the reason
    WAIT_DEVICE_MEMORY. A plan without such starts is returned as it is.
    """
    if not (plan.allocations and state.has_device_memory):
        return plan
    keepers = memory_keepers(state)
    waiting, kept, out = set[int](), set[int](), set[int]()
    for _ in range(MOST_ASKS):
        if not (wrong := _without_room(state, plan, keepers)):
            break
        waiting.update(wrong)
        before = len(kept)
        kept.update(row for row in keepers if _makes_room(state, row, plan, wrong))
        if len(kept) == before:  # not these jobs are in the way, but suspended ones
            out.update(wrong, _waiting_unknown(state, plan))
        with hidden(state, kept | out):
            plan = ask_again()
    else:
        plan = _with_room(state, plan, _without_room(state, plan, keepers), keepers)
    if not waiting:
        return plan
    told = dict.fromkeys(kept, Reason.NONE) | {
        row: Reason.WAIT_DEVICE_MEMORY
        for row in waiting | out
        if plan.allocations.get(row, state.target[row]) is None
    }
    news = {row: code for row, code in (plan.reasons | told).items() if code != state.reason[row]}
    return plan._replace(reasons=news)


def _waiting_unknown(state: ClusterState, plan: Plan) -> list[int]:
    """Jobs without GPUs in the plan that, as far as is known, fit beside no other job."""
    return [
        row
        for row in state.active
        if plan.allocations.get(row, state.target[row]) is None
        and not state.has_processes(row)
        and usage_of(state, row).memory_gb is None
    ]


def _makes_room(state: ClusterState, row: int, plan: Plan, others: list[int]) -> bool:
    """True if the plan takes GPUs from the job for one of the others."""
    place, wanted = state.target[row], (plan.allocations[other] for other in others)
    if place is None or row not in plan.allocations or row not in state.active:
        return False
    return any(each is not None and _overlap(place, each) for each in wanted)


def _with_room(
    state: ClusterState, plan: Plan, wrong: list[int], keepers: dict[int, Allocation]
) -> Plan:
    """The plan with the ``wrong`` jobs on GPUs without kept memory, or on none.

    Keepers whose GPUs nobody gets then keep them.
    """
    free = left_free(state, plan, wrong)
    if free is None:
        return plan
    for place in keepers.values():
        for node, mask in place.parts:
            free.set_mask(node, free.masks[node] & ~mask)
    allocations, reasons = dict(plan.allocations), dict(plan.reasons)
    for row in wrong:
        wanted = plan.allocations[row]
        assert wanted is not None
        found = other_place(state, row, wanted.num_gpus, free)
        if found is not None:
            free.take(found)
            found = found.with_batch(wanted.batch)
        else:
            reasons[row] = Reason.WAIT_DEVICE_MEMORY
        allocations[row] = found
        if found == state.target[row]:
            del allocations[row]
    given = [place for place in allocations.values() if isinstance(place, Allocation)]
    for row in keepers:
        had, gets = state.target[row], allocations.get(row, state.target[row])
        if had is None or gets is not None or row not in state.active:
            continue
        if not any(_overlap(had, other) for other in given):
            del allocations[row]
            reasons.pop(row, None)
    return plan._replace(allocations=allocations, reasons=reasons)


def _without_room(state: ClusterState, plan: Plan, keepers: dict[int, Allocation]) -> list[int]:
    """The jobs that the plan places where kept memory leaves them no room."""
    after = {
        row: place
        for row in {*state.placed_rows(), *plan.allocations}
        if row in plan.allocations or row in state.active or row in state.staying
        if 0 <= row < len(state.spec)
        if isinstance(place := plan.allocations.get(row, state.target[row]), Allocation)
    }
    return [
        row for row in plan.allocations if row in after and not _fits(state, row, after, keepers)
    ]


def memory_keepers(state: ClusterState) -> dict[int, Allocation]:
    """The jobs that can't release their device memory, and the GPUs where it is, by row.

    Whether a job that has just started can is not known yet.
    """
    found = {}
    for row in state.placed_rows():
        place = state.held[row] or state.home[row] or state.target[row]
        if place is None or place.background or not state.has_processes(row):
            continue
        how = state.suspension[row]
        gives = how in (Suspension.CHECKPOINT, Suspension.RESTART) or (
            how == Suspension.BOUNDARY and (state.movable[row] or state.portable[row])
        )
        if state.spec[row].simulated:
            keeps = how == Suspension.PROCESS
        else:
            keeps = not gives and any(state.nodes[n].has_device_memory for n in place.nodes())
        if keeps:
            found[row] = place
    return dict(sorted(found.items()))


def _fits(
    state: ClusterState, row: int, after: dict[int, Allocation], keepers: dict[int, Allocation]
) -> bool:
    """True if the job has room at its place ``after`` the plan, beside the others' places."""
    place = after[row]
    if row in keepers:  # its memory is there already, and it can move to no other GPUs
        return _overlap(keepers[row], place)
    if place == state.target[row]:
        return True
    stopped = [
        other
        for other, where in keepers.items()
        if _overlap(where, place) and not _overlap(after.get(other), place)
    ]
    if not stopped:
        return True
    beside = [
        other
        for other, where in after.items()
        if other != row and other not in stopped and _overlap(where, place)
    ]
    needs_gb = (usage_of(state, other).memory_gb for other in (row, *stopped, *beside))
    return fit_together(needs_gb, min(state.nodes[node].memory_gb for node in place.nodes()))


def _overlap(one: Allocation | None, other: Allocation) -> bool:
    if one is None:
        return False
    masks = dict(other.parts)
    return any(mask & masks.get(node, 0) for node, mask in one.parts)
