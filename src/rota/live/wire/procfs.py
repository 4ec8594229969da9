"""What ``/proc`` tells of a process: its state, its parent, its times, its children."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# Where fields are in what stat_of returns; proc_pid_stat(5) counts them from 1, the name included.
STATE, PARENT, STARTED = 0, 1, 19
CPU_TICKS = slice(11, 15)  # in user and system mode, of the process and of children that have ended
ARG_START, ARG_END = 45, 46
STOPPED, ENDED = ("T", "t"), ("Z", "X")  # states
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
Answer = TypeVar("Answer")


class Spare:
    """A descriptor for looks at processes when no other is left: it is closed for each of them.

    Without it, processes that must be stopped or killed would not be found.
    """

    def __init__(self) -> None:
        self._descriptor = -1

    def keep(self) -> None:
        """Open it, unless it is open or can't be."""
        if self._descriptor < 0:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def use(self, call: Callable[[str], Answer], path: str) -> Answer:
        """The result of a call that opens one descriptor. Raises OSError."""
        try:
            return call(path)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or self._descriptor < 0:
                raise
        os.close(self._descriptor)
        self._descriptor = -1
        try:
            return call(path)
        finally:
            self.keep()


SPARE = Spare()


def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def stat_of(pid: int | str, thread: int | str | None = None) -> list[str]:
    """The fields that follow the name of a process, or of one of its threads.

    Returns none if it is gone, or hidden from this user. Raises OSError.
    """
    where = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        line = SPARE.use(_content, where)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return line.rpartition(b")")[2].decode().split()  # the name can hold anything, also ") T 1"


def children_of(pid: int) -> list[int]:
    """The children of a process, those of all of its threads; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in SPARE.use(os.listdir, f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                words = SPARE.use(_content, f"/proc/{pid}/task/{thread}/children")
                found += map(int, words.split())
    return found


def below(pid: int) -> list[int]:
    """All descendants of a process, parents before children."""
    found = children_of(pid)
    for each in found:
        found += children_of(each)
    return found
