"""Measurements of a job, or of all jobs of a signature: speeds by placement, and usage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.model.measured.average import Average
from rota.model.measured.cpu_points import CpuPlace, CpuPoint
from rota.model.measured.job_signature import Recent, StepWork

OTHERS = "others"  # beside a job, more than one, or not on just the same GPUs; no signature
MOST_PLACEMENTS = 64  # of one job or signature
MOST_POINTS = 128  # likewise, by CPU cores


class Placement(NamedTuple):
    """GPUs of a job: type, number, number of nodes, and the signature of the job beside it.

    ``beside`` is empty for a job that had its GPUs for itself, :data:`OTHERS` for one that shared
    them with several jobs, or with one that had others as well.
    """

    gpu_type: str
    num_gpus: int
    num_nodes: int = 1
    beside: str = ""


@dataclass(slots=True)
class Profile:
    """Measurements of one job, or of the jobs of a signature.

    ``speeds`` are seconds per step by placement, ``cpu_points`` step times and use by the CPU cores
    that jobs might use, in each of their phases. ``device_util`` (0..1) and ``cpu_cores`` (seconds
    of CPU time in a second, of all ranks) are those of jobs that had their GPUs for themselves.
    Memory is that of each GPU over a step, at least and at most, None if unknown. ``jobs`` is how
    many have come to it, ``told_s`` when one told last.
    """

    command: str = ""  # of the latest job with this signature
    work: StepWork = field(default_factory=StepWork)
    speeds: Recent[Placement, Average] = field(default_factory=lambda: Recent(MOST_PLACEMENTS))
    cpu_points: Recent[CpuPlace, CpuPoint] = field(default_factory=lambda: Recent(MOST_POINTS))
    device_util: Average = field(default_factory=Average)
    cpu_cores: Average = field(default_factory=Average)
    least_bytes: int | None = None
    most_bytes: int | None = None
    jobs: int = 0
    told_s: float = 0.0

    def timed(self, placement: Placement, steps: float, seconds: float) -> None:
        """Record that ``steps`` steps took ``seconds`` seconds there."""
        speed = self.speeds.get(placement) or Average()
        speed.add(seconds, steps, seconds)
        self.speeds[placement] = speed

    def cpu_point(self, place: CpuPlace) -> CpuPoint:
        """The measurements under these conditions, to be added to."""
        point = self.cpu_points.get(place) or CpuPoint()
        self.cpu_points[place] = point  # moves it to the end: the latest one
        return point

    def took_memory(self, least_bytes: int | None, most_bytes: int | None) -> None:
        """Add a job's memory over a step: the last value of the least, the largest of the most."""
        if least_bytes is not None:
            self.least_bytes = least_bytes
        if most_bytes is not None:
            self.most_bytes = max(most_bytes, self.most_bytes or 0)

    def merge(self, other: Profile) -> None:
        """Add what ``other`` knows."""
        for placement, speed in other.speeds.items():
            own = self.speeds.get(placement) or Average()
            own.merge(speed)
            self.speeds[placement] = own
        for place, point in other.cpu_points.items():
            self.cpu_point(place).merge(point)
        self.device_util.merge(other.device_util)
        self.cpu_cores.merge(other.cpu_cores)
        self.took_memory(other.least_bytes, other.most_bytes)
        self.told_s = max(self.told_s, other.told_s)

    def step_s(self, placement: Placement) -> float | None:
        """Mean seconds per step there; None if it was not measured."""
        speed = self.speeds.get(placement)
        return speed.mean if speed is not None else None

    def relative(self, placement: Placement) -> float | None:
        """The speed in a shared placement, as a part of that alone on such GPUs; None: unknown."""
        alone, beside = self.step_s(placement._replace(beside="")), self.step_s(placement)
        return alone / beside if alone and beside else None

    def beside(self, signature: str) -> Iterator[tuple[float, int, str]]:
        """``(speed relative to alone, measurements, GPU type)`` beside it, by placement."""
        for placement, speed in self.speeds.items():
            if signature and placement.beside == signature:
                relative = self.relative(placement)
                if relative is not None:
                    yield relative, speed.count, placement.gpu_type
