"""Measures the device memory of a training over a step, and finds where it is least.

Between backward and the optimiser's step there are gradients, within forward and backward
activations. After ``optimizer.step()`` and ``zero_grad(set_to_none)`` there is neither, and little
has to be moved to suspend the job there (Gandiva, OSDI 2018, section 4.1: 0.3 of 23 GB).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

BACKWARD, OPTIMIZER, BOUNDARY = "backward", "optimizer", "boundary"
WARM_UP_STEPS = 2  # the optimiser makes its state in the first one
MEASURED_STEPS = 5


class Cycle(NamedTuple):
    """Common facts of the measured steps."""

    least_bytes: int
    most_bytes: int
    least_after: str  # BACKWARD, OPTIMIZER or BOUNDARY: the point with the least


class MemoryCycle:
    """Samples of allocated device memory at the points of a few steps.

    ``allocated`` is asked at each point, ``peak`` for the most that there has been, in bytes.
    """

    def __init__(self, allocated: Callable[[], int], peak: Callable[[], int]) -> None:
        self._allocated = allocated
        self._peak = peak
        self._steps = 0
        self._most_at: dict[str, int] = {}  # of several optimisers, and several steps

    def at(self, point: str) -> Cycle | None:
        """Record that training is at this point; the result, once, when samples suffice."""
        if self._steps >= WARM_UP_STEPS + MEASURED_STEPS:
            return None
        if self._steps >= WARM_UP_STEPS:
            self._most_at[point] = max(self._most_at.get(point, 0), self._allocated())
        if point != BOUNDARY:
            return None
        self._steps += 1
        if self._steps < WARM_UP_STEPS + MEASURED_STEPS:
            return None
        # Of equal points the boundary is the one to suspend at.
        order = sorted(self._most_at, key=lambda each: (self._most_at[each], each != BOUNDARY))
        least = self._most_at[order[0]]
        return Cycle(least, max(self._peak(), least), order[0])
