"""Moves of a job's workers off devices and onto others, as its agent asks."""

from __future__ import annotations

import contextlib
import os

from rota.errors import FlowError
from rota.flow import wire
from rota.flow.floor import Floor
from rota.flow.grants import Grants
from rota.flow.members import Member
from rota.flow.page import AWAY, DEVICE, FINISHED, LOSSES, MOVES, PLACED
from rota.flow.standing import Standing
from rota.live.wire.island import NO_DEVICE


class Moves:
    """See the module."""

    def __init__(self, floor: Floor, grants: Grants) -> None:
        self._floor, self._grants = floor, grants

    def check(self, devices: list[int], cores: list[list[int]]) -> None:
        """Raises FlowError if there can be no workers on these devices."""
        on = [device for device in devices if device >= 0]
        last = self._floor.devices - 1
        known = {NO_DEVICE, *range(last + 1)}
        if not on or len(set(on)) < len(on) or not known.issuperset(devices):
            raise FlowError(
                f"devices: {devices}; give some of 0 to {last}, each once, and -1 for "
                "a worker without a device"
            )
        if len(cores) != len(devices):
            raise FlowError(f"cores: {cores}; give a list for each of {len(devices)} workers")

    def withdraw(self, member: Member) -> str:
        """Take a client's workers off their devices.

        Returns what is wrong with what the client has told, if anything.
        """
        problem = ""
        if member.standing == Standing.COMING:
            self._take_off(member)
        if member.standing == Standing.GRANTED:
            problem = self._grants.revoke(member)
        if member.standing in (Standing.ORDERED, Standing.RETIRING):
            member.become(Standing.LEAVING)
            self._floor.pause(member)
        return problem

    def put(self, member: Member, devices: list[int], cores: list[list[int]]) -> None:
        """Put a client's workers on these devices, for which these are the cores.

        Raises FlowError if there is no room for their buffers, or they are on others; nothing has
        changed then.
        """
        present = [member.slots[slot] for slot in member.order]
        if devices == present:  # they are there, or on their way
            if member.standing == Standing.LEAVING:  # not gone yet: it stays
                member.become(Standing.ORDERED)
                self._floor.pause(member)
            return
        if not member.is_off:
            raise FlowError("the workers of the seat are on other devices: pause it first")
        pairs = list(zip(member.order, devices, strict=True))
        for slot, device in pairs:
            if device < 0 or self._floor.places[slot].gone:  # with all that it held
                continue
            needed_bytes = self._floor.memory.needed_bytes(slot)
            free_bytes = self._floor.memory.free_bytes(device, member.number)
            if needed_bytes > free_bytes:
                raise FlowError(
                    f"the job's buffers have {needed_bytes:,} bytes, and device {device} has room "
                    f"for {free_bytes:,}"
                )
        if member.standing == Standing.COMING:
            self._take_off(member)
        member.become(Standing.COMING)
        member.slots = dict(pairs)
        member.slot_on = {device: slot for slot, device in pairs if device >= 0}
        for (slot, device), own in zip(pairs, cores, strict=True):
            place = self._floor.places[slot]
            if not place.gone:
                bind(place.pid, own)
            if device >= 0 and not place.gone:
                self._floor.memory.join(member.number, slot, device, member.memory_bytes)
        self._send(member)
        with contextlib.suppress(OSError):  # it is gone, which the next look shows
            member.connection.sendall(wire.encoded(wire.Placed(devices)))

    def settle(self, member: Member) -> bool:
        """Go on with a client's move; True if it must be looked again soon."""
        before = member.standing
        if member.standing == Standing.LEAVING and not self._floor.has_turns(member):
            self._take_off(member)
        if member.standing == Standing.GOING and self._are_placed(member):
            member.become(Standing.AWAY)
        if member.standing == Standing.COMING and self._are_placed(member):
            self._are_there(member)
        return member.standing != before or not member.settled

    def _take_off(self, member: Member) -> None:
        """A client that has no turns leaves its devices."""
        self._floor.island.leave(member.number)
        self._floor.part(member)
        member.become(Standing.GOING)
        member.slot_on = {}
        wanted = self._floor.memory.withdraw(member.number)
        if wanted is not None:
            member.wants = wire.Want(wanted.number, dict(wanted.bytes))
        for slot in member.order:
            if member.slots[slot] == NO_DEVICE:
                self._floor.page.tell(slot, LOSSES, self._floor.page.of(slot, LOSSES) + 1)
            member.slots[slot] = AWAY
        self._send(member)

    def _send(self, member: Member) -> None:
        """Tell a client's workers to be on their devices, or on none.

        Whoever looks because of it sees where all of them are to be: an operation of a slice that
        has lost a device is passed over.
        """
        page = self._floor.page
        for slot in member.order:
            page.tell(slot, DEVICE, member.slots[slot])
        self._floor.barrier()
        for slot in member.order:
            page.tell(slot, MOVES, page.of(slot, MOVES) + 1)
            self._floor.bells.ring(slot)

    def _are_placed(self, member: Member) -> bool:
        """True if all workers of a client that live are where they were told to be last."""
        page, alive = self._floor.page, (s for s in member.order if not self._floor.places[s].gone)
        return all(page.of(slot, PLACED) == page.of(slot, MOVES) for slot in alive)

    def _are_there(self, member: Member) -> None:
        """The workers of a client are where they were told to be."""
        member.become(Standing.ORDERED)
        self._floor.island.join(member.number, member.weight, member.slot_on)
        for slot in member.order:
            self._floor.places[slot].ready = 0  # what the island was told before counts no more
        for run in member.log:
            for part in member.parts(run):
                alive = [slot for slot in part.slots if not self._floor.places[slot].gone]
                if all(self._floor.page.of(slot, FINISHED) < part.number for slot in alive):
                    operation = member.operation(part)
                    if operation is not None:
                        self._floor.island.submit(member.number, [operation])
        self._floor.meet(member)
        if member.wants is not None:
            wants, member.wants = member.wants, None
            self._floor.want(member, wants)


def bind(pid: int, cores: list[int]) -> None:
    """Have all threads of a process run on these cores alone; none are given: as before."""
    with contextlib.suppress(OSError):  # it, or one of them, has ended
        for thread in os.listdir(f"/proc/{pid}/task") if cores else ():
            os.sched_setaffinity(int(thread), cores)
