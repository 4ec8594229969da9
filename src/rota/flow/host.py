"""The host of an island: brings clients in, starts their workers, and gives out turns.

    python -m rota.flow.host FOLDER DEVICES MEMORY_BYTES

serves the clients that connect to the socket in FOLDER until its standard input ends. It loads
torch once and forks workers; it has one thread and runs no computation.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rota.errors import FlowError
from rota.flow import wire
from rota.flow.island import Island, Operation
from rota.flow.memory import Memory
from rota.flow.order import Order, Stride
from rota.flow.page import (
    ALLOWED,
    ALLOWED_BYTES,
    BEGUN,
    FINISHED,
    FUNCTION,
    HELD_BYTES,
    HOST,
    LOG,
    READY,
    SOCKET,
    TAKES_NS,
    USED_BYTES,
    Barrier,
    Bells,
    Log,
    Page,
)

SLOTS = 256
UNKNOWN_S = 1e-4  # what an operation is taken to last until it has run
LOOK_EVERY_S = 0.005  # while turns of dead workers are given out, or a grant may be given
CALM_S = 0.01  # for which all others had nothing to do before a client has a grant
MOST_LOGGED = 256  # submissions, of which some may be over
PR_SET_PDEATHSIG = 1


class Member:
    """A client that is connected, and its workers by slot."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number, self.connection = number, connection
        self.reader = wire.Reader(wire.ToHost)
        self.name = ""
        self.slots: dict[int, int] = {}  # device by slot
        self.programs: dict[int, Gangs] = {}
        self.seconds: dict[int, float] = {}  # by function
        self.parcels = Path()
        self.runs: Callable[[], list[tuple[int, int]]] = list  # what it has run since the last call
        self.log: deque[tuple[int, int]] = deque()  # what may not be over, in order
        self.stands = False  # it has a grant for its devices,
        self.retires = False  # or will have it once its turns are done
        self.weight = 1.0
        self.busy_at_s = float("-inf")  # when something of it was last not over

    def operations(self, run: tuple[int, int]) -> list[Operation]:
        """The operations of a program that is run."""
        program, number = run
        told, known = self.programs[program].told, self.seconds
        pairs = zip(told.gangs, told.functions, strict=True)
        return [
            Operation(number + i, tuple(gang), known.get(function, UNKNOWN_S), kind=function)
            for i, (gang, function) in enumerate(pairs)
        ]


class Gangs:
    """The gang operations of a program, and the last one on each device by offset."""

    def __init__(self, told: wire.DefineGangs) -> None:
        self.told = told
        self.last = {device: i for i, gang in enumerate(told.gangs) for device in gang}


class Place:
    """A worker: its process, its client, and the connection that shows its end."""

    def __init__(self, pid: int, member: Member, device: int, connection: socket.socket) -> None:
        self.pid, self.member, self.device, self.connection = pid, member, device, connection


class Told:
    """The page, as :class:`rota.flow.memory.Memory` reads and writes it."""

    def __init__(self, page: Page, barrier: Barrier) -> None:
        self._page, self.barrier = page, barrier

    def used_bytes(self, slot: int) -> int:
        """See :class:`rota.flow.memory.Words`."""
        return max(self._page.of(slot, USED_BYTES), self._page.of(slot, HELD_BYTES))

    def allow(self, slot: int, allowed_bytes: int) -> None:
        """See :class:`rota.flow.memory.Words`."""
        self._page.tell(slot, ALLOWED_BYTES, allowed_bytes)


