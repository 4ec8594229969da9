"""Paths of Unix sockets: a socket's address has room for 107 bytes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_BYTES = 107


def is_short(path: str | Path) -> bool:
    """True if an address has room for the path."""
    return len(os.fsencode(path)) <= MOST_BYTES


@contextmanager
def short(path: str | Path) -> Iterator[str]:
    """A short name of a socket's path, of any length, to bind or connect to inside the ``with``.

    Raises OSError if its folder is not there.
    """
    if is_short(path):
        yield str(path)
        return
    folder, name = os.path.split(path)
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)
