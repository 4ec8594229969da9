"""One total order of the gang operations on an island's devices. Pure: times are given as costs.

Clients submit operations, their workers say up to which operation their inputs are there, devices
say which turns are over; :meth:`Island.issue` answers with *tickets*. A ticket gives one operation
the next turn on each of its devices at once::

    island = Island(range(4), Stride())
    island.join(client=7, weight=1.0, devices=(0, 1))
    island.submit(7, [Operation(number=1, devices=(0, 1), cost_s=0.001)])
    island.ready(7, device=0, number=1)
    island.ready(7, device=1, number=1)
    island.issue()                    # [Ticket(client=7, number=1, turns=((0, 1), (1, 1)))]
    island.done(device=0, seq=1)

**No deadlock.** Suppose that every device runs its turns in the order of their numbers, and every
worker its operations in its client's order. Take the earliest ticket that is not over. All earlier
tickets are over, so its turns are the heads on all its devices. Its operation was issued after all
earlier operations of its client on each of these devices, so they are over as well, and after all
its workers were ready, so its inputs are there. Hence it runs, and ends; then so does the next one.
Nothing waits for an operation that is issued later.

**Who is issued.** An operation is a *candidate* if it is the first on each of its devices among its
client's operations that were not issued, and its workers are ready on all of them; so operations of
disjoint slices of a client don't wait for each other. A device has *room* while it has fewer than
``least`` turns that are not over, or while these cost less than ``window_s``: enough to keep it
busy, and few enough to serve a newcomer soon. Candidates are looked at in the order, and the first
that fits is issued, until none fits. A candidate fits if one of its devices has room, and if on
each of its devices without room

- no earlier candidate waits: so clients of the same devices never overtake each other;
- its client has fewer than ``least`` turns: so a gang with one slow device doesn't fill its queue.

A wide gang that had to find room on all devices at once would starve beside narrow ones. Here,
first in the order, it needs room on one of them, and few turns of its own. A device has nothing to
run only if each candidate that wants it also wants a device without room, on which an earlier
candidate waits or its own client has ``least`` turns: that candidate would hold the idle device and
wait for the other. A device never has more turns than its window and ``least`` of each client.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from rota.errors import InputError
from rota.flow.order import LEAST_COST_S, Operation, Order, Tag

__all__ = ["Island", "Operation", "Ticket", "Wait", "Waiting"]


class Ticket(NamedTuple):
    """Leave to run one operation: its turn on each of its devices, as pairs (device, seq)."""

    client: int
    number: int
    turns: tuple[tuple[int, int], ...]


class Wait(StrEnum):
    """What the next operation of a client waits for."""

    WORK = "work"  # the client has submitted nothing that is not over
    NOBODY = "nobody"  # it has its devices, or will at the next call of issue
    READY = "ready"  # a worker's inputs
    TURN = "turn"  # another client's operation on a device


class Waiting(NamedTuple):
    """What the next operation of a client waits for, on which device, behind which client."""

    what: Wait
    device: int | None = None
    behind: int | None = None


class _Device:
    """A device: its turns that are not over, oldest first, each with its lane and its cost."""

    __slots__ = ("claimed", "cost_s", "done", "lanes", "number", "seq", "turns")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seq = self.done = 0  # the last turn that was issued, and that is over
        self.turns: deque[tuple[_Lane, float]] = deque()
        self.cost_s = 0.0  # of these turns
        self.lanes = 0  # clients that have joined on it
        self.claimed = 0  # the last scan in which a candidate waited for it to have room


class _Lane:
    """One client on one device: the operations that it has still to issue there."""

    __slots__ = ("client", "device", "queue", "ready", "turns")

    def __init__(self, client: int, device: _Device) -> None:
        self.client, self.device = client, device
        self.queue: deque[_Waiter] = deque()
        self.ready = 0  # its worker has the inputs of operations up to this number
        self.turns = 0  # of this client on this device that are not over


class _Waiter:
    """An operation that was not issued. It is a candidate once ``missing`` is 0."""

    __slots__ = ("client", "lanes", "missing", "operation", "submission", "tag")

    def __init__(
        self, client: int, operation: Operation, lanes: tuple[_Lane, ...], submission: int
    ) -> None:
        self.client, self.operation, self.lanes = client, operation, lanes
        self.submission = submission
        self.missing = len(lanes)  # lanes on which it is not both the first and ready
        self.tag: Tag = ()

    def __lt__(self, other: _Waiter) -> bool:
        if self.tag == other.tag:
            return self.submission < other.submission
        return self.tag < other.tag


class _Client:
    """A client that has joined."""

    __slots__ = ("costs_s", "lanes", "number", "paused", "slices")

    def __init__(self, lanes: dict[int, _Lane]) -> None:
        self.lanes = lanes
        self.number = 0  # of its last operation
        self.paused = False
        self.slices: dict[tuple[int, ...], tuple[_Lane, ...]] = {}  # known good, with their lanes
        self.costs_s: dict[int, float] = {}  # learned, by kind of operation


class Island:
    """The devices of an island, the clients that share them, and the order of their operations.

    ``devices`` are the numbers of the devices; see the module for ``least`` and ``window_s``.
    """

    def __init__(
        self, devices: Iterable[int], order: Order, *, least: int = 2, window_s: float = 0.0002
    ) -> None:
        if least < 1:
            raise InputError(f"least is {least!r}: give 1 turn of each device or more")
        if not 0 <= window_s < float("inf"):
            raise InputError(f"window_s is {window_s!r}: give seconds, 0 or more")
        self._devices = {number: _Device(number) for number in devices}
        self._order, self._least, self._window_s = order, least, window_s
        self._clients: dict[int, _Client] = {}
        self._candidates: list[_Waiter] = []  # by tag
        self._submissions = self._scans = 0

    def join(self, client: int, weight: float, devices: Iterable[int]) -> None:
        """A client will submit operations on some of these devices.

        Raises InputError for a client that has joined already, for no device or one that the island
        does not have, and for a weight that is not positive.
        """
        if client in self._clients:
            raise InputError(f"client {client} has joined already: let it leave first")
        numbers = sorted(set(devices))
        if not numbers or not self._devices.keys() >= set(numbers):
            raise InputError(
                f"devices of client {client} are {numbers}: give some of {sorted(self._devices)}"
            )
        self._order.join(client, weight)
        lanes = {number: _Lane(client, self._devices[number]) for number in numbers}
        for lane in lanes.values():
            lane.device.lanes += 1
        self._clients[client] = _Client(lanes)

    def leave(self, client: int) -> None:
        """Drop a client and what it has not issued; turns that it has stay until they are done.

        A client that has not joined, or has left, is ignored.
        """
        state = self._clients.pop(client, None)
        if state is None:
            return
        self._order.leave(client)
        self._candidates = [each for each in self._candidates if each.client != client]
        for lane in state.lanes.values():
            lane.device.lanes -= 1

    def submit(self, client: int, operations: Iterable[Operation]) -> None:
        """Queue a client's next operations.

        Raises InputError for a client that has not joined, for numbers that do not grow, for
        devices that are not distinct, sorted and the client's own, and for a cost that is not a
        number of seconds; operations before the wrong one are queued.
        """
        state = self._clients.get(client)
        if state is None:
            raise InputError(f"client {client} has not joined: call join first")
        for operation in operations:
            if operation.number <= state.number:
                raise InputError(
                    f"operation {operation.number} of client {client} comes after"
                    f" {state.number}: number operations in growing order from 1"
                )
            if not 0 <= operation.cost_s < float("inf"):
                raise InputError(
                    f"cost_s of operation {operation.number} of client {client} is"
                    f" {operation.cost_s!r}: give seconds, 0 or more"
                )
            lanes = state.slices.get(operation.devices)
            if lanes is None:
                lanes = self._slice(client, state, operation)
            state.number = operation.number
            self._submissions += 1
            waiter = _Waiter(client, operation, lanes, self._submissions)
            for lane in lanes:
                lane.queue.append(waiter)
                if len(lane.queue) == 1 and lane.ready >= operation.number:
                    waiter.missing -= 1
            if not waiter.missing:
                self._wait(waiter)

    def _slice(self, client: int, state: _Client, operation: Operation) -> tuple[_Lane, ...]:
        """The lanes of an operation on devices that the client has not used together before."""
        devices = operation.devices
        if not devices or list(devices) != sorted(state.lanes.keys() & set(devices)):
            raise InputError(
                f"devices of operation {operation.number} of client {client} are {devices}:"
                f" give some of {tuple(state.lanes)}, sorted, each once"
            )
        lanes = state.slices[devices] = tuple(state.lanes[number] for number in devices)
        return lanes

    def _wait(self, waiter: _Waiter) -> None:
        """An operation has become a candidate."""
        operation = waiter.operation
        cost_s = self._clients[waiter.client].costs_s.get(operation.kind)
        if cost_s is not None:
            waiter.operation = operation._replace(cost_s=cost_s)
        waiter.tag = self._order.tag(waiter.client, waiter.operation, waiter.submission)
        insort(self._candidates, waiter)

    def ready(self, client: int, device: int, number: int) -> None:
        """A client's worker has on a device the inputs of all its operations up to a number.

        Smaller numbers than before have no effect, nor have clients that have left.
        """
        state = self._clients.get(client)
        if state is None:
            return
        lane = state.lanes[device]
        before = lane.ready
        if number <= before:
            return
        lane.ready = number
        if lane.queue:
            first = lane.queue[0]
            if before < first.operation.number <= number:
                first.missing -= 1
                if not first.missing:
                    self._wait(first)

    def took(self, client: int, kind: int, cost_s: float) -> None:
        """A client's operations of a kind take so long; those that wait count as much from now on.

        A client that has left is passed over.
        """
        state = self._clients.get(client)
        if state is not None:
            state.costs_s[kind] = cost_s

    def pause(self, client: int, *, paused: bool) -> None:
        """Issue nothing of a client until it is no longer paused. It must have joined."""
        self._clients[client].paused = paused

    def done(self, device: int, seq: int) -> None:
        """All turns of a device up to one are over; a smaller one than before has no effect.

        Raises InputError for a turn that was not issued.
        """
        state = self._devices[device]
        if seq > state.seq:
            raise InputError(f"turn {seq} of device {device} is over before it was issued")
        turns = state.turns
        for _ in range(seq - state.done):
            lane, cost_s = turns.popleft()
            lane.turns -= 1
            state.cost_s -= cost_s
        state.done = max(seq, state.done)
        if not turns:
            state.cost_s = 0.0  # of sums and differences, only rounding is left

    def issue(self) -> list[Ticket]:
        """Tickets for all operations that fit now, in the order in which they are issued."""
        tickets: list[Ticket] = []
        candidates = self._candidates
        self._scans += 1
        index = 0
        while index < len(candidates):
            waiter = candidates[index]
            if self._fits(waiter):
                del candidates[index]
                tickets.append(self._issue(waiter))
                self._scans += 1
                index = 0  # its client's next operation may go before those that were passed over
            else:
                index += 1
        return tickets

    def _fits(self, waiter: _Waiter) -> bool:
        """True if a candidate may be issued; else its devices without room are claimed for it."""
        if self._clients[waiter.client].paused:
            return False
        least, window_s, scan = self._least, self._window_s, self._scans
        has_room, may_wait = False, True
        for lane in waiter.lanes:
            device = lane.device
            if len(device.turns) < least or device.cost_s < window_s:
                has_room = True
            elif device.claimed == scan or lane.turns >= least:
                may_wait = False
        if has_room and may_wait:
            return True
        for lane in waiter.lanes:
            device = lane.device
            if len(device.turns) >= least and device.cost_s >= window_s:
                device.claimed = scan
        return False

    def _issue(self, waiter: _Waiter) -> Ticket:
        """Give a candidate its turns; the operations behind it become first on their devices."""
        operation = waiter.operation
        self._order.charge(waiter.client, operation, waiter.tag)
        cost_s = operation.cost_s if operation.cost_s > LEAST_COST_S else LEAST_COST_S
        turns = []
        for lane in waiter.lanes:
            device = lane.device
            device.seq += 1
            device.turns.append((lane, cost_s))
            device.cost_s += cost_s
            lane.turns += 1
            turns.append((device.number, device.seq))
            queue = lane.queue
            queue.popleft()
            if queue:
                first = queue[0]
                if lane.ready >= first.operation.number:
                    first.missing -= 1
                    if not first.missing:
                        self._wait(first)
        return Ticket(waiter.client, operation.number, tuple(turns))

    def is_alone(self, client: int) -> bool:
        """True if no other client that has joined may use a device of this one."""
        return all(lane.device.lanes == 1 for lane in self._clients[client].lanes.values())

    def waiting(self, client: int) -> Waiting:
        """What the client's first operation that is not over waits for."""
        lanes = self._clients[client].lanes.values()
        with_turns = [lane for lane in lanes if lane.turns]
        for lane in with_turns:
            head = lane.device.turns[0][0]
            if head is not lane:
                return Waiting(Wait.TURN, lane.device.number, head.client)
        if with_turns:
            return Waiting(Wait.NOBODY)
        firsts = [lane.queue[0] for lane in lanes if lane.queue]
        if not firsts:
            return Waiting(Wait.WORK)
        first = min(firsts, key=lambda each: each.operation.number)
        for lane in first.lanes:
            if lane.ready < first.operation.number:
                return Waiting(Wait.READY, lane.device.number)
        for lane in first.lanes:
            if lane.device.turns:
                return Waiting(Wait.TURN, lane.device.number, lane.device.turns[0][0].client)
        return Waiting(Wait.NOBODY)
