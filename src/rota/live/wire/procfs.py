"""What ``/proc`` tells of a process: its state, its parent, its times, its children."""

import contextlib
import os
from pathlib import Path

# Where fields are in what stat_of returns; proc_pid_stat(5) counts them from 1, the name included.
STATE, PARENT, STARTED = 0, 1, 19
CPU_TICKS = slice(11, 15)  # in user and system mode, of the process and of children that have ended
ARG_START, ARG_END = 45, 46
STOPPED, ENDED = ("T", "t"), ("Z", "X")  # states


def stat_of(pid: int | str, thread: int | str | None = None) -> list[str]:
    """The fields that follow the name of a process, or of one of its threads.

    Returns none if it is gone, or hidden from this user. Raises OSError.
    """
    where = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        line = Path(where).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return line.rpartition(b")")[2].decode().split()  # the name can hold anything, also ") T 1"


def children_of(pid: int) -> list[int]:
    """The children of a process, those of all of its threads; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                found += map(int, words.split())
    return found


def below(pid: int) -> list[int]:
    """All descendants of a process, parents before children."""
    found = children_of(pid)
    for each in found:
        found += children_of(each)
    return found
