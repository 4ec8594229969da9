"""Dispatch of gang operations from one program to many devices, in virtual time. Pure.

The parts of an island of `rota.flow`, each of which does one thing at a time: clients, which call
programs and send each call to the devices; the order of operations, an
:class:`~rota.flow.island.Island`, which gives devices their turns; and devices. An operation begins
once all its devices have come to it, and holds them until it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import chain, count
from typing import NamedTuple

from rota.errors import SimulationError
from rota.flow.island import Island, Operation, Ticket
from rota.flow.order import Stride


class Costs(NamedTuple):
    """Seconds that dispatch takes.

    ``call_s`` is a client's for a call, and ``message_s`` for each message of it; ``operation_s``
    is a device's own for an operation, before it computes; ``turn_s`` is the island's for one turn
    of one device, from its readiness to its end. ``latency_s`` is a message's way.
    """

    call_s: float
    message_s: float
    operation_s: float
    turn_s: float
    latency_s: float


class Chain(NamedTuple):
    """A client, which calls a program so many times and does not wait for results.

    A call has ``length`` operations, and the next one continues where it ends. Operation i is on
    the devices ``gangs[i % len(gangs)]``, each sorted, and computes for ``compute_s``. One message
    of a call serves ``devices_of_message`` devices, which one host has.
    """

    client: int
    gangs: tuple[tuple[int, ...], ...]
    calls: int
    compute_s: float
    length: int = 1
    weight: float = 1.0
    devices_of_message: int = 1

    def gang(self, number: int) -> tuple[int, ...]:
        """The devices of an operation; numbers begin with 1."""
        return self.gangs[(number - 1) % len(self.gangs)]

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices of the client, sorted."""
        return tuple(sorted(set(chain.from_iterable(self.gangs))))


Key = tuple[int, int]  # a client, and the number of its operation


class Dispatch:
    """Runs chains until all are over; see :meth:`run`.

    Without an island devices run operations as these arrive, which clients of the same devices must
    not. Raises SimulationError for such clients.
    """

    def __init__(self, chains: Iterable[Chain], costs: Costs, island: Island | None = None) -> None:
        self._chains = {each.client: each for each in chains}
        devices = [device for each in self._chains.values() for device in each.devices]
        if island is None and len(set(devices)) < len(devices):
            raise SimulationError("clients share devices: give an island, which orders operations")
        self._costs, self._island = costs, island
        self._gangs_of: dict[
            tuple[int, int], set[int]
        ] = {}  # by client and device, as places in its gangs
        for each in self._chains.values():
            for place, gang in enumerate(each.gangs):
                for device in gang:
                    self._gangs_of.setdefault((each.client, device), set()).add(place)
        self.ended_s: dict[int, list[float]] = {client: [] for client in self._chains}
        self.tickets: list[Ticket] = []
        self.ran: dict[int, list[Key]] = {device: [] for device in devices}
        self._queues: dict[int, deque[Key]] = {device: deque() for device in devices}
        self._runs: dict[int, bool] = dict.fromkeys(devices, False)
        self._begun: dict[Key, int] = {}  # the number of devices that have come to an operation
        self._notes: list[Callable[[Island], None]] = []  # that the island has still to look at
        self._busy = False  # the island
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()

    def run(self) -> Dispatch:
        """Run to the end.

        ``ended_s`` then has the end of each operation by client, in the order of the ends; ``ran``
        the operations of each device, and ``tickets`` those of the island, in their order.
        """
        for each in self._chains.values():
            if self._island is not None:
                self._island.join(each.client, each.weight, each.devices)
            if each.calls:
                self._at(0.0, lambda each=each: self._call(each, 1))  # type: ignore[misc]
        while self._events:
            self._now_s, _, event = heappop(self._events)
            event()
        return self

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heappush(self._events, (at_s, next(self._count), event))

    def _call(self, each: Chain, number: int) -> None:
        costs, last = self._costs, number * each.length
        numbers = range(last - each.length + 1, last + 1)
        if self._island is not None:
            cost_s = costs.operation_s + each.compute_s
            made = [Operation(number, each.gang(number), cost_s) for number in numbers]
            self._tell(lambda island: island.submit(each.client, made))
        at_s, devices = self._now_s + costs.call_s, each.devices
        for place, device in enumerate(devices):
            if place % each.devices_of_message == 0:
                at_s += costs.message_s
            self._at(at_s + costs.latency_s, self._arrival(each, device, numbers))
        if number < each.calls:
            self._at(at_s, lambda: self._call(each, number + 1))

    def _arrival(self, each: Chain, device: int, numbers: range) -> Callable[[], None]:
        def arrive() -> None:
            if self._island is not None:
                self._tell(lambda island: island.ready(each.client, device, numbers[-1]))
                return
            own = self._gangs_of[each.client, device]
            mine = (number for number in numbers if (number - 1) % len(each.gangs) in own)
            self._queues[device].extend((each.client, number) for number in mine)
            self._next(device)

        return arrive

    def _tell(self, *notes: Callable[[Island], None]) -> None:
        """The island hears of something after a message's way."""

        def heard() -> None:
            self._notes += notes
            if not self._busy:
                self._give_turns()

        self._at(self._now_s + self._costs.latency_s, heard)

    def _give_turns(self) -> None:
        """The island takes note of all that it was told, and gives turns, one after another."""
        assert self._island is not None
        self._busy = False
        if not self._notes:
            return
        notes, self._notes = self._notes, []
        for note in notes:
            note(self._island)
        at_s = self._now_s
        for ticket in self._island.issue():
            self.tickets.append(ticket)
            for device, _ in ticket.turns:
                at_s += self._costs.turn_s
                key = (ticket.client, ticket.number)
                self._at(at_s + self._costs.latency_s, self._turn(device, key))
        if at_s > self._now_s:
            self._busy = True
            self._at(at_s, self._give_turns)

    def _turn(self, device: int, key: Key) -> Callable[[], None]:
        def given() -> None:
            self._queues[device].append(key)
            self._next(device)

        return given

    def _next(self, device: int) -> None:
        """The device comes to its next operation, if it is free and has one."""
        queue = self._queues[device]
        if self._runs[device] or not queue:
            return
        self._runs[device] = True
        key = queue.popleft()
        begun = self._begun[key] = self._begun.get(key, 0) + 1
        each = self._chains[key[0]]
        if begun == len(each.gang(key[1])):
            del self._begun[key]
            end_s = self._now_s + self._costs.operation_s + each.compute_s
            self._at(end_s, lambda: self._end(each, key))

    def _end(self, each: Chain, key: Key) -> None:
        self.ended_s[each.client].append(self._now_s)
        notes: list[Callable[[Island], None]] = []
        for device in each.gang(key[1]):
            self.ran[device].append(key)
            self._runs[device] = False
            notes.append(_done(device, len(self.ran[device])))
            self._next(device)
        if self._island is not None:
            self._tell(*notes)


