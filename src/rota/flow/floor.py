"""The devices of an island, and who is on them: what the parts of its host share."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rota.flow import wire
from rota.flow.island import Island
from rota.flow.lengths import Lengths
from rota.flow.members import Member, Place, Ranks
from rota.flow.memory import Memory, Request
from rota.flow.page import (
    ALLOWED_BYTES,
    FINISHED,
    HELD_BYTES,
    HOST,
    SLOTS,
    TAKEN,
    USED_BYTES,
    Barrier,
    Bells,
    Page,
)
from rota.flow.standing import IN_ORDER, Standing


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


class Floor:
    """See the module. ``folder`` is on a file system in memory."""

    def __init__(self, folder: Path, devices: int, memory_bytes: int, island: Island) -> None:
        """Raises OSError."""
        self.folder, self.devices, self.memory_bytes = folder, devices, memory_bytes
        self.slots = SLOTS
        self.page = Page(folder / "page", devices, self.slots, make=True)
        self.bells = Bells(folder)
        self.bells.make(HOST)
        self.barrier = Barrier()
        self.island = island
        self.lengths = Lengths()
        self.memory = Memory(memory_bytes, Told(self.page, self.barrier))
        self.silent: dict[int, Member] = {}  # who have not said hello, the oldest first
        self.members: dict[int, Member] = {}
        self.places: dict[int, Place] = {}  # by slot
        self.dead: set[int] = set()  # slots that may have turns yet
        self.dead_wait = False  # such turns are given out
        self.draining: dict[int, int] = {}  # by slot: the operation until which nobody has turns
        self.drained: set[int] = set()  # devices of these
        self._rung = [0] * len(self.page.rings)  # the last turn whose owner was woken

    def has_room(self, workers: int) -> bool:
        """True if there are slots for so many more workers."""
        return len(self.places.keys() | self.dead) + workers < self.slots

    # -- turns -----------------------------------------------------------------------------------

    def give_out(self) -> None:
        """Give out what may be next, and wake whose turn it is."""
        page, island = self.page, self.island
        while True:
            self.pass_dead()
            for device in self.page.rings:
                island.done(device, page.done(device))
            tickets = island.issue()
            for ticket in tickets:
                slot_on = self.members[ticket.client].slot_on
                for device, turn in ticket.turns:
                    page.give(device, turn, slot_on[device])
            if not tickets or not self.dead:
                break
        for device in self.page.rings:
            turn = page.done(device) + 1
            if turn != self._rung[device] and (head := page.head(device)) > 0:
                self._rung[device] = turn
                self.bells.ring(head)

    def pass_dead(self) -> None:
        """Let turns of workers that are dead be over."""
        if not self.dead:
            return
        waiting = set()
        for device in self.page.rings:
            while self.page.head(device) in self.dead:
                self.page.pass_on(device, self.page.done(device) + 1)
            turns = range(self.page.done(device) + 1, self.page.issued(device) + 1)
            waiting |= {self.page.owner(device, turn) for turn in turns}
        waiting &= self.dead
        self.dead_wait = bool(waiting)
        self.dead = {each for each in self.dead if each in waiting or each in self.places}

    def drain(self) -> None:
        """Nobody has turns on a device until what was begun there under a grant is over."""
        page, before = self.page, self.drained
        if not self.draining and not before:
            return
        self.draining = {s: k for s, k in self.draining.items() if page.of(s, FINISHED) < k}
        self.drained = {self.places[slot].device for slot in self.draining}
        if self.drained != before:
            for member in self.members.values():
                self.pause(member)

    def pause(self, member: Member) -> None:
        """Let the island issue a client's operations, or not for now."""
        if member.standing in IN_ORDER:
            drains = not self.drained.isdisjoint(member.slot_on)
            paused = member.standing != Standing.ORDERED or drains
            paused = paused or (isinstance(member, Ranks) and not member.may_begin)
            self.island.pause(member.number, paused=paused)

    def has_turns(self, member: Member) -> bool:
        """True while something of a client is under way on its devices."""
        page = self.page
        if not self.draining.keys().isdisjoint(member.order):
            return True
        return any(
            page.owner(device, turn) == slot
            for device, slot in member.slot_on.items()
            for turn in range(page.done(device) + 1, page.issued(device) + 1)
        )

    # -- clients ---------------------------------------------------------------------------------

    def meet(self, member: Member) -> None:
        """The client is on its devices: note who else is."""
        own = member.slot_on.keys()
        there = [m for m in self.members.values() if m is not member and not m.is_off]
        member.beside = [m for m in there if not own.isdisjoint(m.slot_on)]
        for each in member.beside:
            each.beside.append(member)
        self.pause(member)

    def part(self, member: Member) -> None:
        """The client is on its devices no more."""
        for each in member.beside:
            each.beside.remove(member)
        member.beside = []

    def prune(self, member: Member) -> None:
        """Forget what is over of a client's log."""
        if not member.log:
            return
        member.busy_at_s = time.monotonic()
        while member.log:
            program, number = member.log[0]
            for worker, i in member.programs[program].last.items():
                if self.page.of(member.order[worker], FINISHED) < number + i:
                    return
            member.over()

    def has_called(self, member: Member) -> bool:
        """True if something of a client is not over."""
        self.prune(member)
        return bool(member.log)

    def want(self, member: Member, wanted: wire.Want) -> None:
        """A client asks to use so much memory; nothing, if it no longer wants what it asked for."""
        if member.is_off:
            member.wants = wanted if wanted.bytes else None
        else:
            own = {s: b for s, b in wanted.bytes.items() if s in member.slots}
            self.memory.want(member.number, Request(wanted.number, own))

    def settle_memory(self) -> None:
        """Answer who waits for memory and can have it now."""
        for answer in self.memory.settle():
            member = self.members[answer.client]
            with contextlib.suppress(OSError):  # it is gone, which the next look shows
                member.connection.sendall(wire.encoded(wire.Given(answer.request, answer.error)))

    def free_slot(self, device: int) -> int:
        """A slot that nobody has, for somebody on this device. Raises OSError."""
        slot = next(i for i in range(1, self.slots) if i not in self.places and i not in self.dead)
        self.page.clear(slot, device)
        self.bells.forget(slot)
        with contextlib.suppress(FileExistsError):
            self.bells.make(slot)
        self.bells.own(slot)  # it is open from now on, so that no ring is lost
        return slot
