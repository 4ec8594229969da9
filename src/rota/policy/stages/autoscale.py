"""Number of nodes to rent, by how well jobs use them (Pollux, OSDI 2021, section 4.2.2).

The *utility* of a cluster is the sum of its jobs' speedups over one GPU, divided by its GPUs. The
more nodes there are, the less each adds. While utility is within a band the number stays; outside
of it, it becomes that for which utility is nearest to the middle of the band.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from rota.model.allocation import on_node
from rota.model.notes import DesiredNodes
from rota.model.reason import Reason
from rota.model.view import View, WhatIf

DIGITS = 3  # of a utility that is noted: a mark is not written anew for less
MOST_NODES = 1_000_000
GIVEN = (0, 0)  # nodes are not asked for: there are those that there are

Number = TypeVar("Number", int, float)
Utility = Callable[[int], float]  # of so many nodes


def parse_nodes(text: str) -> tuple[int, int]:
    """``LEAST,MOST`` nodes to ask for; ``0,0`` for none. Raises ValueError."""
    least, most = _pair(text, int, "two whole numbers, for example 1,16")
    if (least, most) != GIVEN and not 1 <= least <= most <= MOST_NODES:
        raise ValueError("the least has to be 1 or more, and the most that or more, up to 1000000")
    return least, most


def parse_band(text: str) -> tuple[float, float]:
    """``LOW,HIGH``, the ends of a band of utility. Raises ValueError."""
    low, high = _pair(text, float, "two numbers, for example 0.35,0.65")
    if not 0 < low < high < 1:
        raise ValueError("it must be two rising numbers between 0 and 1")
    return low, high


def _pair(text: str, kind: Callable[[str], Number], form: str) -> tuple[Number, Number]:
    try:
        first, second = (kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"it must be {form}") from None
    return first, second


class Autoscaler(NamedTuple):
    """Asks for ``least`` to ``most`` nodes, so that utility is from ``low`` to ``high``.

    Above the band it asks for more at once, below it for fewer when it has been so for
    ``shrink_after_s`` without a break.
    """

    least: int
    most: int
    low: float
    high: float
    shrink_after_s: float

    def decide(
        self,
        now_s: float,
        before: DesiredNodes | None,
        *,
        there: int,
        needed: int,
        utility: Utility,
    ) -> DesiredNodes:
        """The desired number of nodes, where so many are ``there``.

        ``needed`` are the nodes without which a job could not run at all. The utility that comes
        with it is that of the nodes that are there and desired.
        """
        if not there:
            return DesiredNodes(self.least if before is None else before.desired, 0.0)
        least = min(max(self.least, needed), self.most)
        desired = min(max(there if before is None else before.desired, least), self.most)
        below_s = None if before is None else before.below_since_s
        found = utility(desired)
        if found > self.high and desired < self.most:
            desired, below_s = self._nearest(utility, desired, self.most), None
        elif found >= self.low or desired <= least:
            below_s = None
        else:
            below_s = now_s if below_s is None else below_s
            if now_s >= below_s + self.shrink_after_s:
                desired, below_s = self._nearest(utility, least, desired), None
        return DesiredNodes(desired, round(utility(min(there, desired)), DIGITS), below_s)

    def wake_at_s(self, wish: DesiredNodes) -> float | None:
        """Time of the next check if nothing happens before; None if none is needed."""
        return None if wish.below_since_s is None else wish.below_since_s + self.shrink_after_s

    def _nearest(self, utility: Utility, least: int, most: int) -> int:
        """The number of nodes of the utility nearest to the middle of the band, by bisection."""
        middle = (self.low + self.high) / 2
        if utility(most) >= middle:
            return most
        if utility(least) <= middle:
            return least
        while most - least > 1:
            half = (least + most) // 2
            least, most = (half, most) if utility(half) > middle else (least, half)
        return min(least, most, key=lambda nodes: abs(utility(nodes) - middle))


def wish_in(policy_mark: Any) -> DesiredNodes | None:
    """The number of nodes that a policy wanted, as its mark remembers under ``nodes``."""
    noted = policy_mark.get("nodes") if isinstance(policy_mark, dict) else None
    return None if noted is None else DesiredNodes(**noted)


def number_of_nodes(view: View) -> int:
    """Number of nodes in the cluster."""
    return sum(node.alive for node in view.nodes)


def leave_surplus(view: View, what_if: WhatIf, desired: int) -> int:
    """Take the jobs off nodes beyond the ``desired`` number; the GPUs of all that are kept.

    Those go of which jobs use least, and none with a job that can't go on elsewhere. The what-if
    has nothing free on them any more.
    """
    nodes, pinned = view.nodes, _pinned(view)
    used = [0] * len(nodes)
    for row in view.active:
        for node, mask in getattr(view.target[row], "parts", ()):
            used[node] += mask.bit_count()
    there = [index for index, node in enumerate(nodes) if node.alive]
    there.sort(key=lambda index: (index not in pinned, -used[index], index))
    surplus = set(there[desired:]) - pinned
    for row in list(view.active) if surplus else ():
        target = view.target[row]
        if target is not None and not surplus.isdisjoint(target.nodes()):
            what_if.release(row, Reason.WAIT_PRIORITY)
    for index in surplus:
        if mask := what_if.free.masks[index]:
            what_if.free.take(on_node(index, mask))
    return view.total_gpus - sum(nodes[index].num_gpus for index in surplus)


def _pinned(view: View) -> set[int]:
    """Nodes with jobs that, once suspended, could go on nowhere else."""
    movable, portable = view.movable, view.portable
    pinned: set[int] = set()
    for row in view.active:
        if not (movable[row] and portable[row]):
            for place in (view.target[row], view.home[row]):
                pinned.update(() if place is None else place.nodes())
    return pinned
