"""A clock and a heap: what is due next, in a fixed order."""

from heapq import heappop, heappush
from itertools import count
from typing import Any

# Order of what is due at one instant.
FINISH, CONFIRM, FAULT, ARRIVE = 0, 1, 2, 3


class Engine:
    """Timed entries, delivered by (time, kind, order of scheduling).

    ``heap`` holds them as (time, kind, number, what), the next one first.
    """

    __slots__ = ("_numbers", "heap", "now_s")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, Any]] = []
        self._numbers = count()
        self.now_s = 0.0

    def at(self, time_s: float, kind: int, what: Any) -> None:
        """Have ``what`` delivered at ``time_s``."""
        heappush(self.heap, (time_s, kind, next(self._numbers), what))

    def next_time_s(self) -> float | None:
        """When the next entry is due, or None."""
        return self.heap[0][0] if self.heap else None

    def pop(self) -> tuple[int, Any]:
        """The next entry as (kind, what); the clock moves to its time."""
        time_s, kind, _, what = heappop(self.heap)
        self.now_s = time_s
        return kind, what
