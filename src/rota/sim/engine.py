"""A clock and a heap: what is due next, in a fixed order."""

from heapq import heappop, heappush
from typing import Any

# Order of what is due at one instant.
FINISH, CONFIRM, FAULT, ARRIVE = 0, 1, 2, 3


class Engine:
    """Timed entries, delivered by (time, kind, order of scheduling)."""

    __slots__ = ("_heap", "_sequence", "now_s")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Any]] = []
        self._sequence = 0
        self.now_s = 0.0

    def at(self, time_s: float, kind: int, what: Any) -> None:
        """Have ``what`` delivered at ``time_s``."""
        self._sequence += 1
        heappush(self._heap, (time_s, kind, self._sequence, what))

    def next_time_s(self) -> float | None:
        """When the next entry is due, or None."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[int, Any]:
        """The next entry as (kind, what); the clock moves to its time."""
        time_s, kind, _, what = heappop(self._heap)
        self.now_s = time_s
        return kind, what
