"""Speed of a training job by CPU cores, as published."""

from bisect import bisect_right
from math import inf
from typing import NamedTuple

TRAIN, VALIDATE = "train", "validate"
GPU_TYPE = "v100"  # on which all curves were measured


class CoreCurve(NamedTuple):
    """The published speed of one phase of a job by ``c`` CPU cores for each GPU.

    Either ``points`` of (cores, speed), linear between them, constant beyond the last, in
    proportion to the cores below the first; or steps of ``fixed`` + ``by_core`` / c, to which more
    cores than ``saturating_cores`` add nothing. ``cpu_cores`` is the CPU time in a second and
    ``device_util`` the use of the GPU (0..1), both on ``used_at`` cores; None: unpublished.
    """

    phase: str
    source: str
    points: tuple[tuple[float, float], ...] = ()
    fixed: float = 0.0
    by_core: float = 0.0
    saturating_cores: float | None = None
    cpu_cores: float | None = None
    device_util: float | None = None
    used_at: float | None = None

    def speed(self, cores: float, gpu: float = 1.0) -> float:
        """The speed with so many cores for each GPU, in a unit of this curve's own.

        ``gpu`` is the speed of the GPU, 1 being that of GPU_TYPE. It raises or lowers the speed at
        which the curve saturates; below, cores set the speed. Those beyond the last point, which
        only a faster GPU has a use for, count in proportion.
        """
        return min(self._prepared(cores), gpu * self._peak())

    def _peak(self) -> float:
        """The speed with any number of cores."""
        if self.points:
            return self.points[-1][1]
        enough = inf if self.saturating_cores is None else self.saturating_cores
        return 1.0 / (self.fixed + self.by_core / enough)

    def _prepared(self, cores: float) -> float:
        """The speed at which so many cores prepare data, whatever the GPU."""
        if not self.points:
            return 1.0 / (self.fixed + self.by_core / cores)
        at = bisect_right(self.points, (cores, inf))
        if at == len(self.points):
            last, speed = self.points[-1]
            return speed * cores / last
        (low, slower), (high, faster) = (self.points[at - 1] if at else (0.0, 0.0)), self.points[at]
        return slower + (faster - slower) * (cores - low) / (high - low)

    def relative(self, cores: float, to_cores: float) -> float:
        """The speed with so many cores for each GPU, 1 being that with ``to_cores``."""
        return self.speed(cores) / self.speed(to_cores)
