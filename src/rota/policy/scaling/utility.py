"""The value to a user of a job's completion at some time.

Times are seconds from the job's start; values are in the currency of its price.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Protocol

from rota.errors import InputError


class Utility(Protocol):
    """Value by completion time."""

    def at(self, jct_s: float) -> float:
        """The value of completing after so many seconds; it never rises with them."""
        ...

    def begun(self, initial_jct_s: float) -> "Utility":
        """The same utility, given the completion time at the job's first size."""
        ...


class LinearUtility:
    """``value`` at once, 0 after ``zero_at_s``, negative later (MLSys 2020)."""

    def __init__(self, value: float, zero_at_s: float) -> None:
        """Raises InputError if a number is not above zero."""
        self.value = _positive("value", value)
        self.zero_at_s = _positive("zero_at_s", zero_at_s)

    def at(self, jct_s: float) -> float:
        return self.value - self.value / self.zero_at_s * jct_s

    def begun(self, initial_jct_s: float) -> "LinearUtility":
        return self


class StepUtility:
    """Straight lines through ``(value, end_s)`` points, as published (MLSys 2020).

    The first value holds from the start to its end; the last line goes on beyond its end. If the
    job would complete after the last end at its first size, the point (0, that time) is added.

    With a single point that makes a deadline, and a trap: a job that would meet it at its first
    size sees no slope at all, and may shrink until it misses it. :class:`DeadlineUtility` does
    not.
    """

    def __init__(self, points: Sequence[Sequence[float]]) -> None:
        """Raises InputError unless values don't rise and ends rise."""
        if not points or any(len(point) != 2 for point in points):
            raise InputError("utility.steps: give pairs such as [[100, 3600], [0, 7200]]")
        self.points = [(float(value), float(end)) for value, end in points]
        if self.points[0][1] != 0:
            self.points.insert(0, (self.points[0][0], 0.0))
        for (value, end), (next_value, next_end) in pairwise(self.points):
            if not (next_value <= value and end < next_end < inf):
                raise InputError(
                    f"utility.steps: ({next_value:g}, {next_end:g} s) after ({value:g}, {end:g} "
                    "s); values must not rise, ends must be seconds that do"
                )
        if len(self.points) < 2:
            raise InputError("utility.steps: an end above 0 s is needed")

    def at(self, jct_s: float) -> float:
        for (value, start), (next_value, end) in pairwise(self.points):
            if jct_s < end or end == self.points[-1][1]:
                return value + (jct_s - start) * (next_value - value) / (end - start)
        raise AssertionError("the last line has no end")

    def begun(self, initial_jct_s: float) -> "StepUtility":
        if self.points[-1][1] < initial_jct_s < inf and self.points[-1][0] >= 0:
            return StepUtility([*self.points, (0.0, initial_jct_s)])
        return self


class DeadlineUtility:
    """``value`` until ``deadline_s``, then falling in a straight line through 0 at ``zero_at_s``.

    The line goes on below zero, so that a job that is late gains by every second it saves, and
    the slope does not depend on the size that it happened to start with. ``zero_at_s`` is twice
    the deadline unless given.
    """

    def __init__(self, value: float, deadline_s: float, zero_at_s: float | None = None) -> None:
        """Raises InputError if a number is not above zero, or the deadline not before the zero."""
        self.value = _positive("value", value)
        self.deadline_s = _positive("deadline_s", deadline_s)
        self.zero_at_s = _positive("zero_at_s", zero_at_s or 2 * deadline_s)
        if self.zero_at_s <= self.deadline_s:
            raise InputError(
                f"utility.zero_at_s: {self.zero_at_s:g} s must be after the deadline, "
                f"{self.deadline_s:g} s"
            )

    def at(self, jct_s: float) -> float:
        late_s = max(0.0, jct_s - self.deadline_s)
        return self.value * (1.0 - late_s / (self.zero_at_s - self.deadline_s))

    def begun(self, initial_jct_s: float) -> "DeadlineUtility":
        return self


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise InputError(f"utility.{name}: {value!r} must be a number above zero")
    return float(value)
