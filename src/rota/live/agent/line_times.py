"""The times at which the lines of a log were printed, told by how long the log was at what time.

Beside ``rank0.log`` is ``rank0.times``, entries of a time and a size, both rising. Bytes between
the sizes of two entries were printed by the time of the second one; those after the last entry, by
the last change of the log. The file is made before its process starts, so logs of versions that
kept no times have none. It is thinned where its log is cut, and where it has grown too long.
"""

import contextlib
import os
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path

from rota.live.agent.output import open_plain
from rota.live.wire import clock

EVERY_S = 1.0  # is an entry of a log that grows, at most
MOST_ENTRIES = 1 << 18  # then every other one is left out
WIDTH = 2  # numbers of an entry: its time, and the size
ENTRY_BYTES = WIDTH * array("d").itemsize

Entry = tuple[float, float]


def times_file(log: Path) -> Path:
    """The file with the times of a log."""
    return log.with_suffix(".times")


def begin(log: Path) -> None:
    """Keep times of a log from now on; the log may be there, with times. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    os.close(os.open(times_file(log), flags, 0o600))


class LineTimes:
    """Times of one log, which was changed last at ``changed_s``."""

    def __init__(self, entries: "array[float]", changed_s: float) -> None:
        self._entries, self._changed_s = entries, changed_s
        self._numbers = range(len(entries) // WIDTH)

    def at_s(self, offset: int) -> float:
        """The time by which the byte at this offset was printed."""
        later = bisect_right(self._numbers, float(offset), key=self._size_of)
        return self._entries[WIDTH * later] if later < len(self._numbers) else self._changed_s

    def since(self, at_s: float) -> int | None:
        """The offset of the first byte that was printed at this time or later; None if none was."""
        later = bisect_left(self._numbers, at_s, key=self._time_of)
        if later == len(self._numbers) and self._changed_s < at_s:
            return None
        return int(self._size_of(later - 1)) if later else 0

    def _time_of(self, number: int) -> float:
        return self._entries[WIDTH * number]

    def _size_of(self, number: int) -> float:
        return self._entries[WIDTH * number + 1]


def read_times(log: Path) -> LineTimes | None:
    """The times of a log; None if none were kept. Raises OSError."""
    entries = _read(log)
    if entries is None:
        return None
    with contextlib.suppress(FileNotFoundError):
        return LineTimes(entries, _changed_s(log.lstat()))
    return LineTimes(entries, clock.now_s())


def leave_out(log: Path, begin: int, end: int) -> None:
    """Drop the times of a part of a log that was cut out. Raises OSError."""

    def without_part(entries: list[Entry]) -> list[Entry]:
        after = next((entry for entry in entries if entry[1] > begin), None)  # of what is before it
        return [e for e in entries if not begin < e[1] <= end or e is after]

    _rewrite(log, without_part)


class TimeKeeper:
    """Writes down the times of one log that grows."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._noted_s = -EVERY_S  # by the clock of the caller
        self._size, self._at_s = 0, 0.0  # of the last entry
        self._count: int | None = None  # of entries, once the file has been read

    def look(self, status: os.stat_result, now_s: float, *, ended: bool = False) -> None:
        """Add an entry if the log has grown and the last one is old. Raises OSError.

        ``now_s`` is any clock's. With ``ended`` its process prints nothing any more.
        """
        if self._count is None:
            self._read()
        if status.st_size < self._size:  # the job has cut its own log
            _rewrite(self._log, lambda entries: [e for e in entries if e[1] <= status.st_size])
            self._read()
        is_due = ended or now_s - self._noted_s >= EVERY_S
        if self._count is None or status.st_size <= self._size or not is_due:
            return
        self._at_s, self._size = max(self._at_s, _changed_s(status)), status.st_size
        if _append(times_file(self._log), array("d", (self._at_s, self._size))):
            self._noted_s = now_s
            self._count += 1
        if self._count > MOST_ENTRIES:
            _rewrite(self._log, lambda entries: entries[::-2][::-1])  # the last one stays
            self._read()

    def _read(self) -> None:
        entries = _read(self._log)
        self._count = None if entries is None else len(entries) // WIDTH
        if entries:
            self._at_s, self._size = entries[-2], int(entries[-1])
        else:
            self._size = 0


def note_end(log: Path) -> None:
    """Write down when the last of a log was printed, before the log moves. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        TimeKeeper(log).look(log.lstat(), 0.0, ended=True)


def _changed_s(status: os.stat_result) -> float:
    """The cluster's time at which a file was changed last."""
    return clock.now_s() - max(0.0, time.time() - status.st_mtime)


def _read(log: Path) -> "array[float] | None":
    """The entries of a log that are whole; None if it has no such file. Raises OSError."""
    descriptor = open_plain(times_file(log))
    if descriptor is None:
        return None
    with open(descriptor, "rb") as file:
        data = file.read()
    entries = array("d")
    entries.frombytes(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])
    return entries


def _append(file: Path, entry: "array[float]") -> bool:
    """Add an entry to a file; False if there is no such file. Raises OSError."""
    descriptor = open_plain(file)
    if descriptor is None:
        return False
    try:
        if torn := os.fstat(descriptor).st_size % ENTRY_BYTES:  # by a full disk
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - torn)
        os.write(descriptor, entry.tobytes())
        return True
    finally:
        os.close(descriptor)


def _rewrite(log: Path, kept: Callable[[list[Entry]], list[Entry]]) -> None:
    """Replace the entries of a log, all or none. Raises OSError."""
    entries = _read(log)
    if not entries:
        return
    file = times_file(log)
    draft = file.with_name(f"{file.name}.new")
    left = kept(list(zip(entries[::WIDTH], entries[1::WIDTH], strict=True)))
    draft.write_bytes(array("d", (number for entry in left for number in entry)).tobytes())
    os.replace(draft, file)
