"""Which of several gang operations goes first on the devices that they share. Pure.

A *gang operation* runs on several devices at once and to completion. :mod:`rota.flow.island` tags
an operation once, when nothing but room on its devices is missing, and issues the waiting operation
with the smallest tag. An order makes tags, and sees neither a clock nor the devices.

Sources: FIFO is Pathways' (Barham et al., MLSys 2022, section 4.4). Proportional shares are stride
scheduling (Waldspurger and Weihl, 1995) with the virtual time of start-time fair queueing (Goyal et
al., SIGCOMM 1996).
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
    that all clients of the island share, None for no deadline.
    """

    number: int
    devices: tuple[int, ...]
    cost_s: float
    deadline_s: float | None = None


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
    """What a client has had of each device, in seconds divided by its weight."""

    __slots__ = ("passes", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.passes: dict[int, float] = {}


class Stride:
    """Each device is shared by weight among the clients that always wait for it.

    A client's *pass* on a device grows by cost / weight with each of its operations there. An
    operation *starts* at the largest of its client's passes and of the *global passes* of its
    devices; the smallest middle, start + cost / (2 weight), goes first, ties by client number. A
    device's global pass is the latest start issued on it. So a client that joins, or that had
    nothing to issue, begins at the present: its debt stays, and it saves no credit. Each device has
    passes of its own: those of clients on disjoint devices drift apart without end, and one of
    these clients would starve if a third came to the devices of both.

    Of two clients that wait on the same devices all the time, what they have had, in seconds
    divided by weight, differs by at most ``(cost_a / weight_a + cost_b / weight_b) / 2`` since both
    began, and by twice as much in any interval. Starts or ends instead of middles double that.
    For operations of equal cost and weights 1:1:...:1 or 1:2:4:..., each client's number of
    operations in any window of issued ones is within one of its weight's share.
    """

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}
        self._global: dict[int, float] = {}

    def join(self, client: int, weight: float) -> None:
        """See :class:`Order`."""
        check_weight(weight)
        self._accounts[client] = _Account(weight)

    def leave(self, client: int) -> None:
        """See :class:`Order`."""
        del self._accounts[client]

    def tag(self, client: int, operation: Operation, submission: int) -> Tag:
        """See :class:`Order`. The tag is (middle, client, start, end)."""
        account = self._accounts[client]
        passes, everyone = account.passes, self._global
        start = 0.0
        for device in operation.devices:
            own, present = passes.get(device, 0.0), everyone.get(device, 0.0)
            if own > start:
                start = own
            if present > start:
                start = present
        cost_s = operation.cost_s
        step = (cost_s if cost_s > LEAST_COST_S else LEAST_COST_S) / account.weight
        return (start + step / 2, client, start, start + step)

    def charge(self, client: int, operation: Operation, tag: Tag) -> None:
        """See :class:`Order`."""
        passes, everyone = self._accounts[client].passes, self._global
        start, end = tag[2], tag[3]
        for device in operation.devices:
            passes[device] = end
            if start > everyone.get(device, 0.0):
                everyone[device] = start


def check_weight(weight: float) -> None:
    """Raise InputError unless a weight is positive and finite."""
    if not 0 < weight < math.inf:
        raise InputError(f"weight is {weight!r}: give a positive, finite number such as 1")
