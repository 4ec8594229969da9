"""The host of an island: brings clients in, starts their workers, and gives out turns.

    python -m rota.flow.host FOLDER DEVICES MEMORY_BYTES KIND [--agent [HELD]]

has devices of a kind, cpu or cuda, and serves the clients that connect to the socket in FOLDER
until its standard input ends. With --agent it serves programs of jobs alone, for which an agent
takes seats (:mod:`rota.flow.seats`), until the agent ends it, or for some time there is neither an
agent nor a program; HELD is a descriptor that it closes then. It loads torch once and forks
workers; it has one thread and runs no computation.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rota.errors import FlowError, InputError
from rota.flow import wire
from rota.flow.accelerator import Accelerator, Cores, kind_of
from rota.flow.ends import MOST_LOOK_S, Ends, finished
from rota.flow.floor import Floor
from rota.flow.grants import Grants
from rota.flow.island import Island, Wait
from rota.flow.limit import Limit
from rota.flow.members import Member, Place, RankPlace, Ranks
from rota.flow.moves import Moves
from rota.flow.order import Stride
from rota.flow.page import (
    AWAY,
    FINISHED,
    FUNCTION,
    GONE,
    HELD_BYTES,
    HOST,
    LOG,
    OWNER,
    PRESENT,
    READY,
    SOCKET,
    SPENT_NS,
    TAKES_NS,
    Log,
    mark_of,
    rings_of,
)
from rota.flow.seats import Seats, Taken
from rota.flow.standing import IN_ORDER, Standing
from rota.flow.starting import Starting
from rota.live.wire import island as asked
from rota.live.wire.island import Runs, Seen
from rota.live.wire.unixpath import short

LOOK_EVERY_S = 0.005  # while turns of dead workers are given out, or a grant may be given
LOOKS = 8  # for operations that run for too long, in the time that one may last
MOST_SILENT = 64  # connections that have not said who they are; the oldest makes room
MOST_AT_ONCE = 1024  # clients that connect before the host looks
MOST_OPERATIONS = 1 << 17  # of a client that are not over
MOST_READS = 16  # of what a client had told when its grant was taken back: a socket's buffers
FORSAKEN_S = 60.0  # without an agent and a program: then the host of an island of jobs ends


class Host:
    """See the module. ``folder`` is on a file system in memory."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        memory_bytes: int,
        island: Island | None = None,
        on: type[Accelerator] = Cores,
    ) -> None:
        """``on`` makes what a worker computes on. Raises OSError."""
        island = island or Island(rings_of(devices), Stride(on.quantum_s))
        self._floor = Floor(folder, devices, memory_bytes, island)
        self._grants = Grants(self._floor, self._hear_all)
        self._moves = Moves(self._floor, self._grants)
        self._starting = Starting(self._floor, on, self._watch, self._let_go)
        self._ends = Ends(self._floor, self._grants, self._starting, self._forget)
        self._last = 0
        self._seats: Seats | None = None  # of an island of jobs
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.setblocking(False)
        unheard = folder / f"{SOCKET}.new"  # who finds the other name can connect
        with short(unheard) as path:
            self._door.bind(path)
        self._door.listen(MOST_AT_ONCE)
        unheard.rename(folder / SOCKET)
        self._selector = selectors.DefaultSelector()
        self._watch(self._door.fileno(), self._welcome)
        self._watch(self._floor.bells.own(HOST), self._rung_for)

    def serve(self, until: int | None) -> None:
        """Serve until this descriptor ends; without one, as an agent says. See the module."""
        if until is not None:
            self._selector.register(until, selectors.EVENT_READ, None)
        else:
            self._seats = Seats(self._floor.folder, self, self._watch, self._forget)
        alone_s = 0.0  # time for which there was nobody to serve
        while not (self._seats is not None and self._seats.ended) and alone_s < FORSAKEN_S:
            soon = self._settle_seats()
            soon = (
                self._grants.settle() or soon or self._floor.dead_wait or self._floor.memory.waits
            )
            forsaken = self._seats is not None and self._seats.is_forsaken
            began_s = time.monotonic()
            looks_s = (
                [LOOK_EVERY_S] * soon
                + [FORSAKEN_S] * forsaken
                + [
                    min(max(each.limit.seconds / LOOKS, LOOK_EVERY_S), MOST_LOOK_S)
                    for each in self._floor.members.values()
                    if each.limit is not None
                ]
            )
            for key, _ in self._selector.select(min(looks_s, default=None)):
                if key.data is None:
                    return
                key.data()
            alone_s = alone_s + time.monotonic() - began_s if forsaken else 0.0
            self._order()
            self._ends.end_overdue()

    def close(self) -> None:
        """End all workers."""
        for place in self._floor.places.values():
            place.kill()
        for place in self._floor.places.values():
            if not place.gone:
                place.ended()

    # -- turns -----------------------------------------------------------------------------------

    def _rung_for(self) -> None:
        self._floor.bells.heard(HOST)

    def _take_length(self, place: Place) -> None:
        """Take note of how long a worker's operations take."""
        function, seconds = self._floor.page.of(place.slot, FUNCTION), max(1, place.takes_ns) / 1e9
        changed = self._floor.lengths.took(place.member.number, function, seconds)
        for (number, each), counts_s in changed.items():
            self._floor.members[number].seconds[each] = counts_s
            self._floor.island.took(number, each, counts_s)

    def _order(self) -> None:
        """Take note of what is done and ready, and give out what may be next."""
        page, island = self._floor.page, self._floor.island
        for member in list(self._floor.members.values()):
            self._take_runs(member)
            if member.lost is not None and member.standing in (
                Standing.ORDERED,
                Standing.RETIRING,
                Standing.GRANTED,
            ):
                self._ends.recover(member, member.lost)
        for member in list(self._floor.members.values()):  # before another one has a turn there
            is_granted = member.standing == Standing.GRANTED
            if not is_granted or not any(map(self._floor.has_called, member.beside)):
                continue
            if problem := self._grants.revoke(member):
                self._ends.refuse(member, problem)
        if self._floor.memory.waits:
            self._floor.settle_memory()
        for slot, place in self._floor.places.items():
            member = place.member
            takes_ns, ready = page.of(slot, TAKES_NS), page.of(slot, READY)
            if takes_ns != place.takes_ns:
                place.takes_ns = takes_ns
                self._take_length(place)
            is_granted = member.standing == Standing.GRANTED
            if ready != place.ready and not is_granted and place.device >= 0:
                place.ready = ready
                island.ready(member.number, place.device, ready)
        for place in list(self._floor.places.values()):
            if place.ready == GONE and not place.gone and isinstance(place, RankPlace):
                self._ends.lose(place)  # it has left
        self._floor.drain()
        for training in self._trainings():
            if training.background:
                self._floor.pause(training)
        self._floor.give_out()

    def _hear_all(self, member: Member) -> str:
        """Take in all that the client has told by now; what is wrong with it, if anything."""
        try:
            for _ in range(MOST_READS):
                if not (data := wire.received(member.connection)):
                    break
                for message in member.reader.take(data):
                    self._take(member, message)
        except (FlowError, InputError) as error:
            return str(error)
        return ""

    # -- seats -----------------------------------------------------------------------------------

    def check(self, devices: list[int], cores: list[list[int]]) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        self._moves.check(devices, cores)

    def withdraw(self, seat: Taken) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        if isinstance(seat.program, Member) and (problem := self._moves.withdraw(seat.program)):
            self._ends.refuse(seat.program, problem)

    def put(self, seat: Taken, devices: list[int], cores: list[list[int]]) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        self._moves.check(devices, cores)
        if isinstance(seat.program, Member):
            self._moves.put(seat.program, devices, cores)

    def dismiss(self, seat: Taken) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        if isinstance(seat.program, Member):
            self._ends.refuse(seat.program, "its job is over")

    def seen(self, seat: Taken) -> Seen:
        """See :class:`rota.flow.seats.Holder`."""
        member, page = seat.program, self._floor.page
        if isinstance(member, Member):
            self._take_runs(member)  # it is gone if these are wrong
        if not isinstance(member, Member) or member.gone:
            return Seen(
                key=seat.told.key,
                present=False,
                away=seat.away,
                devices=seat.devices,
                operations=seat.operations,
                outstanding=0,
                spent_s=[],
                held_bytes=[],
                memory_bytes=seat.told.memory_bytes or self._floor.memory_bytes,
                pids=[],
                slices=[],
                waits=Wait.WORK,
            )
        self._floor.prune(member)
        alive = [slot for slot in member.order if not self._floor.places[slot].gone]
        waiting = self._floor.island.waiting(member.number) if member.standing in IN_ORDER else None
        nobody = Wait.NOBODY if member.outstanding else Wait.WORK
        behind = self._floor.members.get(waiting.behind or 0) if waiting is not None else None
        return Seen(
            key=seat.told.key,
            present=True,
            away=member.is_off,
            devices=seat.devices,
            operations=seat.operations + finished(member, self._floor.page),
            outstanding=member.outstanding,
            spent_s=[page.of(slot, SPENT_NS) / 1e9 for slot in member.order],
            held_bytes=[page.of(slot, HELD_BYTES) for slot in member.order],
            memory_bytes=member.memory_bytes,
            pids=[self._floor.places[slot].pid for slot in alive],
            slices=member.slices,
            waits=waiting.what if waiting is not None else nobody,
            device=waiting.device if waiting is not None else None,
            behind=_key_of(behind),
            runs=self._runs(member, seat.devices),
        )

    def _runs(self, member: Member, devices: list[int]) -> list[Runs]:
        """What a client's workers are in: operations, or what keeps them on these devices."""
        page, found = self._floor.page, []
        for slot, device in zip(member.order, devices, strict=True):
            place, present = self._floor.places[slot], page.of(slot, PRESENT)
            if place.gone or device < 0:
                continue
            if place.device >= 0 and page.of(slot, FINISHED) < present:
                since_s = place.at_since_s(present)
                found.append(Runs(member.label(present), device, since_s))
            elif member.standing == Standing.GOING and (doing := place.doing()):
                found.append(Runs(doing, device, place.at_since_s(doing)))
        return found

    def admit(self, told: asked.Ranks) -> tuple[list[int], list[int]]:
        """See :class:`rota.flow.seats.Holder`."""
        self.check(told.devices, [[] for _ in told.devices])
        if len(told.pids) != len(told.devices) or min(told.devices) < 0:
            raise FlowError(
                f"devices: {told.devices}; give one for each of {len(told.pids)} processes"
            )
        if any(each.name == told.key for each in self._trainings()):
            raise FlowError("the training has this seat already")
        self._check_room(len(told.devices))
        self._last += 1
        member = Ranks(self._last, told, self._floor.page)
        member.become(Standing.ORDERED)
        self._floor.members[member.number] = member
        behind = self._floor.page.behind
        rings = [behind(device) for device in told.devices] if told.background else told.devices
        self._floor.island.join(member.number, member.weight, rings)
        try:
            for worker, (device, pid) in enumerate(zip(rings, told.pids, strict=True)):
                place = RankPlace(self._floor.free_slot(device), member, pid)
                self._floor.places[place.slot] = place
                self._floor.page.tell(place.slot, OWNER, mark_of(told.key))
                member.order[worker] = place.slot
                member.slots[place.slot], member.slot_on[device] = device, place.slot
                self._watch(place.process, partial(self._ends.lose, place))
        except OSError as error:
            self._ends.leave(member)
            raise FlowError(f"a rank of {told.key} is gone: {error}") from None
        self._floor.meet(member)
        return member.order, rings

    def part(self, key: str) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        for member in [each for each in self._trainings() if each.name == key]:
            for place in [self._floor.places[slot] for slot in member.order]:
                self._ends.lose(place)

    @property
    def serves_trainings(self) -> bool:
        """See :class:`rota.flow.seats.Holder`."""
        return bool(self._trainings())

    def _trainings(self) -> list[Ranks]:
        return [each for each in self._floor.members.values() if isinstance(each, Ranks)]

    def _settle_seats(self) -> bool:
        """Take workers off their devices, and put them on others.

        True while some are to come, or have just come: their operations are to be ordered.
        """
        if self._seats is None:
            return False
        soon = False
        for member in list(self._floor.members.values()):
            soon |= self._moves.settle(member)
            if member.standing in (Standing.GOING, Standing.AWAY) and member.is_busy:
                assert member.seat is not None
                self._seats.called(member.seat)
        self._seats.settle()
        return soon

    # -- clients ---------------------------------------------------------------------------------

    def _welcome(self) -> None:
        try:
            connection, _ = self._door.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._turn_away(error)
            return
        connection.setblocking(False)
        self._last += 1
        member = self._floor.silent[self._last] = Member(self._last, connection, self._floor.page)
        self._watch(connection.fileno(), lambda: self._hear_client(member))
        if member.process >= 0:
            self._watch(member.process, lambda: self._ends.leave(member))
        if len(self._floor.silent) > MOST_SILENT:
            self._ends.refuse(self._oldest_silent(), "others came, and it had not said hello")

    def _oldest_silent(self) -> Member:
        return next(iter(self._floor.silent.values()))

    def _turn_away(self, error: OSError) -> None:
        """There is no descriptor for another client: one that is silent makes room, or it goes."""
        if self._floor.silent:
            self._ends.refuse(self._oldest_silent(), "others came, and it had not said hello")
            return
        os.close(self._spare)
        with contextlib.suppress(OSError):
            connection, _ = self._door.accept()
            with connection:
                refused = wire.Refused(f"the island has no room for another client: {error}")
                connection.send(wire.encoded(refused))
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _watch(self, descriptor: int, call: Any) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def _forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def _hear_client(self, member: Member) -> None:
        if member.gone:  # a moment ago
            return
        data = wire.received(member.connection)
        if data is None:
            self._ends.leave(member)
            return
        try:
            for message in member.reader.take(data):
                self._take(member, message)
        except (FlowError, InputError) as error:
            self._ends.refuse(member, str(error))

    def _take(self, member: Member, message: wire.ToHost) -> None:
        """Do what a client asks for. Raises FlowError, InputError."""
        if isinstance(message, wire.Hello) != (member.number in self._floor.silent):
            raise FlowError("a client says hello first, and once")
        match message:
            case wire.Hello():
                self._admit(member, message)
            case wire.DefineGangs():
                member.define(message)
            case wire.Want():
                self._floor.want(member, message)
            case wire.Recover():
                member.lost = message.slots

    def _take_runs(self, member: Member) -> None:
        """Take note of what a client runs by now."""
        runs = member.runs.take() if member.runs is not None else []
        problem = ""
        if isinstance(member, Ranks):
            try:
                runs = member.called()
            except FlowError as error:
                problem = str(error)
        if any(program not in member.programs for program, _ in runs):
            problem = self._hear_all(member)  # it was told of on the socket, before
        try:
            if problem:
                raise FlowError(problem)
            member.note(runs)
            if member.outstanding > MOST_OPERATIONS:
                self._floor.prune(member)
            if member.outstanding > MOST_OPERATIONS:
                raise FlowError(f"{member.outstanding} operations are not over, too many")
            if member.standing in IN_ORDER:
                for run in runs:
                    self._floor.island.submit(member.number, member.operations(run))
        except (FlowError, InputError) as error:
            self._ends.refuse(member, str(error))

    def _admit(self, member: Member, hello: wire.Hello) -> None:
        member.name, member.weight = hello.name, hello.weight
        if hello.op_timeout_s is not None:
            if not hello.op_timeout_s > 0:
                raise FlowError(f"op_timeout_s is {hello.op_timeout_s}: give seconds above 0")
            member.limit = Limit(hello.op_timeout_s)
        memory_bytes = hello.memory_bytes
        if self._seats is None:
            devices = self._chosen(hello.devices)
        else:
            seat = self._seated(hello)
            devices = [AWAY if seat.away else d for d in seat.devices]
            member.weight, memory_bytes = seat.told.weight, seat.told.memory_bytes
        self._check_room(len(devices))
        if self._seats is not None and seat.away:
            member.become(Standing.AWAY)
        else:
            on = [device for device in devices if device >= 0]
            self._floor.island.join(member.number, member.weight, on)
            member.become(Standing.ORDERED)
        if self._seats is not None:
            member.seat, seat.program = seat, member
        del self._floor.silent[member.number]
        self._floor.members[member.number] = member
        member.parcels = self._floor.folder / f"client{member.number}"
        opened: list[socket.socket] = []  # the client's ends of connections to its workers
        try:
            member.parcels.mkdir(mode=0o700)
            member.runs = Log(member.parcels / LOG, make=True)
            for worker, device in enumerate(devices):
                self._starting.start(member, worker, device, opened, self._ends.lose)
            most_bytes = self._floor.memory_bytes
            member.memory_bytes = min(memory_bytes or most_bytes, most_bytes)
            for device, slot in member.slot_on.items():
                self._floor.memory.join(member.number, slot, device, member.memory_bytes)
            told = devices if member.seat is None else member.seat.devices
            welcome = wire.Welcome(
                member.number,
                told,
                member.order,
                self._floor.devices,
                self._floor.slots,
                member.memory_bytes,
            )
            descriptors = [each.fileno() for each in opened]
            socket.send_fds(member.connection, [wire.encoded(welcome)], descriptors)
        except OSError as error:
            raise FlowError(f"the island has no room for another client: {error}") from None
        finally:
            for each_socket in opened:
                each_socket.close()
        self._floor.meet(member)

    def _check_room(self, workers: int) -> None:
        """Raises FlowError if there is no room for so many more."""
        if not self._floor.has_room(workers):
            most = self._floor.slots - 1
            raise FlowError(f"the island has {most} workers at most, and no room for more")

    def _seated(self, hello: wire.Hello) -> Taken:
        """The seat of a program that says hello. Raises FlowError."""
        assert self._seats is not None
        seat = self._seats.take(hello.key)
        if isinstance(seat.program, Member):  # it may have left, and this come first
            for _ in range(MOST_READS):
                self._hear_client(seat.program)
        if seat.program is not None:
            raise FlowError("the job has a client already: close that one first")
        return seat

    def _chosen(self, wanted: Sequence[int] | int) -> list[int]:
        """The devices for a client: those it names, or the least loaded."""
        devices = self._floor.devices
        if not isinstance(wanted, int):
            if bad := [each for each in wanted if not 0 <= each < devices]:
                raise FlowError(
                    f"devices: there is no device {bad[0]}; the island has 0 to {devices - 1}"
                )
            return sorted(set(wanted))
        if not 1 <= wanted <= devices:
            raise FlowError(f"devices: {wanted} are asked for; the island has {devices}")
        load = [0] * devices
        for place in self._floor.places.values():
            load[place.device % devices] += 1
        return sorted(sorted(range(devices), key=lambda each: (load[each], each))[:wanted])

    def _let_go(self) -> None:
        """In a worker: close all that is the host's or of other clients."""
        self._selector.close()
        self._door.close()
        if self._seats is not None:
            self._seats.let_go()
        self._floor.bells.close()
        os.close(self._spare)
        for member in (*self._floor.silent.values(), *self._floor.members.values()):
            member.connection.close()
            if member.process >= 0:
                os.close(member.process)
        for place in self._floor.places.values():
            if not place.gone:
                os.close(place.process)


def _key_of(member: Member | None) -> str:
    """The key of a member's seat; empty without one."""
    if isinstance(member, Ranks):
        return member.name
    return member.seat.told.key if member is not None and member.seat is not None else ""


def main() -> None:
    """See the module."""
    # Torch looks for GPUs by CUDA otherwise, and forks of a process that has done so can't use any.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    torch.set_num_threads(1)
    import torch.distributed

    import rota.flow.worker  # noqa: F401  # workers have it without loading it
    from rota.flow.functions import Spec
    from rota.flow.outline import outline

    outline(torch.neg, [Spec((1,), "float32")], 0, 1)  # loads what takes a second
    folder, devices, memory_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    try:
        on = kind_of(sys.argv[4])
    except FlowError as error:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(str(error))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        host = Host(folder, devices, memory_bytes, on=on)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"an island of {devices} devices can't be made in {folder}: {error.strerror}")
    try:
        host.serve(None if sys.argv[5:6] == ["--agent"] else sys.stdin.fileno())
    finally:
        host.close()
        shutil.rmtree(folder, ignore_errors=True)
        for held in sys.argv[6:]:
            os.close(int(held))  # while the agent is connected, which goes by that


if __name__ == "__main__":
    main()
