"""Means of measurements, of which older ones fade."""

from __future__ import annotations

from dataclasses import dataclass

REMEMBERED_S = 3600.0  # seconds of measuring after which measurements fade


@dataclass(slots=True)
class Average:
    """A weighted mean in which measurements older than about an hour of measuring fade."""

    _total: float = 0.0
    _weight: float = 0.0
    seconds: float = 0.0  # seconds of measuring that count
    count: int = 0  # number of measurements
    latest: float = 0.0  # the mean of the last one

    def add(self, total: float, weight: float, seconds: float) -> None:
        """Add a measurement that took ``seconds`` seconds; ``weight`` is more than 0."""
        self._total += total
        self._weight += weight
        self.seconds += seconds
        self.count += 1
        self.latest = total / weight
        if self.seconds > REMEMBERED_S:
            self._total, self._weight = self._total / 2, self._weight / 2
            self.seconds /= 2

    def merge(self, other: Average) -> None:
        """Add everything that ``other`` has."""
        if other.count:
            self.add(other._total, other._weight, other.seconds)
            self.count += other.count - 1
            self.latest = other.latest

    @property
    def mean(self) -> float | None:
        """The mean; None if nothing was measured."""
        return self._total / self._weight if self._weight else None