class Host:
    """See the module. ``folder`` is on a file system in memory."""

    def __init__(
        self, folder: Path, devices: int, memory_bytes: int, order: Order | None = None
    ) -> None:
        self._folder, self._devices, self._memory_bytes = folder, devices, memory_bytes
        self._page = Page(folder / "page", devices, SLOTS, make=True)
        self._barrier = Barrier()
        self._bells = Bells(folder)
        self._bells.make(HOST)
        self._island = Island(range(devices), order or Stride())
        self._memory = Memory(memory_bytes, Told(self._page, self._barrier))
        self._members: dict[int, Member] = {}
        self._places: dict[int, Place] = {}  # by slot
        self._dead: set[int] = set()  # slots that may have turns yet
        self._last = 0
        self._draining: dict[int, int] = {}  # by slot: the operation until which nobody has turns
        self._opening: list[socket.socket] = []  # a client's ends of connections to its workers
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / SOCKET))
        self._door.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ, self._welcome)
        self._selector.register(self._bells.own(HOST), selectors.EVENT_READ, self._rung)

    def serve(self, until: int) -> None:
        """Serve until this descriptor ends."""
        self._selector.register(until, selectors.EVENT_READ, None)
        while True:
            soon = self._settle_grants() or bool(self._dead) or self._memory.waits
            for key, _ in self._selector.select(LOOK_EVERY_S if soon else None):
                if key.data is None:
                    return
                key.data()
            self._order()

    def close(self) -> None:
        """End all workers."""
        for place in self._places.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.pid, signal.SIGKILL)
        for place in self._places.values():
            os.waitpid(place.pid, 0)

    # -- turns -----------------------------------------------------------------------------------

    def _rung(self) -> None:
        self._bells.heard(HOST)

    def _settle_memory(self) -> None:
        """Answer who waits for memory and can have it now."""
        for answer in self._memory.settle():
            member = self._members[answer.client]
            with contextlib.suppress(OSError):  # it is gone, which the next look shows
                member.connection.sendall(wire.encoded(wire.Given(answer.error)))

    def _order(self) -> None:
        """Take note of what is done and ready, and give out what may be next."""
        page, island = self._page, self._island
        if self._memory.waits:
            self._settle_memory()
        self._pass_dead()
        for device in range(self._devices):
            island.done(device, page.done(device))
        for slot, place in self._places.items():
            member = place.member
            if (function := page.of(slot, FUNCTION)) > 0:
                seconds = page.of(slot, TAKES_NS) / 1e9
                member.seconds[function] = seconds
                island.took(member.number, function, seconds)
            if not member.stands:
                island.ready(member.number, place.device, page.of(slot, READY))
        self._draining = {
            s: k
            for s, k in self._draining.items()
            if s in self._places and page.of(s, FINISHED) < k
        }
        if not self._draining:
            slots = {(p.member.number, p.device): slot for slot, p in self._places.items()}
            for ticket in island.issue():
                for device, turn in ticket.turns:
                    page.give(device, turn, slots[ticket.client, device])
            self._pass_dead()
        for device in range(self._devices):
            if (head := page.head(device)) > 0:
                self._bells.ring(head)

    # -- grants ----------------------------------------------------------------------------------

    def _beside(self, member: Member) -> list[Member]:
        """The other clients that have one of its devices."""
        own = set(member.slots.values())
        others = (each for each in self._members.values() if each is not member)
        return [each for each in others if not own.isdisjoint(each.slots.values())]

    def _prune(self, member: Member) -> None:
        """Forget what is over of a client's log."""
        slots = {device: slot for slot, device in member.slots.items()}
        while member.log:
            program, number = member.log[0]
            last = member.programs[program].last
            if any(self._page.of(slots[d], FINISHED) < number + i for d, i in last.items()):
                member.busy_at_s = time.monotonic()
                return
            member.log.popleft()
            member.busy_at_s = time.monotonic()

    def _settle_grants(self) -> bool:
        """Give and take back grants; True if it must be looked again soon."""
        soon = False
        for member in self._members.values():
            self._take_runs(member)
            self._prune(member)
        for member in self._members.values():
            beside = self._beside(member)
            if member.stands:
                if any(each.log for each in beside):
                    self._revoke(member)
                continue
            if not member.log or not self._barrier.works:
                continue
            now_s = time.monotonic()
            calm = all(now_s > each.busy_at_s + CALM_S for each in beside)
            if calm != member.retires:
                member.retires = calm
                self._island.pause(member.number, paused=calm)
            devices = member.slots.values()
            if calm and all(self._page.done(d) == self._page.issued(d) for d in devices):
                self._grant(member)
            soon = soon or not member.stands
        return soon

    def _grant(self, member: Member) -> None:
        """Let a client run what it likes on its devices, where nobody else has anything to do."""
        self._island.leave(member.number)
        member.stands, member.retires = True, False
        for slot, device in member.slots.items():
            self._page.grant(device, slot)
            self._bells.ring(slot)

    def _revoke(self, member: Member) -> None:
        """Take a client's grant back: what it has begun, and what that needs, goes on."""
        page = self._page
        for device in member.slots.values():
            page.grant(device, 0)
        self._barrier()
        self._hear_all(member)  # a client tells the host first, and its workers then
        member.log.extend(member.runs())
        member.stands = False
        need = {device: page.of(slot, BEGUN) for slot, device in member.slots.items()}
        self._prune(member)
        operations = [each for run in member.log for each in member.operations(run)]
        for operation in reversed(operations):
            if any(need[each] >= operation.number for each in operation.devices):
                for each in operation.devices:
                    need[each] = max(need[each], operation.number)
        self._island.join(member.number, member.weight, member.slots.values())
        later = []
        for operation in operations:
            if all(need[each] >= operation.number for each in operation.devices):
                for slot, device in member.slots.items():
                    if device in operation.devices:
                        self._draining[slot] = operation.number
            else:
                later.append(operation)
        self._island.submit(member.number, later)
        for slot, device in member.slots.items():
            page.tell(slot, ALLOWED, need[device])
            self._bells.ring(slot)

    def _hear_all(self, member: Member) -> None:
        """Take in all that the client has told by now."""
        while data := wire.received(member.connection):
            for message in member.reader.take(data):
                if isinstance(message, wire.DefineGangs):
                    member.programs[message.program] = Gangs(message)
                elif isinstance(message, wire.Want):
                    wanted = {s: b for s, b in message.bytes.items() if s in member.slots}
                    self._memory.want(member.number, wanted)

    def _pass_dead(self) -> None:
        """Let turns of workers that are dead be over."""
        if not self._dead:
            return
        waiting = set()
        for device in range(self._devices):
            while self._page.head(device) in self._dead:
                self._page.pass_on(device, self._page.done(device) + 1)
            turns = range(self._page.done(device) + 1, self._page.issued(device) + 1)
            waiting |= {self._page.owner(device, turn) for turn in turns}
        for slot in self._dead - waiting:
            if slot not in self._places:
                self._dead.discard(slot)

    # -- clients ---------------------------------------------------------------------------------

    def _welcome(self) -> None:
        connection, _ = self._door.accept()
        connection.setblocking(False)
        self._last += 1
        member = Member(self._last, connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear_client(member))

    def _hear_client(self, member: Member) -> None:
        data = wire.received(member.connection)
        try:
            messages = member.reader.take(data) if data is not None else None
        except FlowError:
            messages = None
        if messages is None:
            self._leave(member)
            return
        for message in messages:
            match message:
                case wire.Hello():
                    self._admit(member, message)
                case wire.DefineGangs():
                    member.programs[message.program] = Gangs(message)
                case wire.Want():
                    wanted = {s: b for s, b in message.bytes.items() if s in member.slots}
                    self._memory.want(member.number, wanted)

    def _take_runs(self, member: Member) -> None:
        """Take note of what the client runs by now."""
        for run in member.runs():
            member.log.append(run)
            if not member.stands:
                self._island.submit(member.number, member.operations(run))
        if len(member.log) > MOST_LOGGED:
            self._prune(member)

    def _admit(self, member: Member, hello: wire.Hello) -> None:
        try:
            devices = self._chosen(hello.devices)
        except FlowError as error:
            member.connection.sendall(wire.encoded(wire.Refused(str(error))))
            self._leave(member)
            return
        member.name = hello.name
        member.parcels = self._folder / f"client{member.number}"
        member.parcels.mkdir(mode=0o700)
        member.runs = Log(member.parcels / LOG, make=True).take
        self._members[member.number] = member
        member.weight = hello.weight
        self._island.join(member.number, member.weight, devices)
        for device in devices:
            self._opening.append(self._start(member, device))
        memory_bytes = min(hello.memory_bytes or self._memory_bytes, self._memory_bytes)
        for slot, device in member.slots.items():
            self._memory.join(member.number, slot, device, memory_bytes)
        slots = list(member.slots)
        welcome = wire.Welcome(member.number, devices, slots, self._devices, SLOTS, memory_bytes)
        descriptors = [each.fileno() for each in self._opening]
        socket.send_fds(member.connection, [wire.encoded(welcome)], descriptors)
        for each in self._opening:
            each.close()
        self._opening.clear()

    def _chosen(self, wanted: Sequence[int] | int) -> list[int]:
        """The devices for a client: those it names, or the least loaded."""
        if not isinstance(wanted, int):
            if bad := [each for each in wanted if not 0 <= each < self._devices]:
                raise FlowError(
                    f"devices: there is no device {bad[0]}; the island has 0 to {self._devices - 1}"
                )
            return sorted(set(wanted))
        if not 1 <= wanted <= self._devices:
            raise FlowError(f"devices: {wanted} are asked for; the island has {self._devices}")
        load = [0] * self._devices
        for place in self._places.values():
            load[place.device] += 1
        return sorted(sorted(range(self._devices), key=lambda each: (load[each], each))[:wanted])

    def _start(self, member: Member, device: int) -> socket.socket:
        """Fork a worker; the client's end of its connection."""
        slot = next(i for i in range(1, SLOTS) if i not in self._places and i not in self._dead)
        self._page.clear(slot)
        self._bells.forget(slot)
        with contextlib.suppress(FileExistsError):
            self._bells.make(slot)
        ours, theirs = socket.socketpair()
        own, workers = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for each in (ours, own, *self._opening):
                each.close()
            _work(self, parent, theirs, workers, slot, device, member.parcels)
        theirs.close()
        workers.close()
        own.setblocking(False)
        self._places[slot] = place = Place(pid, member, device, own)
        member.slots[slot] = device
        self._selector.register(own, selectors.EVENT_READ, lambda: self._hear_worker(slot, place))
        return ours

    def _hear_worker(self, slot: int, place: Place) -> None:
        if self._places.get(slot) is not place:  # it was lost with its client a moment ago
            return
        if wire.received(place.connection) is None:
            self._lose(slot, place)

    def _lose(self, slot: int, place: Place) -> None:
        """A worker is gone: whoever has turns with it goes on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(place.pid, signal.SIGKILL)  # one that has closed its connection only
        _, status = os.waitpid(place.pid, 0)
        self._selector.unregister(place.connection)
        place.connection.close()
        del self._places[slot]
        self._memory.leave(slot)
        self._dead.add(slot)
        member = place.member
        if member.number in self._members:
            code = os.waitstatus_to_exitcode(status)
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            with contextlib.suppress(OSError):
                member.connection.sendall(wire.encoded(wire.Lost(slot, why)))

    def _leave(self, member: Member) -> None:
        """A client is gone: nothing of it stays."""
        self._selector.unregister(member.connection)
        member.connection.close()
        if self._members.pop(member.number, None) is None:
            return
        if member.stands:
            for device in member.slots.values():
                self._page.grant(device, 0)
        else:
            self._island.leave(member.number)
        for slot in list(member.slots):
            if (place := self._places.get(slot)) is not None:
                self._lose(slot, place)
        shutil.rmtree(member.parcels, ignore_errors=True)


def _work(
    host: Host,
    parent: int,
    client: socket.socket,
    connection: socket.socket,
    slot: int,
    device: int,
    parcels: Path,
) -> NoReturn:
    """In a forked process: be a worker until client or host is gone."""
    from rota.flow.worker import Worker

    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for each in (client, connection):
            os.set_inheritable(each.fileno(), False)
        host._selector.close()
        host._door.close()
        for member in host._members.values():
            member.connection.close()
        for place in host._places.values():
            place.connection.close()
        folder = host._folder
        page, bells = Page(folder / "page", host._devices, SLOTS), Bells(folder)
        places: dict[str, Any] = {"slot": slot, "device": device, "parcels": parcels}
        Worker(client, connection, page, bells, **places).serve()
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """See the module."""
    import torch

    torch.set_num_threads(1)
    import torch.distributed

    import rota.flow.worker  # noqa: F401  # workers have it without loading it

    folder, devices, memory_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host = Host(folder, devices, memory_bytes)
    try:
        host.serve(sys.stdin.fileno())
    finally:
        host.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
