"""Connections of a program that forks: they are its own, and end with it, not with its children."""

import os
import weakref
from typing import Protocol


class Kept(Protocol):
    """An object with connections."""

    def forked(self) -> None:
        """In a process that the program has forked: let go of them."""


_kept: weakref.WeakSet[Kept] = weakref.WeakSet()


def keep_from_forks(kept: Kept) -> None:
    """Have this told in each process that this one forks while it is there."""
    _kept.add(kept)


def _tell() -> None:
    for each in list(_kept):
        each.forked()


os.register_at_fork(after_in_child=_tell)
