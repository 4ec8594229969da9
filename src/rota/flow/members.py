"""Clients of an island and gangs of trainings, as its host knows them, and their workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rota.errors import FlowError
from rota.flow import wire
from rota.flow.island import Operation
from rota.flow.limit import Limit
from rota.flow.page import DOING, GONE, OPEN, READY, Log, Page
from rota.flow.seats import Taken
from rota.flow.standing import MOVES, OFF, Standing, is_allowed
from rota.live.wire import island as asked
from rota.live.wire.clock import now_s
from rota.live.wire.peer import peer_of
from rota.live.wire.procfs import stat_of

UNKNOWN_S = 1e-4  # what an operation is taken to last until it has run
MOST_SLICES = 64  # of a client, that are told of
STEPS = 1  # the program and the function that the steps of a training count as


class Part(NamedTuple):
    """One operation of a program that is run."""

    number: int
    slots: list[int]
    function: int
    losses: int  # of its slice


class Member:
    """A client that is connected, and its workers by slot."""

    def __init__(self, number: int, connection: socket.socket, page: Page) -> None:
        self.number, self.connection, self._page = number, connection, page
        self.reader = wire.Reader(wire.ToHost)
        self.process = _process_of(connection)  # a descriptor of it; -1: not known
        self.standing = Standing.SILENT
        self.name = ""
        self.seat: Taken | None = None  # of the job that it is the program of
        self.order: list[int] = []  # slots, by worker
        self.slots: dict[int, int] = {}  # device by slot; AWAY, or NO_DEVICE
        self.slot_on: dict[int, int] = {}  # slot by device
        self.beside: list[Member] = []  # others that have one of its devices
        self.programs: dict[int, Gangs] = {}
        self.seconds: dict[int, float] = {}  # by function
        self.parcels = Path()
        self.runs: Log | None = None  # where it tells what it runs
        self.log: deque[tuple[int, int]] = deque()  # what may not be over, in order
        self.last = 0  # the number of its last operation
        self.outstanding = 0  # operations in the log
        self.finished = 0  # the last operation that a worker was seen to have finished
        self.whole = True  # all its workers are alive
        self.weight = 1.0
        self.busy_at_s = float("-inf")  # when something of it was last not over
        self.wants: wire.Want | None = None  # what it has asked for while it was away
        self.memory_bytes = 0  # at most held on a device
        self.slices: list[list[int]] = []  # the workers of each slice that it has used
        self.limit: Limit | None = None  # of its operations
        self.lost: list[int] | None = None  # the slots for which it asks for new workers

    def become(self, standing: Standing) -> None:
        """Change to another state. Raises FlowError for a change that there is not."""
        if not is_allowed(self.standing, standing):
            raise FlowError(f"client {self.number} is {self.standing}, and can't be {standing}")
        self.standing = standing

    @property
    def gone(self) -> bool:
        """True if nothing of it stays."""
        return self.standing == Standing.GONE

    @property
    def is_off(self) -> bool:
        """True if it has no devices, or its workers are not there yet."""
        return self.standing in OFF

    @property
    def settled(self) -> bool:
        """True if its workers are where they were last told to be."""
        return self.standing not in MOVES

    def define(self, message: wire.DefineGangs) -> None:
        """The client tells of a program. Raises FlowError for one that can't be."""
        own = range(len(self.order))
        for gang in message.gangs:
            if not gang or gang != sorted(set(own) & set(gang)):
                raise FlowError(
                    f"a gang of program {message.program} is {gang}; it must be some of the "
                    f"workers 0 to {len(own) - 1}, sorted"
                )
            if gang not in self.slices and len(self.slices) < MOST_SLICES:
                self.slices.append(gang)
        told = (message.functions, message.losses, message.labels)
        if any(len(each) != len(message.gangs) for each in told):
            raise FlowError(
                f"program {message.program} has not one function, loss and label for each gang"
            )
        self.programs[message.program] = Gangs(message)

    def note(self, runs: Sequence[tuple[int, int]]) -> None:
        """The client has run programs. Raises FlowError for what can't be."""
        for program, number in runs:
            if program not in self.programs:
                raise FlowError(f"program {program} is run, and was not told of")
            count = len(self.programs[program].told.gangs)
            if not self.last < number < GONE - count:
                raise FlowError(f"operation {number} comes after {self.last}")
            self.last = number + max(0, count - 1)
            self.outstanding += count
            self.log.append((program, number))

    @property
    def is_busy(self) -> bool:
        """True if something that it has called is not over, or it asks for workers."""
        return bool(self.log) or self.wants is not None or self.lost is not None

    def over(self) -> None:
        """The first run of the log is over."""
        program, _ = self.log.popleft()
        self.outstanding -= len(self.programs[program].told.gangs)

    def gang(self, operation: int) -> list[int]:
        """The slots of an operation that may not be over; none if it is not known."""
        for program, number in self.log:
            gangs = self.programs[program].told.gangs
            if number <= operation < number + len(gangs):
                return [self.order[worker] for worker in gangs[operation - number]]
        return []

    def label(self, operation: int) -> str:
        """What people call an operation that may not be over; "" if it is not known."""
        for program, number in self.log:
            labels = self.programs[program].told.labels
            if number <= operation < number + len(labels):
                return labels[operation - number]
        return ""

    def operations(self, run: tuple[int, int]) -> list[Operation]:
        """The operations of a program that is run, but for those whose slices lack a device."""
        operations = (self.operation(each) for each in self.parts(run))
        return [each for each in operations if each is not None]

    def parts(self, run: tuple[int, int]) -> list[Part]:
        """The operations of a program that is run, wherever their workers are."""
        program, number = run
        told = self.programs[program].told
        each = zip(told.gangs, told.functions, told.losses, strict=True)
        return [
            Part(number + i, [self.order[worker] for worker in gang], function, losses)
            for i, (gang, function, losses) in enumerate(each)
        ]

    def operation(self, part: Part) -> Operation | None:
        """One of these on the present devices; None where the slice has lost one."""
        if self._page.has_lost(part.slots, part.losses):
            return None
        devices = sorted(self.slots[slot] for slot in part.slots)
        cost_s = self.seconds.get(part.function, UNKNOWN_S)
        return Operation(part.number, tuple(devices), cost_s, kind=part.function)


