"""The page of one device: a file that the foreground writes its marks into, and others map.

Writing is no system call, and the page can be read although its writer hangs or is dead. A checksum
over all of it tells a reader of a torn one. A page has one writer.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from rota.share.marks import (
    ALIVE,
    GONE,
    IDLE,
    LIMIT,
    NAMES,
    NOBODY,
    NONE,
    OTHER,
    STOPPED,
    Mark,
    Seen,
)
from rota.share.slowdown import Slowdown

MAGIC = 0x524F5442  # of this layout
# Magic, pid, began, limit, epoch, steps, segment, since, count; then seconds by segment, twice.
BODY = struct.Struct("=IqddqqqdQ16d")
CHECK = struct.Struct("=I")
SIZE = BODY.size + CHECK.size
MOST_READS = 3  # of a page that is being written
LOOK_EVERY_S = 0.2
STATE_EVERY_S = 0.05  # between looks at the writer's process, which are system calls
TICKS = os.sysconf("SC_CLK_TCK")


class MarkWriter:
    """A foreground's side. Without a ``path`` nothing is written, and a call costs next to nothing.

    ``limit`` is the slowdown that the foreground allows. Where the page can't be made, as on a full
    disk, training goes on without one.
    """

    def __init__(self, path: str | None, limit: float = LIMIT) -> None:
        self._map: mmap.mmap | None = None
        self._pid, self._started_s, self._limit = os.getpid(), 0.0, limit
        self._epoch = self._steps = self._count = 0
        self._sums = list(NONE)
        self._done = NONE
        self.segment, self._since_s = IDLE, time.monotonic()
        self.on = bool(path)
        if path:
            self._started_s = process_start_s(self._pid) or 0.0
            self._open(path)

    def _open(self, path: str) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # On what has no room on the disk, to write into memory would end the process.
                os.posix_fallocate(descriptor, 0, SIZE)
                self._map = mmap.mmap(descriptor, SIZE)
            finally:
                os.close(descriptor)
        self.on = self._map is not None
        self._write()

    def enter(self, segment: int) -> None:
        """A segment of a step begins, and the one before is over."""
        if segment == self.segment or not self.on:
            return
        now = time.monotonic()
        self._sums[self.segment] += now - self._since_s
        self.segment, self._since_s = segment, now
        self._write()

    def enter_step(self, segment: int) -> None:
        """The same, for what is called wherever a model runs: nothing outside of steps."""
        if self.segment not in (IDLE, OTHER):
            self.enter(segment)

    def end_step(self, segment: int) -> None:
        """A step is over, and the next one begins with this segment."""
        if not self.on:
            return
        now = time.monotonic()
        self._sums[self.segment] += now - self._since_s
        self.segment, self._since_s = segment, now
        self._steps += 1
        self._done = tuple(self._sums)
        self._write()

    def renew(self) -> None:
        """Steps will take other times from here on: a new epoch begins."""
        if not self.on:
            return
        self._epoch += 1
        self._steps = 0
        self._sums, self._done = list(NONE), NONE
        self._since_s = time.monotonic()
        self._write()

    def close(self) -> None:
        """Tell that nobody is in the foreground any more, unless another one is by now."""
        if self._map is not None:
            last = decode(self._map[:])
            if last is None or (last.pid, last.started_s) == (self._pid, self._started_s):
                self._map[:] = bytes(SIZE)
            self._map.close()
        self._map, self.on = None, False

    def _write(self) -> None:
        if self._map is None:
            return
        self._count += 1
        own = (self._pid, self._started_s, self._limit, self._epoch, self._steps)
        present = (self.segment, self._since_s, self._count)
        body = BODY.pack(MAGIC, *own, *present, *self._sums, *self._done)
        self._map[:] = body + CHECK.pack(crc32(body))


class PageReader:
    """A background's side: what is on the page of one device. The page may come and go.

    It is read as a file, from the same memory: a mapping would end this process if somebody cut
    the file off.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._descriptor: int | None = None
        self._find_at_s = 0.0  # when to see whether the file is another one
        self._process: tuple[int, float] = (0, 0.0)
        self._state, self._state_until_s = ALIVE, 0.0

    def read(self, now_s: float) -> Seen:
        """The present mark, and how its writer is. The file is looked for every 0.2 s."""
        if now_s >= self._find_at_s:
            self._find()
            self._find_at_s = now_s + LOOK_EVERY_S
        if self._descriptor is None:
            return NOBODY
        for _ in range(MOST_READS):
            try:
                page = os.pread(self._descriptor, SIZE, 0)
            except OSError:
                break
            if not any(page):
                return NOBODY
            if (mark := decode(page)) is not None:
                return Seen(mark, process=self._state_of(mark, now_s))
        pid, _ = self._process  # of the last good mark
        return Seen(torn=True, process=process_state(*self._process) if pid else ALIVE)

    def _find(self) -> None:
        """Open the file that has the name now, unless it is open."""
        self.close()
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def _state_of(self, mark: Mark, now_s: float) -> str:
        process = (mark.pid, mark.started_s)
        if process != self._process or now_s >= self._state_until_s:
            self._process, self._state = process, process_state(*process)
            self._state_until_s = now_s + STATE_EVERY_S
        return self._state

    def close(self) -> None:
        """Let go of the page."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


# Magic, pid, began, at, then the totals of a controller: steps, pieces, busy, and its slowdown.
FILL = struct.Struct("=Iqddqqddddq")

UNKNOWN = Slowdown(0.0, 0.0, 0.0, 0)


class Fill(NamedTuple):
    """What a background has told of itself at ``at_s``; see ``controllers.Totals`` for the rest."""

    pid: int
    started_s: float
    at_s: float
    steps: int
    pieces: int
    busy_s: float
    slowdown: Slowdown | None


class FillWriter:
    """Writes how a background fares beside a page, into a file of that name and ``.fill``.

    Two such entries give the harvest of the time between them.
    """

    def __init__(self, path: str) -> None:
        self._map: mmap.mmap | None = None
        self._own = (os.getpid(), process_start_s(os.getpid()) or 0.0)
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(f"{path}.fill", flags, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, FILL.size + CHECK.size)
                self._map = mmap.mmap(descriptor, FILL.size + CHECK.size)
            finally:
                os.close(descriptor)

    def write(
        self, at_s: float, steps: int, pieces: int, busy_s: float, slowdown: Slowdown | None
    ) -> None:
        """Tell the totals at a time."""
        if self._map is not None:
            totals = (steps, pieces, busy_s, *(slowdown or UNKNOWN))
            body = FILL.pack(MAGIC, *self._own, at_s, *totals)
            self._map[:] = body + CHECK.pack(crc32(body))

    def close(self) -> None:
        """Tell nothing more; what was told stays."""
        if self._map is not None:
            self._map.close()
            self._map = None


def read_fill(path: str | os.PathLike[str]) -> Fill | None:
    """What the background beside this page has told last; None if nothing, or torn."""
    try:
        told = Path(f"{os.fspath(path)}.fill").read_bytes()
    except OSError:
        return None
    body = told[: FILL.size]
    if len(told) < FILL.size + CHECK.size or CHECK.unpack(told[FILL.size :])[0] != crc32(body):
        return None
    fields = FILL.unpack(body)
    slowdown = Slowdown(*fields[7:])
    about = (*fields[1:7], slowdown if slowdown.pairs else None)
    return Fill(*about) if fields[0] == MAGIC else None


def decode(page: bytes) -> Mark | None:
    """The mark on a page; None if it is torn, or none of this layout."""
    body = page[: BODY.size]
    if len(page) < SIZE or CHECK.unpack(page[BODY.size : SIZE])[0] != crc32(body):
        return None
    magic, pid, started_s, limit, epoch, steps, segment, since_s, _, *seconds = BODY.unpack(body)
    if magic != MAGIC:
        return None
    cut = len(NAMES)
    sums_s, done_s = tuple(seconds[:cut]), tuple(seconds[cut:])
    return Mark(pid, started_s, epoch, steps, segment, since_s, sums_s, done_s, limit)


def is_told(path: str | os.PathLike[str]) -> bool:
    """True if a process that is not gone has left a mark on this page."""
    try:
        mark = decode(Path(path).read_bytes())
    except OSError:
        return False
    return mark is not None and process_state(mark.pid, mark.started_s) != GONE


def tell_mute(path: str | os.PathLike[str], pid: int, limit: float = LIMIT) -> None:
    """Write on a page that this process computes, and that nothing is known of its steps.

    Raises OSError.
    """
    began_s = process_start_s(pid) or 0.0
    about = (MAGIC, pid, began_s, limit, 0, 0, OTHER, time.monotonic(), 0)
    body = BODY.pack(*about, *NONE, *NONE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, body + CHECK.pack(crc32(body)), 0)
    finally:
        os.close(descriptor)


def process_start_s(pid: int) -> float | None:
    """When a process began, in seconds of CLOCK_BOOTTIME; None if it is gone, or a zombie."""
    found = _stat(pid)
    return None if found is None else found[1]


def process_state(pid: int, started_s: float) -> str:
    """ALIVE, STOPPED or GONE: the process of this number that began at that time."""
    found = _stat(pid)
    if found is None or found[1] != started_s:
        return GONE
    return STOPPED if found[0] in (b"T", b"t") else ALIVE


def _stat(pid: int) -> tuple[bytes, float] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # its name, which comes before, can hold anything
    return None if fields[0] in (b"Z", b"X") else (fields[0], int(fields[19]) / TICKS)
