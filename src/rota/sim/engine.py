"""A clock and a heap: delivers what is due next, in a fixed order."""

from collections.abc import Callable
from heapq import heapify, heappush
from itertools import count
from math import inf
from typing import Any

# Order of what is due at one instant.
FINISH, CONFIRM, FAULT, PHASE, FILL = 0, 1, 2, 3, 4


class Engine:
    """Timed entries, delivered by (time, kind, order of scheduling).

    ``heap`` holds them as (time, kind, number, what), the next one first. Jobs arrive in order, so
    they need no heap: ``arrival_s`` is the next arrival, which comes after all else of that
    instant.
    """

    __slots__ = ("_numbers", "arrival_s", "heap", "now_s")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, Any]] = []
        self._numbers = count()
        self.arrival_s = inf
        self.now_s = 0.0

    def at(self, time_s: float, kind: int, what: Any) -> None:
        """Have ``what`` delivered at ``time_s``."""
        heappush(self.heap, (time_s, kind, next(self._numbers), what))

    def keep(self, is_due: Callable[[float, int, Any], bool]) -> None:
        """Drop every entry of which ``is_due(time_s, kind, what)`` is False."""
        self.heap[:] = [entry for entry in self.heap if is_due(entry[0], entry[1], entry[3])]
        heapify(self.heap)

    def next_time_s(self) -> float | None:
        """Time of the next entry or arrival; None if there is none."""
        due_s = self.heap[0][0] if self.heap else inf
        due_s = min(due_s, self.arrival_s)
        return None if due_s == inf else due_s