class Ranks(Member):
    """A training: each of its steps is an operation on all of its devices, or several are.

    Its ranks are its workers. A rank says which step it is READY for, counted from 1, waits for its
    turn, says that it has FINISHED the step, and passes the turn on. It leaves by being ready for
    GONE; nothing of it is on the page after that. In the background it is given a turn only while
    all its ranks that have not left are OPEN.
    """

    def __init__(self, number: int, told: asked.Ranks, page: Page) -> None:
        super().__init__(number, socket.socket(socket.AF_UNIX), page)  # nobody is at its other end
        self.name, self.background = told.key, told.background
        self.order = [0] * len(told.devices)
        workers = list(range(len(self.order)))
        self.define(wire.DefineGangs(STEPS, [workers], [STEPS], losses=[0], labels=["a step"]))

    @property
    def may_begin(self) -> bool:
        """True unless it is in the background, and some rank must not begin now."""
        page = self._page
        return not self.background or all(
            page.of(slot, OPEN) or page.of(slot, READY) == GONE for slot in self.order
        )

    def called(self) -> list[tuple[int, int]]:
        """The steps that a rank is ready for, and that were not noted yet. Raises FlowError."""
        ready = [self._page.of(slot, READY) for slot in self.order]
        most = max((each for each in ready if each != GONE), default=0)
        if most > self.last + 1:
            raise FlowError(f"step {most} comes after {self.last}")
        return [(STEPS, most)] * (most > self.last)


class Gangs:
    """The gang operations of a program, and the last one of each worker by offset."""

    def __init__(self, told: wire.DefineGangs) -> None:
        self.told = told
        self.last = {worker: i for i, gang in enumerate(told.gangs) for worker in gang}


class Place:
    """A worker: its process, which leads a group of its own, and its client."""

    def __init__(self, slot: int, member: Member, pid: int) -> None:
        self.slot, self.member, self.pid = slot, member, pid
        self.process = os.pidfd_open(pid)
        self.gone = False  # it has ended before its client
        self.ready = self.takes_ns = 0  # as the island was told
        self.overdue = 0  # the operation for which it was killed
        self._begun: tuple[int | str, float] = 0, 0.0  # what it was seen at last, and since when

    @property
    def device(self) -> int:
        """Its device, AWAY or NO_DEVICE."""
        return self.member.slots[self.slot]

    @property
    def is_stopped(self) -> bool:
        """True while it is stopped, as at the end of its node's lease."""
        with contextlib.suppress(OSError):
            return stat_of(self.pid)[:1] == ["T"]
        return False

    def at_since_s(self, what: int | str) -> float:
        """The time since which it has been seen at an operation, or at something beside these."""
        if self._begun[0] != what:
            self._begun = what, now_s()
        return self._begun[1]

    def doing(self) -> str:
        """What it is at beside operations; "" for nothing, or nothing that takes long."""
        try:
            return (self.member.parcels / f"{DOING}{self.slot}").read_text()
        except OSError:
            return ""

    def kill(self) -> None:
        """Kill it and what it has forked."""
        if not self.gone:
            os.killpg(self.pid, signal.SIGKILL)

    def ended(self) -> int:
        """The exit code of a worker that has ended or was killed."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.process)
        self.gone = True
        return os.waitstatus_to_exitcode(status)


class RankPlace(Place):
    """A rank of a training: the process is its agent's to end."""

    def kill(self) -> None:
        """See :class:`Place`."""

    def ended(self) -> int:
        """See :class:`Place`."""
        os.close(self.process)
        self.gone = True
        return 0


def _process_of(connection: socket.socket) -> int:
    """A descriptor of the process that has connected, or -1.

    What a client has forked may keep its connection open after its end.
    """
    try:
        return os.pidfd_open(peer_of(connection).pid)
    except OSError:
        return -1
