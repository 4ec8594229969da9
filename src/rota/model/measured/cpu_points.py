"""Step times and use by CPU cores: what a job does with so many of them, in each of its phases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rota.model.measured.average import Average
from rota.model.measured.phase_times import PhaseTime
from rota.model.measured.phases import Use


class CpuPlace(NamedTuple):
    """Conditions of a measurement of a job that has its GPUs to itself.

    ``millicores`` are the thousandths of a CPU core that the whole job may use, None if nobody
    controls that; ``workers`` the processes that load data for a rank, None if nobody tells;
    ``batch`` is what the scheduler chose, None for the job's own.
    """

    gpu_type: str
    num_gpus: int
    num_nodes: int
    phase: str
    millicores: int | None
    workers: int | None
    batch: tuple[int, int] | None


@dataclass(slots=True)
class CpuPoint:
    """Measurements under such conditions; each mean is None until it is known.

    ``step_s`` are seconds of a step, in the phase ``evaluate`` of a whole validation; ``wait_s``
    those in which it waits for data. ``device_util`` (0..1) and ``cpu_cores`` (seconds of CPU time
    in a second, of all processes) are also known of programs that tell no steps.
    """

    step_s: Average = field(default_factory=Average)
    wait_s: Average = field(default_factory=Average)
    device_util: Average = field(default_factory=Average)
    cpu_cores: Average = field(default_factory=Average)

    def timed(self, time: PhaseTime) -> None:
        """Add the steps of a report."""
        seconds = time.steps * time.step_s
        self.step_s.add(seconds, time.steps, seconds)
        if time.wait_s is not None:
            self.wait_s.add(time.steps * time.wait_s, time.steps, seconds)

    def used(self, use: Used) -> None:
        """Add the use of devices and processor between two reports."""
        use.add_to(self.device_util, self.cpu_cores)

    def merge(self, other: CpuPoint) -> None:
        """Add what ``other`` knows."""
        for name in ("step_s", "wait_s", "device_util", "cpu_cores"):
            getattr(self, name).merge(getattr(other, name))

    @property
    def wait_share(self) -> float | None:
        """The part of a step in which it waits for data; None if unknown."""
        wait_s, step_s = self.wait_s.mean, self.step_s.mean
        return None if wait_s is None or not step_s else min(1.0, wait_s / step_s)


class Used(NamedTuple):
    """A job's use between two reports: seconds in use, and the seconds measured; None if unknown.

    ``busy`` is that of its devices, ``cpu`` CPU time, of all its processes.
    """

    busy: tuple[float, float] | None = None
    cpu: tuple[float, float] | None = None

    def add_to(self, device_util: Average, cpu_cores: Average) -> None:
        """Add what is known to these means."""
        for mean, use in ((device_util, self.busy), (cpu_cores, self.cpu)):
            if use is not None:
                mean.add(*use, use[1])

    def sample(self) -> Use:
        """The use as a sample for the detection of phases."""
        busy, cpu = (None if use is None else use[0] / use[1] for use in self)
        return Use(busy, cpu)


def used_between(before: dict[str, Any], told: dict[str, Any]) -> Used:
    """A job's use between two of its reports."""
    busy = cpu = None
    util, since_s = told.get("device_util"), told.get("util_since_s")
    if util is not None and since_s is not None and before["at_s"] <= since_s < told["at_s"]:
        seconds = told["at_s"] - since_s
        busy = (min(max(util, 0.0), 1.0) * seconds, seconds)
    if told.get("cpu_at_s") is not None and before.get("cpu_at_s") is not None:
        seconds, used_s = told["cpu_at_s"] - before["cpu_at_s"], told["cpu_s"] - before["cpu_s"]
        if seconds > 0 and used_s >= 0:
            cpu = (used_s, seconds)
    return Used(busy, cpu)
