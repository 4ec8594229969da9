"""Gangs of trainings on the same GPUs take turns, as flow jobs do: the agent's part of it.

Those in the background take turns among each other alone, and so does a gang that is beside
somebody in the foreground: then its turns begin on all of its GPUs together.

The ranks of a training that is to take turns get a seat on the node's island, all at one boundary
of their steps; they leave it by themselves when they are suspended or change their gang, and get
another one after that. What a rank has is known from the rank, so that an agent's successor goes on
with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection

from rota.errors import AgentError
from rota.live.agent.attempt import Attempt
from rota.live.agent.gang import COUPLED_STEP_S, agree_on_step, let_go_on
from rota.live.agent.island_link import IslandLink
from rota.live.agent.states import State
from rota.live.wire import Message

LOOK_EVERY_S = 0.1
AGAIN_S = 1.0  # after a try that has failed

log = logging.getLogger("rota.agent")


class Ordering:
    """Seats the trainings among a node's ``attempts`` that share GPUs in gangs."""

    def __init__(
        self,
        attempts: Callable[[], Collection[Attempt]],
        island: IslandLink,
        devices: int,
        spawn: Callable[..., object],
    ) -> None:
        self._attempts, self._island, self._devices = attempts, island, devices
        self._spawn = spawn
        self._busy: set[Attempt] = set()  # whose ranks are being told

    async def run(self) -> None:
        """Look again and again at who shares GPUs with whom."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Begin to seat those that are to have seats, and to take the others' away."""
        attempts = [each for each in self._attempts() if each.ended is None]
        shared = in_gangs(attempts)
        for attempt in attempts:
            if attempt in self._busy or attempt.seat is not None:
                continue
            seats = [rank.seat for rank in attempt.members if rank.alive]
            known = {seat for seat in seats if seat is not None}
            torn = attempt.cooperates and len(set(seats)) > 1
            if known and (torn or attempt.state == State.SUSPENDED):
                # Some have no turns, or will take none for a while: the others must not wait.
                for key in known:
                    await self._island.dismiss(key)
                for rank in attempt.members:
                    rank.seat = None
            elif attempt.can_hold and bool(known) != (attempt in shared):
                self._busy.add(attempt)
                self._spawn(self._change(attempt, seated=attempt in shared))

    async def _change(self, attempt: Attempt, *, seated: bool) -> None:
        """Give the ranks of an attempt a seat, or none."""
        key = f"{attempt.job_id}.{attempt.number}.{secrets.token_hex(4)}"
        hold = Hold(attempt, key)
        try:
            slots, rings, host = [0] * len(hold.ranks), hold.gpus, 0
            if seated:
                pids = [rank.session for rank in hold.ranks]
                if not all(pids):
                    raise AgentError("the processes of its sessions are not known")
                where = {"devices": hold.gpus, "background": attempt.record.background}
                done = await self._island.ranks(key, pids=pids, **where)
                slots, rings, host = done.slots, done.rings, done.host
            attempt.hold = hold
            told = {"folder": str(self._island.folder), "devices": self._devices, "host": host}
            if not await hold.reached():
                hold.release()
                raise AgentError("its ranks do not hold")
            for rank, slot, ring in zip(hold.ranks, slots, rings, strict=True):
                rank.seat_is_told = False
                mine = {"slot": slot, "ring": ring, "key": key if seated else None}
                rank.send({"type": "turns", "round": key} | told | mine)
            await hold.over(key if seated else None)
        except AgentError as error:
            log.info("job %s.%s takes no turns: %s", attempt.job_id, attempt.number, error)
            await self._island.dismiss(key)
            await asyncio.sleep(AGAIN_S)
        finally:
            attempt.hold = None
            self._busy.discard(attempt)


class Hold:
    """All ranks of an attempt hold at one boundary, unless something else has them hold."""

    def __init__(self, attempt: Attempt, round_: str) -> None:
        self._attempt, self.round = attempt, round_
        self._steps: dict[int, int] = {}
        self.ranks, self.gpus = list(attempt.members), list(attempt.record.gpus)
        self._all_hold = asyncio.Event()

    async def reached(self) -> bool:
        """True once all hold; False if the attempt's ranks are others, or do something else.

        Such ranks are told nothing: a pause for this boundary would take the place of theirs.
        """
        if not self._is_possible:
            return False
        for rank in self.ranks:
            rank.send({"type": "pause", "gang": True, "round": self.round})
        while self._is_possible:
            try:
                async with asyncio.timeout(COUPLED_STEP_S):
                    await self._all_hold.wait()
                return True
            except TimeoutError:
                let_go_on(self._steps, [rank.index for rank in self.ranks], self._send)
        return False

    def holds(self, slot: int, step: int) -> None:
        """A rank holds at the boundary after so many steps."""
        self._steps[slot] = step
        if self._is_possible and agree_on_step(
            self._steps, [rank.index for rank in self.ranks], self._send
        ):
            self._all_hold.set()

    def release(self) -> None:
        """Let those go on that hold, unless they hold for something else by now."""
        if self._attempt.state == State.RUNNING and not self._attempt.holds_for_resize:
            for rank in self.ranks:
                rank.send({"type": "resume", "device": None})

    async def over(self, key: str | None) -> None:
        """Return when all ranks say that they have this seat, or none if it is None.

        Raises AgentError if one has another, or if the attempt's ranks do something else by now.
        """
        while not all(rank.seat_is_told for rank in self.ranks):
            if not self._is_possible:
                raise AgentError("its ranks have not said that they take turns")
            await asyncio.sleep(COUPLED_STEP_S)
        if any(rank.seat != key for rank in self.ranks):
            raise AgentError("its ranks do not take turns together")

    @property
    def _is_possible(self) -> bool:
        attempt = self._attempt
        same = attempt.members == self.ranks and attempt.record.gpus == self.gpus
        return same and attempt.can_hold

    def _send(self, slot: int, message: Message) -> None:
        self._attempt.ranks[slot].send(message)


def in_gangs(attempts: Collection[Attempt]) -> set[Attempt]:
    """Those that have a GPU together with another one, of which at least one is a gang.

    The two are of one layer, or the gang is in the background and the other one is not. One without
    a session is not ordered, and nobody of its layer is beside it.
    """
    found: set[Attempt] = set()
    running = [each for each in attempts if each.state == State.RUNNING]
    there = [each for each in running if each.seat is not None or _has_boundaries(each)]
    for each in there:
        gpus, background = set(each.record.gpus), each.record.background
        for other in there:
            gang = max(len(gpus), len(other.record.gpus)) > 1
            same = other is not each and other.record.background == background
            if same and gang and not gpus.isdisjoint(other.record.gpus):
                found |= {each, other}
        if background and len(gpus) > 1:
            front = (other.record for other in running if not other.record.background)
            if any(not gpus.isdisjoint(record.gpus) for record in front):
                found.add(each)
    return found


def _has_boundaries(attempt: Attempt) -> bool:
    return attempt.record.suspension == "boundary"
