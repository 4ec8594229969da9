"""The host of an island: brings clients in, starts their workers, and gives out turns.

    python -m rota.flow.host FOLDER DEVICES MEMORY_BYTES KIND [--agent]

has devices of a kind, cpu or cuda, and serves the clients that connect to the socket in FOLDER
until its standard input ends. With --agent it serves programs of jobs alone, for which an agent
takes seats (:mod:`rota.flow.seats`), until the agent ends it, or for some time there is neither an
agent nor a program. It loads torch once and forks workers; it has one thread and runs no
computation.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rota.errors import FlowError, InputError
from rota.flow import wire
from rota.flow.accelerator import Accelerator, Cores, kind_of
from rota.flow.island import Island, Wait
from rota.flow.limit import Limit
from rota.flow.members import Member, Place, RankPlace, Ranks
from rota.flow.memory import Memory
from rota.flow.order import Order, Stride
from rota.flow.page import (
    ALLOWED,
    ALLOWED_BYTES,
    AWAY,
    BEGUN,
    DEVICE,
    FINISHED,
    FUNCTION,
    GONE,
    HELD_BYTES,
    HOST,
    LOG,
    LOSSES,
    MOVES,
    PLACED,
    PRESENT,
    READY,
    SLOTS,
    SOCKET,
    SPENT_NS,
    TAKEN,
    TAKES_NS,
    USED_BYTES,
    Barrier,
    Bells,
    Log,
    Page,
)
from rota.flow.seats import Seats, Taken
from rota.flow.standing import IN_ORDER, Standing
from rota.live.wire import island as asked
from rota.live.wire.island import NO_DEVICE, Runs, Seen

LIKE = 0.75  # lengths of operations that differ by less count as equal
LOOK_EVERY_S = 0.005  # while turns of dead workers are given out, or a grant may be given
CALM_S = 0.01  # for which all others had nothing to do before a client has a grant
LOOKS = 8  # for operations that run for too long, in the time that one may last
MOST_LOOK_S = 1.0  # between two of them
MOST_SILENT = 64  # connections that have not said who they are; the oldest makes room
MOST_AT_ONCE = 1024  # clients that connect before the host looks
MOST_OPERATIONS = 1 << 17  # of a client that are not over
MOST_READS = 16  # of what a client had told when its grant was taken back: a socket's buffers
FORSAKEN_S = 60.0  # without an agent and a program: then the host of an island of jobs ends
PR_SET_PDEATHSIG = 1


class Told:
    """The page, as :class:`rota.flow.memory.Memory` reads and writes it."""

    def __init__(self, page: Page, barrier: Barrier) -> None:
        self._page, self.barrier = page, barrier

    def counted_bytes(self, slot: int) -> int:
        """See :class:`rota.flow.memory.Words`."""
        return self._page.of(slot, USED_BYTES)

    def held_bytes(self, slot: int) -> int:
        """See :class:`rota.flow.memory.Words`."""
        return self._page.of(slot, HELD_BYTES)

    def taken(self, slot: int) -> int:
        """See :class:`rota.flow.memory.Words`."""
        return self._page.of(slot, TAKEN)

    def allow(self, slot: int, allowed_bytes: int) -> None:
        """See :class:`rota.flow.memory.Words`."""
        self._page.tell(slot, ALLOWED_BYTES, allowed_bytes)


class Host:
    """See the module. ``folder`` is on a file system in memory."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        memory_bytes: int,
        order: Order | None = None,
        on: type[Accelerator] = Cores,
    ) -> None:
        self.on = on  # makes what a worker computes on
        self._folder, self._devices, self._memory_bytes = folder, devices, memory_bytes
        self._page = Page(folder / "page", devices, SLOTS, make=True)
        self._bells = Bells(folder)
        self._bells.make(HOST)
        self._barrier = Barrier()
        self._island = Island(range(devices), order or Stride(on.quantum_s))
        self._memory = Memory(memory_bytes, Told(self._page, self._barrier))
        self._silent: dict[int, Member] = {}  # who have not said hello, the oldest first
        self._members: dict[int, Member] = {}
        self._places: dict[int, Place] = {}  # by slot
        self._dead: set[int] = set()  # slots that may have turns yet
        self._dead_wait = False  # such turns are given out
        self._rung = [0] * devices  # the last turn whose owner was woken
        self._last = 0
        self._lengths_s: list[float] = []  # of operations, each far from the others
        self._draining: dict[int, int] = {}  # by slot: the operation until which nobody has turns
        self._drained: set[int] = set()  # devices of these
        self._seats: Seats | None = None  # of an island of jobs
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.setblocking(False)
        self._door.bind(str(folder / SOCKET))
        self._door.listen(MOST_AT_ONCE)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ, self._welcome)
        self._selector.register(self._bells.own(HOST), selectors.EVENT_READ, self._rung_for)

    def serve(self, until: int | None) -> None:
        """Serve until this descriptor ends; without one, as an agent says. See the module."""
        if until is not None:
            self._selector.register(until, selectors.EVENT_READ, None)
        else:
            self._seats = Seats(self._folder, self, self._watch, self._forget)
        alone_s = 0.0  # time for which there was nobody to serve
        while not (self._seats is not None and self._seats.ended) and alone_s < FORSAKEN_S:
            soon = self._settle_seats()
            soon = self._settle_grants() or soon or self._dead_wait or self._memory.waits
            forsaken = self._seats is not None and self._seats.is_forsaken
            began_s = time.monotonic()
            looks_s = (
                [LOOK_EVERY_S] * soon
                + [FORSAKEN_S] * forsaken
                + [
                    min(max(each.limit.seconds / LOOKS, LOOK_EVERY_S), MOST_LOOK_S)
                    for each in self._members.values()
                    if each.limit is not None
                ]
            )
            for key, _ in self._selector.select(min(looks_s, default=None)):
                if key.data is None:
                    return
                key.data()
            alone_s = alone_s + time.monotonic() - began_s if forsaken else 0.0
            self._order()
            self._end_overdue()

    def close(self) -> None:
        """End all workers."""
        for place in self._places.values():
            place.kill()
        for place in self._places.values():
            if not place.gone:
                place.ended()

    # -- turns -----------------------------------------------------------------------------------

    def _rung_for(self) -> None:
        self._bells.heard(HOST)

    def _like_others(self, seconds: float, before: float | None) -> float:
        """Seconds that operations of this length count as: equal for all that take about as long.

        Shares are exact for operations that count as much, and lengths are measured with an error.
        """
        known = [] if before is None else [before]
        for each in (*known, *self._lengths_s):
            if LIKE < seconds / each < 1 / LIKE:
                return each
        self._lengths_s.append(seconds)
        return seconds

    def _settle_memory(self) -> None:
        """Answer who waits for memory and can have it now."""
        for answer in self._memory.settle():
            member = self._members[answer.client]
            with contextlib.suppress(OSError):  # it is gone, which the next look shows
                member.connection.sendall(wire.encoded(wire.Given(answer.error)))

    def _order(self) -> None:
        """Take note of what is done and ready, and give out what may be next."""
        page, island = self._page, self._island
        for member in list(self._members.values()):
            self._take_runs(member)
            if member.lost is not None and member.standing in (
                Standing.ORDERED,
                Standing.RETIRING,
                Standing.GRANTED,
            ):
                self._recover(member, member.lost)
        for member in list(self._members.values()):  # before another one has a turn there
            if member.standing == Standing.GRANTED and any(map(self._has_called, member.beside)):
                self._revoke(member)
        if self._memory.waits:
            self._settle_memory()
        for slot, place in self._places.items():
            member = place.member
            takes_ns, ready = page.of(slot, TAKES_NS), page.of(slot, READY)
            if takes_ns != place.takes_ns:
                place.takes_ns, function = takes_ns, page.of(slot, FUNCTION)
                seconds = self._like_others(max(1, takes_ns) / 1e9, member.seconds.get(function))
                if seconds != member.seconds.get(function):
                    member.seconds[function] = seconds
                    island.took(member.number, function, seconds)
            is_granted = member.standing == Standing.GRANTED
            if ready != place.ready and not is_granted and place.device >= 0:
                place.ready = ready
                island.ready(member.number, place.device, ready)
        for place in list(self._places.values()):
            if place.ready == GONE and not place.gone and isinstance(place, RankPlace):
                self._lose(place)  # it has left
        self._drain()
        while True:
            self._pass_dead()
            for device in range(self._devices):
                island.done(device, page.done(device))
            tickets = island.issue()
            for ticket in tickets:
                slot_on = self._members[ticket.client].slot_on
                for device, turn in ticket.turns:
                    page.give(device, turn, slot_on[device])
            if not tickets or not self._dead:
                break
        for device in range(self._devices):
            turn = page.done(device) + 1
            if turn != self._rung[device] and (head := page.head(device)) > 0:
                self._rung[device] = turn
                self._bells.ring(head)

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
        waiting &= self._dead
        self._dead_wait = bool(waiting)
        self._dead = {each for each in self._dead if each in waiting or each in self._places}

    def _drain(self) -> None:
        """Nobody has turns on a device until what was begun there under a grant is over."""
        page, before = self._page, self._drained
        if not self._draining and not before:
            return
        self._draining = {s: k for s, k in self._draining.items() if page.of(s, FINISHED) < k}
        self._drained = {self._places[slot].device for slot in self._draining}
        if self._drained != before:
            for member in self._members.values():
                self._pause(member)

    def _pause(self, member: Member) -> None:
        """Let the island issue a client's operations, or not for now."""
        if member.standing in IN_ORDER:
            drains = not self._drained.isdisjoint(member.slot_on)
            paused = member.standing != Standing.ORDERED or drains
            self._island.pause(member.number, paused=paused)

    def _end_overdue(self) -> None:
        """End the workers that are in an operation for too long.

        An operation counts once all workers of its gang have begun it, or are gone: those that wait
        for their turn may be late because of another client.
        """
        page = self._page
        for member in self._members.values():
            if member.limit is None:
                continue
            present = {slot: page.of(slot, PRESENT) for slot in member.slots}
            running = {n for slot, n in present.items() if page.of(slot, FINISHED) < n}
            whole = []
            for each in running:
                gang = member.gang(each)
                if gang and all(max(present[s], page.of(s, FINISHED)) >= each for s in gang):
                    whole.append(each)
            for each in member.limit.exceeded(whole, time.monotonic()):
                for slot in member.gang(each):
                    if present[slot] == each and page.of(slot, FINISHED) < each:
                        self._places[slot].overdue = each
                        self._places[slot].kill()

    # -- grants ----------------------------------------------------------------------------------

    def _prune(self, member: Member) -> None:
        """Forget what is over of a client's log."""
        if not member.log:
            return
        member.busy_at_s = time.monotonic()
        while member.log:
            program, number = member.log[0]
            for worker, i in member.programs[program].last.items():
                if self._page.of(member.order[worker], FINISHED) < number + i:
                    return
            member.over()

    def _has_called(self, member: Member) -> bool:
        """True if something of a client is not over."""
        self._prune(member)
        return bool(member.log)

    def _settle_grants(self) -> bool:
        """Give grants; True if it must be looked again soon."""
        members = list(self._members.values())
        for member in members:
            self._prune(member)
        if not self._barrier.works:
            return False
        soon = False
        for member in members:  # nobody beside one that has something to do has a grant
            if member.standing not in (Standing.ORDERED, Standing.RETIRING):
                continue
            if not (member.log and member.whole and member.slot_on) or isinstance(member, Ranks):
                continue
            now_s = time.monotonic()
            calm = all(now_s > each.busy_at_s + CALM_S for each in member.beside)
            if calm != (member.standing == Standing.RETIRING):
                member.become(Standing.RETIRING if calm else Standing.ORDERED)
                self._pause(member)
            devices = member.slot_on
            if (
                calm
                and self._drained.isdisjoint(devices)
                and all(self._page.done(d) == self._page.issued(d) for d in devices)
            ):
                self._grant(member)
            else:
                soon = True
        return soon

    def _grant(self, member: Member) -> None:
        """Let a client run what it likes on its devices, where nobody else has anything to do."""
        self._island.leave(member.number)
        member.become(Standing.GRANTED)
        for device, slot in member.slot_on.items():
            self._page.grant(device, slot)
            self._bells.ring(slot)

    def _revoke(self, member: Member) -> None:
        """Take a client's grant back: what it has begun, and what that needs, goes on.

        An operation that some of its workers have begun needs the others, and these need their
        inputs. All that may have to come first has a smaller number.
        """
        page = self._page
        for device in member.slot_on:
            page.grant(device, 0)
        self._barrier()
        runs = member.runs.take() if member.runs is not None else []
        problem = self._hear_all(member)  # the programs of these runs were told of before
        try:
            member.note(runs)
        except FlowError as error:
            problem = problem or str(error)
        member.become(Standing.ORDERED)
        self._prune(member)
        alive = {slot for slot in member.order if not self._places[slot].gone}
        begun = {slot: max(page.of(slot, BEGUN), page.of(slot, FINISHED)) for slot in alive}
        parts = [each for run in member.log for each in member.parts(run)]
        torn = 0  # the last one that was begun, and not by all
        for number, slots, _, _ in parts:
            have = [begun[slot] >= number for slot in slots if slot in alive]
            if any(have) and not all(have):
                torn = number
        self._island.join(member.number, member.weight, member.slot_on)
        for part in parts:
            on = [slot for slot in part.slots if slot in alive]
            if part.number <= torn or (on and begun[on[0]] >= part.number):
                self._draining |= dict.fromkeys(on, part.number)
            elif (operation := member.operation(part)) is not None:
                self._island.submit(member.number, [operation])
        self._drained = {self._places[slot].device for slot in self._draining}
        for sharer in self._members.values():
            self._pause(sharer)
        for slot in member.order:
            self._places[slot].ready = 0  # the island has forgotten it
            page.tell(slot, ALLOWED, torn)
            self._bells.ring(slot)
        if problem:
            self._refuse(member, problem)

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
        on = [device for device in devices if device >= 0]
        known = {NO_DEVICE, *range(self._devices)}
        if not on or len(set(on)) < len(on) or not known.issuperset(devices):
            raise FlowError(
                f"devices: {devices}; give some of 0 to {self._devices - 1}, each once, and -1 for "
                "a worker without a device"
            )
        if len(cores) != len(devices):
            raise FlowError(f"cores: {cores}; give a list for each of {len(devices)} workers")

    def withdraw(self, seat: Taken) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        member = seat.program
        if not isinstance(member, Member):
            return
        if member.standing == Standing.COMING:
            self._take_off(member)
        if member.standing == Standing.GRANTED:
            self._revoke(member)  # it is gone if what it has told is wrong
        if member.standing in (Standing.ORDERED, Standing.RETIRING):
            member.become(Standing.LEAVING)
            self._pause(member)

    def put(self, seat: Taken, devices: list[int], cores: list[list[int]]) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        self.check(devices, cores)
        member = seat.program
        if not isinstance(member, Member):
            return
        if member.standing == Standing.LEAVING:  # not gone yet: it stays
            member.become(Standing.ORDERED)
            self._pause(member)
        present = [member.slots[slot] for slot in member.order]
        if devices == present:  # they are there, or on their way
            return
        if member.standing == Standing.COMING:
            self._take_off(member)
        if not member.is_off:
            raise FlowError("the workers of the seat are on other devices: pause it first")
        pairs = list(zip(member.order, devices, strict=True))
        for slot, device in pairs:
            needed_bytes = self._memory.needed_bytes(slot)
            if device >= 0 and needed_bytes > (free_bytes := self._memory.free_bytes(device)):
                raise FlowError(
                    f"the job's buffers have {needed_bytes:,} bytes, and device {device} has room "
                    f"for {free_bytes:,}"
                )
        member.become(Standing.COMING)
        member.slots = dict(pairs)
        member.slot_on = {device: slot for slot, device in pairs if device >= 0}
        for (slot, device), own in zip(pairs, cores, strict=True):
            place = self._places[slot]
            self._page.tell(slot, MOVES, self._page.of(slot, MOVES) + 1)
            self._page.tell(slot, DEVICE, device)
            self._bells.ring(slot)
            if not place.gone:
                _bind(place.pid, own)
            if device >= 0 and not place.gone:
                self._memory.join(member.number, slot, device, member.memory_bytes)
        with contextlib.suppress(OSError):  # it is gone, which the next look shows
            member.connection.sendall(wire.encoded(wire.Placed(devices)))

    def dismiss(self, seat: Taken) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        if isinstance(seat.program, Member):
            self._refuse(seat.program, "its job is over")

    def seen(self, seat: Taken) -> Seen:
        """See :class:`rota.flow.seats.Holder`."""
        member, page = seat.program, self._page
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
                memory_bytes=seat.told.memory_bytes or self._memory_bytes,
                pids=[],
                slices=[],
                waits=Wait.WORK,
            )
        self._prune(member)
        alive = [slot for slot in member.order if not self._places[slot].gone]
        waiting = self._island.waiting(member.number) if member.standing in IN_ORDER else None
        behind = self._members.get(waiting.behind or 0) if waiting is not None else None
        return Seen(
            key=seat.told.key,
            present=True,
            away=member.is_off,
            devices=seat.devices,
            operations=seat.operations + self._finished(member),
            outstanding=member.outstanding,
            spent_s=[page.of(slot, SPENT_NS) / 1e9 for slot in member.order],
            held_bytes=[page.of(slot, HELD_BYTES) for slot in member.order],
            memory_bytes=member.memory_bytes,
            pids=[self._places[slot].pid for slot in alive],
            slices=member.slices,
            waits=waiting.what if waiting is not None else Wait.NOBODY,
            device=waiting.device if waiting is not None else None,
            behind=_key_of(behind),
            runs=self._runs(member),
        )

    def _finished(self, member: Member) -> int:
        """The last operation that one of a client's workers has finished."""
        told = (self._page.of(slot, FINISHED) for slot in member.order)
        member.finished = max(member.finished, *(each for each in told if each != GONE), 0)
        return member.finished

    def _runs(self, member: Member) -> list[Runs]:
        """The operations that a client's workers are in."""
        page, found = self._page, []
        for slot in member.order:
            place, present = self._places[slot], self._page.of(slot, PRESENT)
            if place.device >= 0 and not place.gone and page.of(slot, FINISHED) < present:
                since_s = place.in_since_s(present)
                found.append(Runs(member.label(present), place.device, since_s))
        return found

    def admit(self, told: asked.Ranks) -> list[int]:
        """See :class:`rota.flow.seats.Holder`."""
        self.check(told.devices, [[] for _ in told.devices])
        if len(told.pids) != len(told.devices) or min(told.devices) < 0:
            raise FlowError(
                f"devices: {told.devices}; give one for each of {len(told.pids)} processes"
            )
        if any(each.name == told.key for each in self._trainings()):
            raise FlowError("the training has this seat already")
        if len(self._places.keys() | self._dead) + len(told.devices) >= SLOTS:
            raise FlowError(f"the island has {SLOTS - 1} workers at most, and no room for more")
        self._last += 1
        member = Ranks(self._last, told, self._page)
        member.become(Standing.ORDERED)
        self._members[member.number] = member
        self._island.join(member.number, member.weight, told.devices)
        try:
            for worker, (device, pid) in enumerate(zip(told.devices, told.pids, strict=True)):
                place = RankPlace(self._free_slot(device), member, pid)
                self._places[place.slot] = place
                member.order[worker] = place.slot
                member.slots[place.slot], member.slot_on[device] = device, place.slot
                self._watch(place.process, partial(self._lose, place))
        except OSError as error:
            self._leave(member)
            raise FlowError(f"a rank of {told.key} is gone: {error}") from None
        self._meet(member)
        return member.order

    def part(self, key: str) -> None:
        """See :class:`rota.flow.seats.Holder`."""
        for member in [each for each in self._trainings() if each.name == key]:
            for slot in member.order:
                self._lose(self._places[slot])

    @property
    def serves_trainings(self) -> bool:
        """See :class:`rota.flow.seats.Holder`."""
        return bool(self._trainings())

    def _trainings(self) -> list[Ranks]:
        return [each for each in self._members.values() if isinstance(each, Ranks)]

    def _settle_seats(self) -> bool:
        """Take workers off their devices, and put them on others.

        True while some are to come, or have just come: their operations are to be ordered.
        """
        if self._seats is None:
            return False
        soon = False
        for member in list(self._members.values()):
            if member.standing == Standing.LEAVING and not self._has_turns(member):
                self._take_off(member)
            if member.standing == Standing.GOING and self._are_placed(member):
                member.become(Standing.AWAY)
                soon = True
            if member.standing == Standing.COMING and self._are_placed(member):
                self._are_there(member)
                soon = True
            soon = soon or not member.settled
            if member.standing in (Standing.GOING, Standing.AWAY) and member.is_busy:
                assert member.seat is not None
                self._seats.called(member.seat)
        self._seats.settle()
        return soon

    def _has_turns(self, member: Member) -> bool:
        """True while something of a client is under way on its devices."""
        page = self._page
        if not self._draining.keys().isdisjoint(member.order):
            return True
        return any(
            page.owner(device, turn) == slot
            for device, slot in member.slot_on.items()
            for turn in range(page.done(device) + 1, page.issued(device) + 1)
        )

    def _take_off(self, member: Member) -> None:
        """A client that has no turns leaves its devices."""
        self._island.leave(member.number)
        self._part(member)
        member.become(Standing.GOING)
        member.slot_on = {}
        wanted = self._memory.withdraw(member.number)
        if wanted is not None:
            member.wants = wire.Want(dict(wanted))
        for slot in member.order:
            if member.slots[slot] == NO_DEVICE:
                self._page.tell(slot, LOSSES, self._page.of(slot, LOSSES) + 1)
            member.slots[slot] = AWAY
            self._page.tell(slot, DEVICE, AWAY)
            self._bells.ring(slot)

    def _are_placed(self, member: Member) -> bool:
        """True if all workers of a client that live are where they were told to be."""
        page, alive = self._page, (s for s in member.order if not self._places[s].gone)
        return all(page.of(slot, PLACED) == member.slots[slot] for slot in alive)

    def _are_there(self, member: Member) -> None:
        """The workers of a client are where they were told to be."""
        member.become(Standing.ORDERED)
        self._island.join(member.number, member.weight, member.slot_on)
        for slot in member.order:
            self._places[slot].ready = 0  # what the island was told before counts no more
        for run in member.log:
            for part in member.parts(run):
                alive = [slot for slot in part.slots if not self._places[slot].gone]
                if all(self._page.of(slot, FINISHED) < part.number for slot in alive):
                    operation = member.operation(part)
                    if operation is not None:
                        self._island.submit(member.number, [operation])
        self._meet(member)
        if member.wants is not None:
            wants, member.wants = member.wants, None
            self._take(member, wants)

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
        member = self._silent[self._last] = Member(self._last, connection, self._page)
        self._watch(connection.fileno(), lambda: self._hear_client(member))
        if member.process >= 0:
            self._watch(member.process, lambda: self._leave(member))
        if len(self._silent) > MOST_SILENT:
            self._refuse(self._oldest_silent(), "others came, and it had not said hello")

    def _oldest_silent(self) -> Member:
        return next(iter(self._silent.values()))

    def _turn_away(self, error: OSError) -> None:
        """There is no descriptor for another client: one that is silent makes room, or it goes."""
        if self._silent:
            self._refuse(self._oldest_silent(), "others came, and it had not said hello")
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
            self._leave(member)
            return
        try:
            for message in member.reader.take(data):
                self._take(member, message)
        except (FlowError, InputError) as error:
            self._refuse(member, str(error))

    def _take(self, member: Member, message: wire.ToHost) -> None:
        """Do what a client asks for. Raises FlowError, InputError."""
        if isinstance(message, wire.Hello) != (member.number in self._silent):
            raise FlowError("a client says hello first, and once")
        match message:
            case wire.Hello():
                self._admit(member, message)
            case wire.DefineGangs():
                member.define(message)
            case wire.Want():
                if member.is_off:
                    member.wants = message
                else:
                    wanted = {s: b for s, b in message.bytes.items() if s in member.slots}
                    self._memory.want(member.number, wanted)
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
                self._prune(member)
            if member.outstanding > MOST_OPERATIONS:
                raise FlowError(f"{member.outstanding} operations are not over, too many")
            if member.standing in IN_ORDER:
                for run in runs:
                    self._island.submit(member.number, member.operations(run))
        except (FlowError, InputError) as error:
            self._refuse(member, str(error))

    def _refuse(self, member: Member, error: str) -> None:
        """Tell a client why, and let it go."""
        with contextlib.suppress(OSError):
            member.connection.sendall(wire.encoded(wire.Refused(error)))
        self._leave(member)

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
        if len(self._places) + len(self._dead) + len(devices) >= SLOTS:
            raise FlowError(f"the island has {SLOTS - 1} workers at most, and no room for more")
        if self._seats is not None and seat.away:
            member.become(Standing.AWAY)
        else:
            on = [device for device in devices if device >= 0]
            self._island.join(member.number, member.weight, on)
            member.become(Standing.ORDERED)
        if self._seats is not None:
            member.seat, seat.program = seat, member
        del self._silent[member.number]
        self._members[member.number] = member
        member.parcels = self._folder / f"client{member.number}"
        opened: list[socket.socket] = []  # the client's ends of connections to its workers
        try:
            member.parcels.mkdir(mode=0o700)
            member.runs = Log(member.parcels / LOG, make=True)
            for worker, device in enumerate(devices):
                self._start(member, worker, device, opened)
            member.memory_bytes = min(memory_bytes or self._memory_bytes, self._memory_bytes)
            for device, slot in member.slot_on.items():
                self._memory.join(member.number, slot, device, member.memory_bytes)
            told = devices if member.seat is None else member.seat.devices
            welcome = wire.Welcome(
                member.number, told, member.order, self._devices, SLOTS, member.memory_bytes
            )
            descriptors = [each.fileno() for each in opened]
            socket.send_fds(member.connection, [wire.encoded(welcome)], descriptors)
        except OSError as error:
            raise FlowError(f"the island has no room for another client: {error}") from None
        finally:
            for each_socket in opened:
                each_socket.close()
        self._meet(member)

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

    def _meet(self, member: Member) -> None:
        """The client is on its devices: note who else is."""
        own = member.slot_on.keys()
        member.beside = [
            m for m in self._members.values() if m is not member and not own.isdisjoint(m.slot_on)
        ]
        for each in member.beside:
            each.beside.append(member)
        self._pause(member)

    def _part(self, member: Member) -> None:
        """The client is on its devices no more."""
        for each in member.beside:
            each.beside.remove(member)
        member.beside = []

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

    def _start(self, member: Member, worker: int, device: int, opened: list[socket.socket]) -> None:
        """Fork a worker. Raises OSError."""
        slot = self._free_slot(device)
        ours, theirs = socket.socketpair()
        opened.append(ours)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for each in opened:
                each.close()
            _work(self, parent, theirs, slot, member, worker)
        theirs.close()
        os.setpgid(pid, pid)
        place = self._places[slot] = Place(slot, member, pid)
        member.order[worker : worker + 1] = [slot]
        member.slots[slot] = device
        if device >= 0:
            member.slot_on[device] = slot
        self._watch(place.process, lambda: self._lose(place))

    def _free_slot(self, device: int) -> int:
        """A slot that nobody has, for somebody on this device. Raises OSError."""
        slot = next(i for i in range(1, SLOTS) if i not in self._places and i not in self._dead)
        self._page.clear(slot, device)
        self._bells.forget(slot)
        with contextlib.suppress(FileExistsError):
            self._bells.make(slot)
        self._bells.own(slot)  # it is open from now on, so that no ring is lost
        return slot

    def _recover(self, member: Member, lost: Sequence[int]) -> None:
        """Start workers in place of a client's lost ones, which are those and all that have ended.

        All that it has run is over, by its own word; or it is refused.
        """
        member.lost = None
        for slot in member.slots.keys() & set(lost):
            self._lose(self._places[slot])
        self._prune(member)
        if member.log:
            self._refuse(member, "recover: operations of this client are not over")
            return
        slots, error = dict[int, int](), None
        opened: list[socket.socket] = []
        try:
            for worker, slot in enumerate(member.order):
                if not self._places[slot].gone:
                    continue
                if len(self._places.keys() | self._dead) >= SLOTS - 1:
                    raise OSError(f"it has {SLOTS - 1} workers at most")
                device = member.slots[slot]
                self._start(member, worker, device, opened)
                slots[slot] = member.order[worker]
                for word in (LOSSES, MOVES):
                    self._page.tell(slots[slot], word, self._page.of(slot, word))
                if device >= 0:
                    self._memory.join(member.number, slots[slot], device, member.memory_bytes)
                del self._places[slot], member.slots[slot]
        except OSError as problem:
            error = f"the island has no room for a worker: {problem}"
        member.whole = not any(self._places[slot].gone for slot in member.slots)
        if slots:  # the island forgets what it knew of the lost ones
            self._island.leave(member.number)
            self._island.join(member.number, member.weight, member.slot_on)
            for slot in member.order:
                self._places[slot].ready = 0
            self._pause(member)
        descriptors = [each.fileno() for each in opened[: len(slots)]]
        with contextlib.suppress(OSError):  # it is gone, which the next look shows
            answer = wire.encoded(wire.Recovered(slots, error))
            socket.send_fds(member.connection, [answer], descriptors)
        for each in opened:
            each.close()

    def let_go(self) -> None:
        """In a worker: close all that is the host's or of other clients."""
        self._selector.close()
        self._door.close()
        if self._seats is not None:
            self._seats.let_go()
        self._bells.close()
        os.close(self._spare)
        for member in (*self._silent.values(), *self._members.values()):
            member.connection.close()
            if member.process >= 0:
                os.close(member.process)
        for place in self._places.values():
            if not place.gone:
                os.close(place.process)

    def _lose(self, place: Place) -> None:
        """A worker has ended: whoever has turns, operations or parcels with it goes on.

        Its slot is not given to another one before its client has left, or has another for it.
        """
        if place.gone:  # a moment ago, with its client
            return
        self._selector.unregister(place.process)
        place.kill()  # what it has forked
        code, member = place.ended(), place.member
        self._finished(member)
        self._dead.add(place.slot)
        self._memory.leave(place.slot)
        self._draining.pop(place.slot, None)
        for word in (FINISHED, READY):
            self._page.tell(place.slot, word, GONE)
        member.whole = False
        if member.standing == Standing.GRANTED:
            self._revoke(member)
        elif member.standing == Standing.RETIRING:
            member.become(Standing.ORDERED)
        self._pause(member)
        for slot in member.slots:
            self._bells.ring(slot)  # they may wait for its parcels
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        with contextlib.suppress(OSError):
            member.connection.sendall(wire.encoded(wire.Lost(place.slot, why, place.overdue)))
        if isinstance(member, Ranks) and all(self._places[slot].gone for slot in member.order):
            self._leave(member)

    def _leave(self, member: Member) -> None:
        """A client is gone: nothing of it stays."""
        if member.gone:
            return
        was_granted = member.standing == Standing.GRANTED
        member.become(Standing.GONE)
        if not isinstance(member, Ranks):
            self._selector.unregister(member.connection)
        member.connection.close()
        if member.process >= 0:
            self._selector.unregister(member.process)
            os.close(member.process)
        self._silent.pop(member.number, None)
        if self._members.pop(member.number, None) is None:
            return
        if member.seat is not None:
            member.seat.operations += self._finished(member)
            member.seat.program = None
        self._part(member)
        places = [self._places[slot] for slot in member.slots]
        for place in places:
            place.kill()
        for place in places:
            if not place.gone:
                self._selector.unregister(place.process)
                place.ended()
            self._draining.pop(place.slot, None)
            self._memory.leave(place.slot)
            del self._places[place.slot]
            self._dead.add(place.slot)
            if was_granted and place.device >= 0:
                self._page.grant(place.device, 0)
        if not was_granted:
            self._island.leave(member.number)
        if member.runs is not None:
            member.runs.close()
        if not isinstance(member, Ranks):
            shutil.rmtree(member.parcels, ignore_errors=True)


