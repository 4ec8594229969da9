"""The number that each process of a job wears: it finds processes that have outlived their shim.

It is the soft limit of the CPU time of real-time processes, in microseconds: programs inherit it
whatever they are executed by and with, and one so large never takes effect. It has a mark of the
folder of its node, so that a watchman knows the processes of its node, and a part of its own. A
shim, and the fence of a host, wear it as a guard: they look after the processes below them.
"""

import os
import resource
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

WORN = 1 << 62  # of every such number
GUARD = 1 << 61
MARKED = 1 << 60  # it has a mark; those of older agents have none
WATCHMAN = 1 << 59  # a watchman's own
MARK_BITS, OWN_BITS = 24, 35


def mark_of(node_folder: Path) -> int:
    """The mark of a node's folder, another one for a copy of it. Raises OSError."""
    status = os.stat(node_folder)
    return zlib.crc32(f"{status.st_dev}/{status.st_ino}".encode()) >> (32 - MARK_BITS)


def new_secret(node_folder: Path) -> str:
    """A secret to make the tags of an attempt's processes from; it begins with the node's mark.

    Raises OSError.
    """
    return f"{mark_of(node_folder):06x}-{secrets.token_hex(16)}"


def marked(mark: int, own: int) -> int:
    """The number with a node's mark, and with as much of ``own`` as it has room for."""
    return WORN | MARKED | mark << OWN_BITS | own & ((1 << OWN_BITS) - 1)


def mark_in(number: int | None) -> int | None:
    """The mark in a number that a process wears; None if it wears none, or one without a mark."""
    if number is None or number < 0 or number & (WORN | MARKED) != WORN | MARKED:
        return None
    return number >> OWN_BITS & ((1 << MARK_BITS) - 1)


def wear(number: int) -> None:
    """Give this process, and everything that will come of it, a number to be found by.

    Where the user is limited to less, processes go without.
    """
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (number, hard))


def number_on(pid: int) -> int | None:
    """The number that a process wears; None if the process is gone, or another user's.

    That of a guard has GUARD in it. A process that wears none has a limit below WORN.
    """
    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    except OSError:
        return None
