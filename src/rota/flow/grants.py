"""Standing grants: a client that is alone with something to do needs no turns."""

from __future__ import annotations

import time
from collections.abc import Callable

from rota.errors import FlowError
from rota.flow.floor import Floor
from rota.flow.members import Member, Ranks
from rota.flow.page import ALLOWED, BEGUN, FINISHED
from rota.flow.standing import Standing

CALM_S = 0.01  # for which all others had nothing to do before a client has a grant


class Grants:
    """See the module.

    ``hear`` takes in all that a client has told by now, and returns what is wrong with it.
    """

    def __init__(self, floor: Floor, hear: Callable[[Member], str]) -> None:
        self._floor, self._hear = floor, hear

    def settle(self) -> bool:
        """Give grants; True if it must be looked again soon."""
        members = list(self._floor.members.values())
        for member in members:
            self._floor.prune(member)
        if not self._floor.barrier.works:
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
                self._floor.pause(member)
            devices = member.slot_on
            if (
                calm
                and self._floor.drained.isdisjoint(devices)
                and all(self._floor.page.done(d) == self._floor.page.issued(d) for d in devices)
            ):
                self._grant(member)
            else:
                soon = True
        return soon

    def _grant(self, member: Member) -> None:
        """Let a client run what it likes on its devices, where nobody else has anything to do."""
        self._floor.island.leave(member.number)
        member.become(Standing.GRANTED)
        for device, slot in member.slot_on.items():
            self._floor.page.grant(device, slot)
            self._floor.bells.ring(slot)

    def revoke(self, member: Member) -> str:
        """Take a client's grant back: what it has begun, and what that needs, goes on.

        An operation that some of its workers have begun needs the others, and these need their
        inputs. All that may have to come first has a smaller number. A worker that has told of
        beginning may have seen after that that the grant is gone, and waits: all that counts as
        begun is allowed. Returns what is wrong with what the client has told, if anything.
        """
        page = self._floor.page
        for device in member.slot_on:
            page.grant(device, 0)
        self._floor.barrier()
        runs = member.runs.take() if member.runs is not None else []
        problem = self._hear(member)  # the programs of these runs were told of before
        try:
            member.note(runs)
        except FlowError as error:
            problem = problem or str(error)
        member.become(Standing.ORDERED)
        self._floor.prune(member)
        alive = {slot for slot in member.order if not self._floor.places[slot].gone}
        begun = {slot: max(page.of(slot, BEGUN), page.of(slot, FINISHED)) for slot in alive}
        parts = [each for run in member.log for each in member.parts(run)]
        torn = 0  # the last one that was begun, and not by all
        for number, slots, _, _ in parts:
            have = [begun[slot] >= number for slot in slots if slot in alive]
            if any(have) and not all(have):
                torn = number
        self._floor.island.join(member.number, member.weight, member.slot_on)
        for part in parts:
            on = [slot for slot in part.slots if slot in alive]
            if part.number <= torn or (on and begun[on[0]] >= part.number):
                self._floor.draining |= dict.fromkeys(on, part.number)
            elif (operation := member.operation(part)) is not None:
                self._floor.island.submit(member.number, [operation])
        self._floor.drained = {self._floor.places[slot].device for slot in self._floor.draining}
        for sharer in self._floor.members.values():
            self._floor.pause(sharer)
        for slot in member.order:
            self._floor.places[slot].ready = 0  # the island has forgotten it
            page.tell(slot, ALLOWED, self._floor.draining.get(slot, 0))
            self._floor.bells.ring(slot)
        return problem