def _key_of(member: Member | None) -> str:
    """The key of a member's seat; empty without one."""
    if isinstance(member, Ranks):
        return member.name
    return member.seat.told.key if member is not None and member.seat is not None else ""


def _bind(pid: int, cores: list[int]) -> None:
    """Have all threads of a process run on these cores alone; none are given: as before."""
    with contextlib.suppress(OSError):  # it, or one of them, has ended
        for thread in os.listdir(f"/proc/{pid}/task") if cores else ():
            os.sched_setaffinity(int(thread), cores)


def _take_seat(seat: Taken, worker: int) -> None:
    """In a worker: be a process of the job, as its agent would have started it."""
    told = seat.told
    if told.tag is not None:
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
            resource.setrlimit(resource.RLIMIT_RTTIME, (told.tag, hard))
    output = os.open(told.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    for door in told.groups:
        with contextlib.suppress(OSError):  # the agent holds the job in another way
            Path(door).write_text(str(os.getpid()))
    _bind(os.getpid(), seat.cores[worker])
    os.environ.clear()
    os.environ.update(told.env)
    os.chdir(told.workdir)
    paths = [told.workdir, *filter(None, told.env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:0] = [path for path in paths if path not in sys.path]


def _work(
    host: Host, parent: int, client: socket.socket, slot: int, member: Member, worker: int
) -> NoReturn:
    """In a forked process: be a worker until client or host is gone; its error is printed."""
    from rota.flow.worker import Worker

    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.set_inheritable(client.fileno(), False)
        host.let_go()
        if member.seat is not None:
            _take_seat(member.seat, worker)
        folder = host._folder
        page, bells = Page(folder / "page", host._devices, SLOTS), Bells(folder)
        Worker(client, page, bells, slot=slot, parcels=member.parcels, on=host.on()).serve()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


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
        host.serve(None if sys.argv[5:] == ["--agent"] else sys.stdin.fileno())
    finally:
        host.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
