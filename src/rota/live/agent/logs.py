"""Keeps the logs of one node's jobs within a limit, and keeps disk space for them.

Shims append the output of processes to the logs, and ask nobody. The agent looks at the files now
and then, the more often the less is free on their disk. It takes out the middle of a log that is
too long (:mod:`rota.live.agent.output`). Behind the end of each log it keeps some room, so that a
little output is not lost when others have filled the disk.
"""

import asyncio
import contextlib
import logging
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from rota.folder import Disk, disk_of
from rota.live.agent.line_times import TimeKeeper, leave_out
from rota.live.agent.output import (
    ALIGNMENT,
    LEAST_BYTES,
    cut,
    give_back,
    left_out_of,
    take_ahead,
)
from rota.live.agent.rank import Rank

LIMIT_BYTES = 1 << 30  # of all logs of a job on one node
LEAST_LIMIT_BYTES = 4 * LEAST_BYTES
AHEAD_BYTES = 1 << 20  # of room behind the end of a log that is written to
LONGEST_PAUSE_S, SHORTEST_PAUSE_S = 0.25, 0.02  # between two looks
FASTEST_BYTES_S = 4e9  # are written to a disk, at most
KEPT_IN_MIND_S = 60.0  # logs of a job that has ended, should it have filled the disk

log = logging.getLogger("rota.agent")


class _Log:
    """One log that a process writes to, or wrote to until a moment ago."""

    def __init__(self, path: Path) -> None:
        self.size = -1  # when it was looked at last
        self.times = TimeKeeper(path)
        self.ahead_until = 0  # room for it to become so long was taken
        self.ended_s: float | None = None


class Printing(Protocol):
    """What has processes that print; ``ended`` is None until it is over."""

    @property
    def ended(self) -> object | None: ...

    @property
    def ranks(self) -> list[Rank]: ...


class Logs:
    """The logs of these attempts; those of one job may hold ``limit_bytes`` at most."""

    def __init__(
        self,
        folder: Path,
        attempts: Callable[[], Collection[Printing]],
        limit_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._attempts = attempts
        self._limit_bytes = LIMIT_BYTES if limit_bytes is None else limit_bytes
        self._clock = clock
        self._logs: dict[Path, _Log] = {}
        self._complained = False

    async def run(self) -> None:
        """Watch the logs until cancelled."""
        while True:
            pause_s = LONGEST_PAUSE_S
            try:
                disk = disk_of(self._folder)
                # It takes a while to cut a large file, and the agent has more to do.
                await asyncio.gather(
                    *(asyncio.to_thread(_shorten, *each) for each in self.look(disk))
                )
                pause_s = min(pause_s, max(disk.free_bytes / FASTEST_BYTES_S, SHORTEST_PAUSE_S))
            except OSError as error:
                if not self._complained:
                    self._complained = True
                    log.warning("logs of jobs can't be looked after: %s", error)
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        """Stop watching, and release reserved space of logs that nobody writes to."""
        living = [attempt for attempt in self._attempts() if attempt.ended is None]
        for path in self._logs.keys() - {rank.log for attempt in living for rank in attempt.ranks}:
            with contextlib.suppress(OSError):
                give_back(path)

    def look(self, disk: Disk) -> list[tuple[Path, int]]:
        """Reserve and release space. Returns the logs to cut now, and how much of each to keep."""
        grown = self._look_at_each(disk)
        jobs = {path.parents[1] for path in (self._logs if disk.is_low else grown)}
        sizes = {job: _sizes(job) for job in jobs}
        cuts: dict[Path, int] = {}
        for logs in sizes.values():
            if sum(logs.values()) > self._limit_bytes:
                keep_bytes = self._limit_bytes * 3 // 4 // len(logs)
                cuts |= {path: keep_bytes for path, size in logs.items() if size > keep_bytes}
        if disk.is_low:
            cuts |= self._cuts_for_room(sizes.values(), disk)
        return list(cuts.items())

    def _look_at_each(self, disk: Disk) -> list[Path]:
        """Adjust the space reserved for each log. Returns the logs that have grown."""
        now_s, grown = self._clock(), []
        living = [attempt for attempt in self._attempts() if attempt.ended is None]
        alive = {rank.log for attempt in living for rank in attempt.ranks}
        for path in alive - self._logs.keys():
            self._logs[path] = _Log(path)
        for path, known in list(self._logs.items()):
            try:
                status = path.lstat()
                size = status.st_size
                if size > known.size:
                    grown.append(path)
                known.size = size
                ends = path not in alive and known.ended_s is None
                with contextlib.suppress(OSError):  # of a full disk: later times tell of it
                    known.times.look(status, now_s, ended=ends)
                if path in alive and not disk.is_low:
                    if known.ahead_until - size < AHEAD_BYTES // 2:
                        known.ahead_until = take_ahead(path, AHEAD_BYTES) + AHEAD_BYTES
                elif ends:
                    known.ended_s = now_s
                    give_back(path)
            except FileNotFoundError:  # the log does not exist yet, or its job has moved
                if path not in alive:
                    del self._logs[path]
                continue
            except OSError as error:
                log.debug("%s: %s", path, error)
            if known.ended_s is not None and now_s - known.ended_s > KEPT_IN_MIND_S:
                del self._logs[path]
        return grown

    def _cuts_for_room(self, jobs: Collection[dict[Path, int]], disk: Disk) -> dict[Path, int]:
        """Cuts that keep the disk from being low, where they are possible: longest logs first."""
        cuts, free_bytes = {}, disk.free_bytes
        logs = {path: size for job in jobs for path, size in job.items()}
        for path, size in sorted(logs.items(), key=lambda each: -each[1]):
            as_short_as_can_be = size <= LEAST_BYTES + ALIGNMENT + AHEAD_BYTES
            if as_short_as_can_be or not disk._replace(free_bytes=free_bytes).is_low:
                break
            cuts[path] = LEAST_BYTES
            free_bytes += size - LEAST_BYTES
        return cuts


def _shorten(log: Path, keep_bytes: int) -> None:
    """Cut a log, and the times of what is no longer there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):  # its job has moved, or was cleaned up
        cut(log, keep_bytes)
        if (gap := left_out_of(log)) is not None:
            leave_out(log, *gap)


def _sizes(job: Path) -> dict[Path, int]:
    """The logs of all attempts of a job, with the disk space of each."""
    sizes = {}
    for path in job.glob("*/*.log"):
        with contextlib.suppress(OSError):  # the log may move meanwhile
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                sizes[path] = status.st_blocks * 512
    return sizes
