"""Ends: of workers, of clients, and of operations that run for too long."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence

from rota.flow import wire
from rota.flow.floor import Floor
from rota.flow.grants import Grants
from rota.flow.members import Member, Place, RankPlace, Ranks
from rota.flow.page import FINISHED, GONE, HELD_BYTES, LOSSES, MOVES, OWNER, PRESENT, READY, Page
from rota.flow.standing import Standing
from rota.flow.starting import Starting
from rota.model.presence import Presence

MOST_LOOK_S = 1.0  # between two looks for operations that run for too long


class Ends:
    """See the module. ``forget`` has a descriptor looked at no more."""

    def __init__(
        self,
        floor: Floor,
        grants: Grants,
        starting: Starting,
        forget: Callable[[int], None],
    ) -> None:
        self._floor, self._grants, self._starting = floor, grants, starting
        self._forget = forget
        self._presence = Presence(MOST_LOOK_S)

    def end_overdue(self) -> None:
        """End the workers that are in an operation for too long.

        An operation counts once all workers of its gang have begun it, or are gone: those that wait
        for their turn may be late because of another client. Where some are stopped by then, it has
        its time anew. Time for which this process stood still counts for no operation: the workers
        may have stood still as well.
        """
        page, now_s = self._floor.page, self._presence.at(time.monotonic())
        for member in self._floor.members.values():
            if member.limit is None:
                continue
            present = {slot: page.of(slot, PRESENT) for slot in member.slots}
            running = {n for slot, n in present.items() if page.of(slot, FINISHED) < n}
            whole = []
            for each in running:
                gang = member.gang(each)
                if gang and all(max(present[s], page.of(s, FINISHED)) >= each for s in gang):
                    whole.append(each)
            for each in member.limit.exceeded(whole, now_s):
                if any(self._floor.places[slot].is_stopped for slot in member.gang(each)):
                    member.limit.begin_anew(each)
                    continue
                for slot in member.gang(each):
                    if present[slot] == each and page.of(slot, FINISHED) < each:
                        self._floor.places[slot].overdue = each
                        self._floor.places[slot].kill()

    def lose(self, place: Place) -> None:
        """A worker has ended: whoever has turns, operations or parcels with it goes on.

        Its slot is not given to another one before its client has left, or has another for it.
        """
        if place.gone:  # a moment ago, with its client
            return
        self._forget(place.process)
        place.kill()  # what it has forked
        code, member = place.ended(), place.member
        finished(member, self._floor.page)
        self._floor.dead.add(place.slot)
        self._floor.memory.leave(place.slot)
        self._floor.draining.pop(place.slot, None)
        self._floor.page.tell(place.slot, HELD_BYTES, 0)
        for word in (FINISHED, READY):
            self._floor.page.tell(place.slot, word, GONE)
        self._give_up(place)
        member.whole, problem = False, ""
        if member.standing == Standing.GRANTED:
            problem = self._grants.revoke(member)
        elif member.standing == Standing.RETIRING:
            member.become(Standing.ORDERED)
        self._floor.pause(member)
        for slot in member.slots:
            self._floor.bells.ring(slot)  # they may wait for its parcels
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        with contextlib.suppress(OSError):
            member.connection.sendall(wire.encoded(wire.Lost(place.slot, why, place.overdue)))
        if problem:
            self.refuse(member, problem)
        if isinstance(member, Ranks) and all(
            self._floor.places[slot].gone for slot in member.order
        ):
            self.leave(member)

    def _give_up(self, place: Place) -> None:
        """Tell a rank of a training that it has no turns any more; it goes on without."""
        if isinstance(place, RankPlace):
            self._floor.page.tell(place.slot, OWNER, 0)
            self._floor.bells.ring(place.slot)

    def recover(self, member: Member, lost: Sequence[int]) -> None:
        """Start workers in place of a client's lost ones, which are those and all that have ended.

        All that it has run is over, by its own word; or it is refused.
        """
        member.lost = None
        for slot in member.slots.keys() & set(lost):
            self.lose(self._floor.places[slot])
            if member.gone:  # what it has told by now can't be
                return
        self._floor.prune(member)
        if member.log:
            self.refuse(member, "recover: operations of this client are not over")
            return
        slots, error = dict[int, int](), None
        opened: list[socket.socket] = []
        try:
            for worker, slot in enumerate(member.order):
                if not self._floor.places[slot].gone:
                    continue
                if not self._floor.has_room(1):
                    raise OSError(f"it has {self._floor.slots - 1} workers at most")
                device = member.slots[slot]
                self._starting.start(member, worker, device, opened, self.lose)
                slots[slot] = member.order[worker]
                for word in (LOSSES, MOVES):
                    self._floor.page.tell(slots[slot], word, self._floor.page.of(slot, word))
                if device >= 0:
                    self._floor.memory.join(member.number, slots[slot], device, member.memory_bytes)
                del self._floor.places[slot], member.slots[slot]
        except OSError as problem:
            error = f"the island has no room for a worker: {problem}"
        member.whole = not any(self._floor.places[slot].gone for slot in member.slots)
        if slots:  # the island forgets what it knew of the lost ones
            self._floor.island.leave(member.number)
            self._floor.island.join(member.number, member.weight, member.slot_on)
            for slot in member.order:
                self._floor.places[slot].ready = 0
            self._floor.pause(member)
        descriptors = [each.fileno() for each in opened[: len(slots)]]
        with contextlib.suppress(OSError):  # it is gone, which the next look shows
            answer = wire.encoded(wire.Recovered(slots, error))
            socket.send_fds(member.connection, [answer], descriptors)
        for each in opened:
            each.close()

    def refuse(self, member: Member, error: str) -> None:
        """Tell a client why, and let it go."""
        with contextlib.suppress(OSError):
            member.connection.sendall(wire.encoded(wire.Refused(error)))
        self.leave(member)

    def leave(self, member: Member) -> None:
        """A client is gone: nothing of it stays."""
        if member.gone:
            return
        was_granted = member.standing == Standing.GRANTED
        member.become(Standing.GONE)
        if not isinstance(member, Ranks):
            self._forget(member.connection.fileno())
        member.connection.close()
        if member.process >= 0:
            self._forget(member.process)
            os.close(member.process)
        self._floor.silent.pop(member.number, None)
        if self._floor.members.pop(member.number, None) is None:
            return
        self._floor.lengths.forget(member.number)
        if member.seat is not None:
            member.seat.operations += finished(member, self._floor.page)
            member.seat.program = None
        self._floor.part(member)
        places = [self._floor.places[slot] for slot in member.slots]
        for place in places:
            place.kill()
        for place in places:
            if not place.gone:
                self._forget(place.process)
                place.ended()
            self._give_up(place)
            self._floor.draining.pop(place.slot, None)
            self._floor.memory.leave(place.slot)
            del self._floor.places[place.slot]
            self._floor.dead.add(place.slot)
            if was_granted and place.device >= 0:
                self._floor.page.grant(place.device, 0)
        if not was_granted:
            self._floor.island.leave(member.number)
        if member.runs is not None:
            member.runs.close()
        if not isinstance(member, Ranks):
            shutil.rmtree(member.parcels, ignore_errors=True)


def finished(member: Member, page: Page) -> int:
    """The last operation that one of a client's workers has finished."""
    told = (page.of(slot, FINISHED) for slot in member.order)
    member.finished = max(member.finished, *(each for each in told if each != GONE), 0)
    return member.finished
