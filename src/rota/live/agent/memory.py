"""The host memory that suspended jobs may hold on a node, and how it is freed when short.

A paused job holds the memory of its processes, a vacated one that of its arenas. When they hold
more than the budget, the job that has been paused longest is vacated; when arenas alone hold more,
or nobody else can be vacated, the oldest arenas are spilled to the disk. Nothing ever waits for
that: a suspension is complete before, and a resumption takes the state from where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from rota.live.agent.blocking import to_its_end
from rota.live.agent.processes import descendants
from rota.live.agent.states import State

if TYPE_CHECKING:
    from rota.live.agent.attempt import Attempt

DEFAULT_SHARE = 0.5  # of the node's memory
COPY_BYTES = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger("rota.agent")


class HostMemory:
    """The budget of one node. ``attempts`` gives all attempts there.

    ``budget_bytes`` is what suspended jobs may hold; by default half of the node's memory.
    """

    def __init__(
        self, attempts: Callable[[], Iterable[Attempt]], budget_bytes: int | None = None
    ) -> None:
        if budget_bytes is None:
            budget_bytes = int(DEFAULT_SHARE * psutil.virtual_memory().total)
        self.budget_bytes = budget_bytes
        self._attempts = attempts
        self._task: asyncio.Task[None] | None = None
        self._again = False  # True if another job has been suspended since the last look
        self._stuck: set[tuple[str, int, float]] = set()  # suspensions that can't give way

    def held_bytes(self) -> int:
        """Bytes that all suspended jobs hold now."""
        return sum(held_by(attempt) for attempt in self._at_rest())

    def look(self) -> None:
        """A job has been suspended: free memory if too much is in use. Returns at once."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._make_room())

    async def close(self) -> None:
        """Stop; returns when nothing is being moved."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _make_room(self) -> None:
        """Free memory: each round moves one job's state one place on, each job twice at most."""
        while self._again:
            self._again = False
            while self.held_bytes() > self.budget_bytes:
                arenas = self._by_age(vacated=True)
                paused = self._by_age(vacated=False)
                full = sum(map(held_by, arenas)) > self.budget_bytes
                if arenas and (full or not paused):
                    await self._try(arenas[0], spill)
                elif paused:
                    await self._try(paused[0], vacate)
                else:
                    self._tell_refusals()
                    break

    def _tell_refusals(self) -> None:
        """Let jobs that keep their processes although memory is short report the reason."""
        for attempt in self._at_rest():
            if not attempt.is_vacated:
                refusal = attempt.vacating.refusal()
                if refusal is not None and not attempt.vacating.writing:
                    attempt.note_memory(refusal)

    async def _try(self, attempt: Attempt, give_way: Callable[[Attempt], Any]) -> None:
        suspension = _suspension(attempt)
        error = await give_way(attempt)
        if attempt.state != State.SUSPENDED or _suspension(attempt) != suspension:
            return
        attempt.note_memory(error)
        if error is not None:
            log.warning("job %s keeps its state in host memory: %s", attempt.job_id, error)
            self._stuck.add(suspension)

    def _at_rest(self) -> list[Attempt]:
        return [attempt for attempt in self._attempts() if attempt.state == State.SUSPENDED]

    def _by_age(self, *, vacated: bool) -> list[Attempt]:
        """Attempts that can give up memory, longest suspended first."""
        now = {_suspension(attempt) for attempt in self._at_rest()}
        self._stuck &= now
        found = []
        for attempt in self._at_rest():
            if _suspension(attempt) in self._stuck:
                continue
            if attempt.is_vacated != vacated:
                continue
            ending = any(rank.alive for rank in attempt.ranks)
            if vacated and (ending or not attempt.is_in_memory):
                continue
            if not vacated and attempt.vacating.refusal() is not None:
                continue
            found.append(attempt)
        return sorted(found, key=lambda attempt: _suspension(attempt)[2])


def held_by(attempt: Attempt) -> int:
    """The host memory that a suspended attempt holds: of its processes, and of its arenas."""
    total = 0
    for rank in attempt.ranks:
        if rank.alive:
            total += sum(map(own_memory, descendants(rank.shim)[1:]))
    for file in attempt.vacating.files_in_memory():
        with contextlib.suppress(OSError):
            total += file.stat().st_blocks * 512
    return total


def own_memory(pid: int) -> int:
    """Resident memory of a process that it shares with no file, in bytes; 0 if it is gone.

    What it still shares with the process that it was forked from counts: the kernel does not tell
    it apart at little cost.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES


async def vacate(attempt: Attempt) -> str | None:
    """Have a paused attempt write its arenas and end its processes. Returns the error, or None."""
    outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def conclude(error: str | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    attempt.vacating.vacate(conclude)
    return await outcome


async def spill(attempt: Attempt) -> str | None:
    """Move the arenas of a vacated attempt to its folder on the disk. Returns the error, or None.

    They are used from there only when all are complete: a resumption meanwhile takes them from
    memory.
    """
    before = attempt.record.vacated
    assert before is not None
    arenas = {slot: Path(path) for slot, path in before.arenas.items()}
    spilled = {slot: attempt.folder / path.name for slot, path in arenas.items()}
    if spilled == arenas:
        return f"{attempt.folder} is in host memory as well"
    useless = spilled  # until all are complete, and recorded
    try:
        for slot, path in arenas.items():
            await to_its_end(copy_file, path, spilled[slot])
        if not attempt.vacating.moved(before, {slot: str(p) for slot, p in spilled.items()}):
            return "the job goes on"
        useless = arenas
    except OSError as failure:
        return f"its arena can't be written to {attempt.folder}: {failure.strerror}"
    finally:
        for path in useless.values():
            with contextlib.suppress(OSError):
                path.unlink()
    return None


def copy_file(source: Path, target: Path) -> None:
    """Copy a file to a disk, completely or not at all. Raises OSError.

    A disk without room for all of it is left alone, so that other writes there do not fail.
    """
    draft = target.with_name(f"{target.name}.new")
    try:
        _write_draft(source, draft)
        os.replace(draft, target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _write_draft(source: Path, draft: Path) -> None:
    buffer = memoryview(bytearray(COPY_BYTES))
    with open(source, "rb", buffering=0) as reader, open(draft, "wb", buffering=0) as writer:
        status = os.statvfs(draft)
        if os.fstat(reader.fileno()).st_size > status.f_bavail * status.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while count := reader.readinto(buffer):
            piece = buffer[:count]
            while piece:
                piece = piece[writer.write(piece) :]
        os.fsync(writer.fileno())


def _suspension(attempt: Attempt) -> tuple[str, int, float]:
    return attempt.job_id, attempt.number, attempt.record.suspended_s or 0.0
