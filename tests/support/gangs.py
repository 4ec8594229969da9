"""Devices, workers and clients of an island in virtual time: gang operations that block each other.

Devices are non-preemptive and run their turns in order. A worker runs its client's operations in
program order. A *collective* ends once all its devices have begun it and its time has passed, and
holds those that began before; other operations end on each device by themselves. With an island,
turns are those of its tickets; without one, operations come onto a device as their inputs arrive.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from rota.flow.island import Island, Operation, Ticket


class Planned(NamedTuple):
    """An operation of a program: when it is submitted, how its inputs arrive, how long it takes.

    ``submit_s`` counts from when the client joins. Inputs arrive on each device ``delay_s`` after
    the submission, or if that is later, after the client's operation ``after`` has ended.
    """

    operation: Operation
    took_s: tuple[float, ...]
    collective: bool = True
    submit_s: float = 0.0
    delay_s: tuple[float, ...] = ()
    after: int | None = None


class Program(NamedTuple):
    """A client: when it joins, when it is killed (None: never), and what it submits."""

    client: int
    weight: float
    devices: tuple[int, ...]
    planned: tuple[Planned, ...]
    join_s: float = 0.0
    leave_s: float | None = None


class Turn(NamedTuple):
    """One operation on one device."""

    client: int
    number: int
    seq: int


class Machine:
    """Runs programs until nothing more happens; what happened are its attributes."""

    def __init__(
        self,
        programs: Iterable[Program],
        devices: Sequence[int],
        island: Island | None,
        watch: Callable[["Machine"], None] = lambda machine: None,
    ) -> None:
        self.island, self.watch = island, watch
        self.programs = {program.client: program for program in programs}
        self.planned = {
            (program.client, each.operation.number): each
            for program in self.programs.values()
            for each in program.planned
        }
        self.now_s = 0.0
        self.tickets: list[Ticket] = []
        self.ran: dict[int, list[Turn]] = {device: [] for device in devices}
        self.ended: set[tuple[int, int]] = set()
        self.gone: set[int] = set()
        self.turns: dict[int, deque[Turn]] = {device: deque() for device in devices}
        self.unissued: dict[tuple[int, int], deque[int]] = defaultdict(deque)  # client, device
        self.ready: dict[tuple[int, int], int] = defaultdict(int)
        self._running: dict[int, Turn | None] = dict.fromkeys(devices)
        self._arrived: set[tuple[int, int, int]] = set()
        self._streams: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._begun: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._over: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()

    def run(self) -> "Machine":
        """Run until nothing more happens."""
        for program in self.programs.values():
            self._at(program.join_s, lambda program=program: self._join(program))
            if program.leave_s is not None:
                self._at(program.leave_s, lambda program=program: self._leave(program))
        while self._events:
            self.now_s, _, event = heappop(self._events)
            event()
            self._turn()
        return self

    def _at(self, when_s: float, event: Callable[[], None]) -> None:
        heappush(self._events, (when_s, next(self._count), event))

    def _join(self, program: Program) -> None:
        if self.island is not None:
            self.island.join(program.client, program.weight, program.devices)
        for each in program.planned:
            self._at(self.now_s + each.submit_s, lambda each=each: self._submit(program, each))

    def _leave(self, program: Program) -> None:
        """Its process and workers are killed: what runs ends, turns that it has are skipped."""
        self.gone.add(program.client)
        if self.island is not None:
            self.island.leave(program.client)
        for device, turn in self._running.items():
            if turn is not None and turn.client == program.client:
                self._release(device, turn)

    def _submit(self, program: Program, each: Planned) -> None:
        if program.client in self.gone:
            return
        number = each.operation.number
        for device in each.operation.devices:
            self.unissued[program.client, device].append(number)
            self._streams[program.client, device].append(number)
        if self.island is not None:
            self.island.submit(program.client, [each.operation])
        if each.after is None or (program.client, each.after) in self.ended:
            self._send(program.client, each)

    def _send(self, client: int, each: Planned) -> None:
        """The inputs of an operation set out."""
        operation = each.operation
        for device, delay_s in zip(operation.devices, each.delay_s, strict=True):
            self._at(
                self.now_s + delay_s,
                lambda device=device: self._arrive(client, operation.number, device),
            )

    def _arrive(self, client: int, number: int, device: int) -> None:
        if client in self.gone:
            return
        self._arrived.add((client, number, device))
        stream = self._streams[client, device]
        while stream and (client, stream[0], device) in self._arrived:
            self.ready[client, device] = stream.popleft()
            if self.island is None:
                self._queue(Turn(client, self.ready[client, device], 0), device)
        if self.island is not None:
            self.island.ready(client, device, self.ready[client, device])

    def _queue(self, turn: Turn, device: int) -> None:
        assert self.unissued[turn.client, device].popleft() == turn.number, "program order"
        self.turns[device].append(turn)

    def _turn(self) -> None:
        """Issue what fits, begin what has come to the head of a device."""
        again = True
        while again:
            if self.island is not None:
                for ticket in self.island.issue():
                    self.tickets.append(ticket)
                    for device, seq in ticket.turns:
                        self._queue(Turn(ticket.client, ticket.number, seq), device)
            again = False
            for device, turns in self.turns.items():
                if turns and self._running[device] is None:
                    again |= self._begin(device, turns[0])
        self.watch(self)

    def _begin(self, device: int, turn: Turn) -> bool:
        """Begin a turn; returns True if that ended it."""
        self._running[device] = turn
        if turn.client in self.gone:
            self._release(device, turn)
            return True
        key = (turn.client, turn.number)
        assert (*key, device) in self._arrived, "a turn waits for its inputs"
        self.ran[device].append(turn)
        planned = self.planned[key]
        devices = planned.operation.devices
        self._begun[key].add(device)
        if not planned.collective:
            self._end_at(planned.took_s[devices.index(device)], turn, [device])
        elif len(self._begun[key]) == len(devices):
            self._end_at(max(planned.took_s), turn, devices)
        return False

    def _end_at(self, after_s: float, turn: Turn, devices: Sequence[int]) -> None:
        key = (turn.client, turn.number)

        def end() -> None:
            for device in devices:
                running = self._running[device]
                if running is not None and running[:2] == key:
                    self._release(device, running)
                    self._over[key].add(device)
            if self._over[key] == set(self.planned[key].operation.devices):
                self._finish(*key)

        self._at(self.now_s + after_s, end)

    def _release(self, device: int, turn: Turn) -> None:
        assert self.turns[device].popleft() == turn
        self._running[device] = None
        if self.island is not None:
            self.island.done(device, turn.seq)

    def _finish(self, client: int, number: int) -> None:
        self.ended.add((client, number))
        submitted_s = self.now_s - self.programs[client].join_s
        for each in self.programs[client].planned:
            if each.after == number and each.submit_s <= submitted_s:
                self._send(client, each)

    def candidates(self) -> list[tuple[int, Operation]]:
        """Operations that could be issued but for room, by client, found by looking at all."""
        found = []
        for (client, number), each in self.planned.items():
            if client not in self.gone and all(
                self.unissued[client, device]
                and self.unissued[client, device][0] == number <= self.ready[client, device]
                for device in each.operation.devices
            ):
                found.append((client, each.operation))
        return found


def largest_error(issued: Sequence[int], weights: dict[int, float], window: int = 100) -> float:
    """How far a client's operations in a window are from its weight's share, at most."""
    total = math.fsum(weights.values())
    worst = 0.0
    for client, weight in weights.items():
        sums = [0]
        for each in issued:
            sums.append(sums[-1] + (each == client))
        for begin in range(len(issued) - window + 1):
            error = sums[begin + window] - sums[begin] - window * weight / total
            worst = max(worst, abs(error))
    return worst
