"""A job's own measurements: its throughput at each number of workers it has had."""

from collections.abc import Mapping
from math import isfinite, sqrt
from typing import Any, NamedTuple

from rota.errors import InputError


class Throughput(NamedTuple):
    """Samples per second over so many ``steps``.

    ``mean`` is their mean, ``squares`` the sum of squared differences from it.
    """

    steps: int
    mean: float
    squares: float

    def joined(self, other: "Throughput") -> "Throughput":
        """Both series combined (Chan, Golub and LeVeque, *The American Statistician* 37, 1983)."""
        steps = self.steps + other.steps
        apart = other.mean - self.mean
        mean = self.mean + apart * other.steps / steps
        squares = self.squares + other.squares + apart**2 * self.steps * other.steps / steps
        return Throughput(steps, mean, squares)

    @property
    def variance(self) -> float:
        """Unbiased variance of one step; 0 for a single step."""
        return self.squares / (self.steps - 1) if self.steps > 1 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean, samples per second; 0 of a single step."""
        return sqrt(self.variance / self.steps)


class Observations:
    """One job's throughput by number of workers, without the first step after each restart.

    The first step at a size warms up caches, connections and compiled kernels, and would count
    against that size (MLSys 2020; the authors' code drops it as well). ``workers`` is how many
    there are now, 0 before the first step; ``steps`` how many have been counted since the last
    restart. A size takes three numbers, however long the job runs.
    """

    def __init__(self) -> None:
        self.workers = 0
        self.steps = 0
        self._warming = True
        self._by_size: dict[int, Throughput] = {}

    def restart(self, workers: int) -> None:
        """The job continues with so many workers: its next step is not counted."""
        self.workers, self.steps, self._warming = workers, 0, True

    def step(self, workers: int, samples: float, seconds: float) -> None:
        """Count a step over ``samples`` samples. A changed size is a restart.

        Raises InputError if a number is not above zero.
        """
        if not (workers > 0 and samples > 0 and 0 < seconds < float("inf")):
            raise InputError(
                f"step of {samples!r} samples in {seconds!r} s by {workers!r} workers: all must be "
                "numbers above zero"
            )
        if workers != self.workers:
            self.restart(workers)
        if self._warming:
            self._warming = False
            return
        self.add(workers, Throughput(1, samples / seconds, 0.0))

    def add(self, workers: int, measured: Throughput) -> None:
        """Count several steps at once, none of them the first after a restart."""
        if workers != self.workers:
            self.restart(workers)
        self._warming = False
        self.steps += measured.steps
        known = self._by_size.get(workers)
        self._by_size[workers] = measured if known is None else known.joined(measured)

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers with at least one counted step, ascending."""
        return sorted(self._by_size)

    def __getitem__(self, workers: int) -> Throughput:
        return self._by_size[workers]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values, which :meth:`from_dict` reads."""
        sizes = {str(size): list(self._by_size[size]) for size in self.sizes}
        state = {"workers": self.workers, "steps": self.steps, "warming": self._warming}
        return {**state, "sizes": sizes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Observations":
        """The inverse of :meth:`as_dict`. Raises InputError for other values."""
        made = cls()
        try:
            made.workers, made.steps = int(data["workers"]), int(data["steps"])
            made._warming = bool(data["warming"])
            for size, (steps, mean, squares) in data["sizes"].items():
                known = Throughput(int(steps), float(mean), float(squares))
                if not (int(size) > 0 and known.steps > 0 and known.mean > 0):
                    raise ValueError(f"{known} at {size} workers")
                if not (isfinite(known.mean) and 0 <= known.squares < float("inf")):
                    raise ValueError(f"{known} at {size} workers")
                made._by_size[int(size)] = known
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"observations: {error}; give what Observations.as_dict wrote"
            ) from None
        return made
