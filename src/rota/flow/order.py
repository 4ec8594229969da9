"""Which of several gang operations goes first on the devices that they share. Pure.

A *gang operation* runs on several devices at once and to completion. :mod:`rota.flow.island` tags
an operation once, when nothing but room on its devices is missing, and issues the waiting operation
with the smallest tag. An order makes tags, and sees neither a clock nor the devices.

Sources: FIFO is what Pathways does (Barham et al., MLSys 2022). Proportional shares are stride
scheduling (Waldspurger and Weihl, 1995), with a virtual time by device as in start-time fair
queueing (Goyal et al., SIGCOMM 1996).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from rota.errors import InputError

LEAST_COST_S = 5e-6  # no turn of a device costs less: an estimate of 0 would be free of charge


class Operation(NamedTuple):
    """One gang operation of a client.

    ``number`` is its place in the client's program and grows; ``devices`` are distinct and sorted;
    ``cost_s`` estimates the seconds that it has each of its devices; ``deadline_s`` is on any clock
    that all clients of the island share, None for no deadline; operations of one ``kind`` take
    equally long, which may be learned while they wait (:meth:`rota.flow.island.Island.took`).
    """

    number: int
    devices: tuple[int, ...]
    cost_s: float
    deadline_s: float | None = None
    kind: int = 0


Tag = tuple[Any, ...]  # of one order: compared with its other tags, the smallest goes first


class Order(Protocol):
    """What an island asks of an order; see the module."""

    def join(self, client: int, weight: float) -> None:
        """A client is there. Raises InputError unless ``weight`` is positive and finite."""

    def leave(self, client: int) -> None:
        """A client is gone, and what was kept of it is dropped."""

    def tag(self, client: int, operation: Operation, submission: int) -> Tag:
        """The tag of an operation that has begun to wait for room on its devices.

        ``submission`` numbers the operations of all clients as they were submitted.
        """

    def charge(self, client: int, operation: Operation, tag: Tag) -> None:
        """An operation with this tag was issued: its client pays for it."""


class Fifo:
    """First submitted, first issued. Weights have no effect."""

    def join(self, client: int, weight: float) -> None:
        """See :class:`Order`."""
        check_weight(weight)

    def leave(self, client: int) -> None:
        """See :class:`Order`."""

    def tag(self, client: int, operation: Operation, submission: int) -> Tag:
        """See :class:`Order`."""
        return (submission,)

    def charge(self, client: int, operation: Operation, tag: Tag) -> None:
        """See :class:`Order`."""


class EarliestDeadline(Fifo):
    """The earliest deadline first, operations without one last; ties by submission."""

    def tag(self, client: int, operation: Operation, submission: int) -> Tag:
        """See :class:`Order`."""
        deadline_s = operation.deadline_s
        return (math.inf if deadline_s is None else deadline_s, submission)


class _Account:
    """What a client has had of each device, in ticks divided by its weight."""

    __slots__ = ("passes", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.passes: dict[int, float] = {}


TICKS = 2.0**30  # a second: costs are whole ticks, so that sums of equal costs are exact


class Stride:
    """Each device is shared by weight among the clients that always wait for it.

    A client's *pass* on a device grows by a *step*, cost / weight, with each of its operations
    there. An operation starts at the largest of its client's passes on its devices; the smallest
    *middle*, start + step / 2, goes first, and of equal ones that which has waited longer. The
    *present* of a device is the largest middle issued on it. A client that joins, or had nothing to
    issue, has passes before the present; its next operation starts at the multiple of its step that
    is nearest to the present. So debt stays, and no credit is saved. Each device has passes of its
    own: those of clients on disjoint devices drift apart without end, and one of these clients
    would starve if a third came to the devices of both.

    Of two clients that wait on the same devices all the time, what they have had, in seconds
    divided by weight, differs by at most ``(cost_a / weight_a + cost_b / weight_b) / 2`` since both
    began, and by twice as much in any interval. So for n clients and operations of equal cost, the
    number of a client's operations in any window of issued ones is within ``1 + (n - 2) share`` of
    its share of the window. Within one it is, whoever has joined or idled before the window, for
    equal weights and for powers of two without a gap, such as 1, 2, 4, 8: what the multiples are
    for. Weights 1, 2, 8 miss it by a tenth of an operation.

    With a *quantum*, for devices that take long to change from one client to another, starts count
    in whole multiples of it, and of equal ones a client keeps its place among the others: it has up
    to quantum x weight seconds before another is next. Shares are off by as much.
    """

    def __init__(self, quantum_s: float = 0.0) -> None:
        self._quantum = quantum_s * TICKS
        self._accounts: dict[int, _Account] = {}
        self._present: dict[int, float] = {}
        self._tags = 0

    def join(self, client: int, weight: float) -> None:
        """See :class:`Order`."""
        check_weight(weight)
        self._accounts[client] = _Account(weight)

    def leave(self, client: int) -> None:
        """See :class:`Order`."""
        del self._accounts[client]

    def tag(self, client: int, operation: Operation, submission: int) -> Tag:
        """See :class:`Order`. The tag is (place, number or client, middle, end)."""
        account = self._accounts[client]
        passes, presents = account.passes, self._present
        start = present = 0.0
        for device in operation.devices:
            if (own := passes.get(device, 0.0)) > start:
                start = own
            if (there := presents.get(device, 0.0)) > present:
                present = there
        step = round(max(operation.cost_s, LEAST_COST_S) * TICKS) / account.weight
        if self._quantum:
            start = max(start, present // self._quantum * self._quantum)
            return (start // self._quantum, client, start + step / 2, start + step)
        if start < present:
            start = max(start, math.ceil(present / step - 0.5) * step)
        self._tags += 1
        return (start + step / 2, self._tags, start + step / 2, start + step)

    def charge(self, client: int, operation: Operation, tag: Tag) -> None:
        """See :class:`Order`."""
        passes, presents = self._accounts[client].passes, self._present
        _, _, middle, end = tag
        for device in operation.devices:
            passes[device] = end
            if middle > presents.get(device, 0.0):
                presents[device] = middle


def check_weight(weight: float) -> None:
    """Raise InputError unless a weight is positive and finite."""
    if not 0 < weight < math.inf:
        raise InputError(f"weight is {weight!r}: give a positive, finite number such as 1")
