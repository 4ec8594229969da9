"""Restores attempts without processes.

Every rank is forked anew and reads its arena, if it has one. It leaves it as it is, and no other
rank goes on, until all have said that they are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import copy
from pathlib import Path

from rota.errors import AgentError, ArenaError
from rota.folder import in_host_memory
from rota.live.agent.attempt_report import Account
from rota.live.agent.ending import Ending
from rota.live.agent.launching import Starter
from rota.live.agent.rank import Rank, life_of
from rota.live.agent.states import State
from rota.live.wire import UNREADABLE
from rota.live.wire.arena_file import read_table, verify, writer_of

MAX_TRIES = 3  # to restore an attempt whose processes are killed meanwhile


class Returning:
    """The returns of one attempt, whose ``state`` it changes.

    ``watch`` is given each rank that has been started, ``check_end`` called when processes have
    ended, and ``back`` when all are there and hold at one boundary.
    """

    def __init__(
        self,
        attempt: Account,
        ending: Ending,
        starter: Starter,
        watch: Callable[[Rank], object],
        check_end: Callable[[], object],
        back: Callable[[], object],
    ) -> None:
        self._attempt = attempt
        self._ending = ending
        self._starter = starter
        self._watch = watch
        self._check_end = check_end
        self._back = back
        self._came: set[int] | None = None  # the slots that have read their arena
        self._forking = False  # True while ranks are being started
        self._tries = 0
        self._failure: str | None = None  # why it was given up

    @property
    def _arenas(self) -> dict[str, str]:
        vacated = self._attempt.record.vacated
        return vacated.arenas if vacated is not None else {}

    @property
    def under_way(self) -> bool:
        """True if some started processes have not read their arenas yet."""
        return self._came is not None

    def bring_back(self, gpus: list[int]) -> None:
        """Fork every rank anew, to continue on these devices. Raises AgentError."""
        attempt = self._attempt
        before, visible = attempt.record.gpus, attempt.record.visible
        if len(gpus) != len(before):
            raise AgentError(
                f"job {attempt.job_id} was suspended with {len(before)} GPUs, "
                f"and can't go on with {len(gpus)}; resize it when it runs"
            )
        attempt.record.gpus = gpus
        if visible is not None and not set(gpus) <= set(visible):
            attempt.record.visible = gpus  # its processes see nothing but their own
        self._tries, self._failure = 0, None
        attempt.become(State.RESUMING)
        self._check_end()

    def start(self) -> None:
        """Try it: none of the attempt's processes is left."""
        self._tries += 1
        self._came, self._forking = set(), True
        self._attempt.spawn(self._fork_ranks())

    async def _fork_ranks(self) -> None:
        attempt = self._attempt
        record, slots = attempt.record, list(attempt.record.members)
        try:
            for path in self._arenas.values():
                check: Callable[[str], object] = read_table if in_host_memory(path) else verify
                await attempt.world.in_thread(check, path)
            for slot in slots:
                record.lives[str(slot)] = life_of(record.lives, slot) + 1
                life = record.lives[str(slot)]
                attempt.ranks[slot] = attempt.world.new_rank(slot, attempt.folder, life)
            arenas = self._arenas
            attempt.save(durable=not arenas)
            adopt = {slot: self._environment(slot) for slot in slots} if arenas else None
            requests = self._starter.requests(
                record, attempt.folder, slots, record.gpus, adopt=adopt
            )
            for slot, request in zip(slots, requests, strict=True):
                self._refuse_if_over()
                await attempt.ranks[slot].start(self._starter.fork, request)
            for path in filter(in_host_memory, arenas.values()):  # the ranks are about to read them
                await attempt.world.in_thread(verify, path)
            self._refuse_if_over()
        except (ArenaError, AgentError, OSError, ValueError) as error:
            await self._give_up(slots, error)
            return
        self._forking = False
        for slot in slots:
            self._watch(attempt.ranks[slot])
        if not arenas:  # the ranks continue from a checkpoint of their own
            self._came = set(slots)
        self._check_came()

    async def _give_up(self, slots: list[int], error: Exception) -> None:
        """The ranks can't be restored, or must not be any more: none of them stays."""
        attempt = self._attempt
        for slot in slots:
            with contextlib.suppress(OSError):
                await attempt.ranks[slot].abandon()
            attempt.ranks[slot].gone = True
        self._forking = False
        if isinstance(error, ArenaError) and not attempt.stopping and attempt.ended is None:
            self._came = None
            self._ending.lose(str(error))
        else:
            self._failure = f"job {attempt.job_id} could not be brought back: {error}"
            self._check_end()

    def _refuse_if_over(self) -> None:
        if self._attempt.stopping or self._attempt.ended is not None:
            raise AgentError("it was told to end")

    def _environment(self, slot: int) -> dict[str, str]:
        path = self._arenas[str(slot)]
        environment = {"ROTA_ADOPT": path}
        if not in_host_memory(path):
            environment["ROTA_ADOPT_COPY"] = "1"
        return environment

    def came(self, slot: int) -> None:
        """A rank has read its arena, and waits. When all have, they continue."""
        if self._came is not None:
            self._came.add(slot)
            self._check_came()

    def _check_came(self) -> None:
        attempt = self._attempt
        if self._forking or self._came is None:
            return
        if not self._came >= set(attempt.record.members):
            return
        started_at = attempt.world.started_at
        if self._arenas and any(started_at(rank.worker) is None for rank in attempt.members):
            return  # killed since it said so: without its arena, its state would be lost
        before, arenas = copy(attempt.record), self._arenas
        attempt.record.vacated = attempt.record.suspended_s = None
        attempt.record.source = attempt.record.parked = None  # from now on the state is here alone
        attempt.carries_out(attempt.resume_id, is_final=False)
        try:
            # Arenas do not outlast a power cut. A job's own checkpoint does.
            attempt.save(durable=not arenas)
        except OSError as error:  # the next agent would look for the state in the arenas
            attempt.record = before
            self._failure = f"the record of job {attempt.job_id} can't be written: {error.strerror}"
            attempt.kill_ranks()
            return
        self._came = None
        for path in map(Path, arenas.values()):
            if not in_host_memory(path):
                path.unlink(missing_ok=True)
        self._back()

    def ended(self) -> None:
        """A process has ended. A gang is restored as a whole: the others end, too."""
        attempt = self._attempt
        if self._forking:
            return  # handled when all have been started
        members = attempt.members
        if any(rank.alive for rank in members):
            if any(rank.exit is not None or rank.gone for rank in members):
                attempt.kill_ranks()
            return
        self._came = None
        exits = [rank.exit["code"] for rank in members if rank.exit is not None]
        if UNREADABLE in exits and self._arenas:
            self._failure = f"job {attempt.job_id} could not be brought back: {self._unreadable()}"
        by_itself = any(code >= 0 for code in exits)
        if self._failure is None and by_itself:
            attempt.record.vacated = None  # its program has ended before it went on
            self._check_end()
        elif attempt.stopping:
            self._ending.without_processes()
        elif self._failure is None and self._tries < MAX_TRIES:
            self.start()
        else:
            attempt.become(State.SUSPENDED)
            error = self._failure or f"its processes were killed {self._tries} times"
            self._ending.could_not_go_on(error)

    def _unreadable(self) -> str:
        """Why a rank has not taken its state over."""
        with contextlib.suppress(ArenaError, StopIteration):
            _, skeleton = read_table(next(iter(self._arenas.values())))
            writer, _ = writer_of(skeleton)
            return (
                f"its state was written by {writer}, and its program has other versions on this "
                "node; install the same ones on all nodes"
            )
        return "its state is of other versions of Python or torch"
