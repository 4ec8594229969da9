"""Options that several commands share, given to a command in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def options(*groups: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command the options of all ``groups``, in that order."""

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        for group in reversed(groups):
            for option in reversed(group):
                command = option(command)
        return command

    return give