def shared_island(devices: Iterable[int], others: Iterable[int]) -> Island:
    """An island with proportional shares, on all of which other clients have joined and are idle.

    A client of it needs turns, as it would not if it were alone.
    """
    numbers = tuple(devices)
    island = Island(numbers, Stride())
    for client in others:
        island.join(client, 1.0, numbers)
    return island


def _done(device: int, seq: int) -> Callable[[Island], None]:
    return lambda island: island.done(device, seq)


def rate(run: Dispatch, client: int) -> float:
    """A client's operations a second after the first quarter, while all is under way."""
    ended_s = run.ended_s[client]
    first = len(ended_s) // 4
    return (len(ended_s) - 1 - first) / (ended_s[-1] - ended_s[first])


class Stages(NamedTuple):
    """A pipeline over hosts, of which each computes once, on what the one before has computed.

    ``host_s`` is what a host does before its device can compute, ``message_s`` what a client needs
    for a message to a host, ``latency_s`` a message's way, ``transfer_s`` that of the value from
    device to device.
    """

    number: int
    compute_s: float
    host_s: float
    message_s: float
    latency_s: float
    transfer_s: float


def pipeline_s(stages: Stages, *, parallel: bool) -> float:
    """Seconds until the last stage has computed (Barham et al., section 4.5).

    In *parallel* the client tells all hosts at once, since shapes are known; else each host is told
    by the one before, once that one has done its own part.
    """
    prepared_s = computed_s = 0.0
    for stage in range(1, stages.number + 1):
        if parallel:
            prepared_s = stage * stages.message_s + stages.latency_s + stages.host_s
        else:
            prepared_s += stages.latency_s + stages.host_s + (stages.message_s if stage == 1 else 0)
        arrived_s = computed_s + stages.transfer_s if stage > 1 else 0.0
        computed_s = max(prepared_s, arrived_s) + stages.compute_s
    return computed_s
