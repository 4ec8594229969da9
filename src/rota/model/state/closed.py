"""Jobs on nodes that take no new ones: those that stay, and those that leave.

On a cordoned node a job that runs goes on to its end, and one that is suspended stays only if it
can't go on elsewhere. On a node that is drained only those stay that can't go on elsewhere. What
stays is no policy's business: while its GPUs are free it has them. A background job leaves any
closed node at once, and waits for its opening if it can't go on elsewhere.

All jobs on a node that is not heard stay: what runs goes on, and the state of what is suspended
can't be fetched. Nothing is given to them there.
"""

from __future__ import annotations

from collections import Counter

from rota.model.allocation import Allocation, of_parts
from rota.model.events import (
    BurstPlanned,
    JobSubmitted,
    MetricReported,
    ModelReported,
    WorkerReported,
)
from rota.model.reason import Reason
from rota.model.state.ledger import NO_REASON, Ledger

# Events after which no job has come to a closed node, or left one: most of those of a busy cluster.
UNCONCERNED = frozenset({BurstPlanned, JobSubmitted, MetricReported, ModelReported, WorkerReported})


def settle_jobs(ledger: Ledger) -> None:
    """Determine which jobs stay on closed nodes, and which of these have their GPUs.

    Called after each event that is not UNCONCERNED while a node is shut.
    """
    shut = ledger.shut
    waiting = []
    for row in sorted(ledger.active.keys() | ledger.staying.keys()):
        place, target = ledger.held[row] or ledger.home[row], ledger.target[row]
        if place is not None and _stays(ledger, row, place):
            if row in ledger.active:
                del ledger.active[row]
                ledger.staying[row] = None
                ledger.note_change(row)
            if target is None and _is_unreachable(ledger, place):
                ledger.reason[row] = Reason.NODE_UNHEALTHY
            elif target is None:
                waiting.append(row)
            continue
        if row in ledger.staying:
            del ledger.staying[row]
            ledger.active[row] = None
            ledger.reason[row] = Reason.WAIT_PRIORITY
            ledger.note_change(row)
        if target is not None and not shut.isdisjoint(target.nodes()):
            ledger.untarget(row)
            ledger.reason[row] = Reason.WAIT_PRIORITY
            ledger.note_change(row)
    for row in ledger.background:
        target = ledger.target[row]
        if target is not None and not shut.isdisjoint(target.nodes()):
            ledger.untarget(row)
            ledger.wait(row)
            ledger.note_change(row)
    _give_back(ledger, waiting)
    for index in shut:
        for free in (ledger.assumed, ledger.assumed_background):
            if free.masks[index]:  # a job has left
                free.set_mask(index, 0)


def _stays(ledger: Ledger, row: int, place: Allocation) -> bool:
    """True if the job, with its processes or its state at ``place``, stays on a shut node."""
    shut = ledger.shut
    if shut.isdisjoint(place.nodes()):
        return False
    target = ledger.target[row]
    fixed = not ledger.portable[row] or _is_unreachable(ledger, place)
    if target is None:
        return fixed and ledger.held[row] is None
    if shut.isdisjoint(target.nodes()):
        return False
    drains = any(each in ledger.closed and ledger.closed[each].drains for each in place.nodes())
    return fixed or not drains


def _is_unreachable(ledger: Ledger, place: Allocation) -> bool:
    return not ledger.unreachable.keys().isdisjoint(place.nodes())


def _give_back(ledger: Ledger, waiting: list[int]) -> None:
    """Give suspended jobs that stay their former GPUs, in order, as these become free."""
    if not waiting:
        return
    taken, shut = Counter[int](), ledger.shut
    for row in ledger.staying:
        target = ledger.target[row]
        for node, mask in target.parts if target is not None else ():
            taken[node] |= mask
    for row in waiting:
        home = ledger.home[row]
        assert home is not None
        of_policy = [part for part in home.parts if part[0] not in shut]
        free = all(ledger.assumed.masks[node] & mask == mask for node, mask in of_policy)
        if not free or any(taken[node] & mask for node, mask in home.parts):
            ledger.reason[row] = Reason.WAIT_TOPOLOGY
            continue
        if of_policy:
            ledger.assumed.take(of_parts(of_policy))
        for node, mask in home.parts:
            taken[node] |= mask
        ledger.target[row] = of_parts(home.parts, False, home.batch)
        ledger.reason[row] = NO_REASON
        ledger.note_change(row)
        ledger.settle(row)
