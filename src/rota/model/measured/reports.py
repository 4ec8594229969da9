"""Jobs' reports about their training, beyond columns: step times, gradient noise, batch limits.

A simulation sets :attr:`~rota.model.state.state.ClusterState.reports`, and of live jobs the state
sets it itself (:mod:`rota.model.measured.adaptation`); policies ask the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from rota.model.allocation import Allocation


class StepPoint(NamedTuple):
    """Time of steps on so many nodes and GPUs, with ``batch`` samples on each GPU.

    ``compute_s`` is computing a gradient of that batch, ``step_s`` the whole step, of one such
    gradient and its exchange. ``gpu_type`` is that of the slowest of the GPUs, empty if nobody
    named it.
    """

    nodes: int
    gpus: int
    batch: int
    compute_s: float
    step_s: float
    gpu_type: str = ""


class CoreTime(NamedTuple):
    """Seconds of a step of a job that may use ``millicores`` thousandths of a CPU core in all.

    In the phase ``evaluate`` it is a whole validation. ``gpu_type`` is empty if nobody named it.
    """

    gpu_type: str
    millicores: int
    step_s: float


class GradientNoise(NamedTuple):
    """The gradient's squared norm, and its variance at the initial batch size."""

    sqr: float
    var: float


class BatchRange(NamedTuple):
    """The batches with which a job can train, in samples.

    ``initial`` is the whole batch that its learning rate is for, ``most`` the largest whole batch;
    a GPU computes from ``least_per_gpu`` to ``most_per_gpu`` at once.
    """

    initial: int
    most: int
    least_per_gpu: int
    most_per_gpu: int

    def without(self, samples: int, works: Iterable[int]) -> BatchRange | None:
        """The range without ``samples`` or more at once on a GPU.

        The new limit is half of them, or the largest of ``works`` between; None if none is left.
        """
        half = max(self.least_per_gpu, samples // 2)
        most = max((number for number in works if half < number < samples), default=half)
        return self._replace(most_per_gpu=min(self.most_per_gpu, most)) if half < samples else None


class Learned(NamedTuple):
    """A job's progress, in steps of its initial batch (Pollux' scale-invariant iterations).

    ``epoch`` is the number of such steps in one pass over its data; ``total`` that of all epochs
    that its user declared, None if the user declared none.
    """

    done: float
    epoch: float
    total: float | None


class Reports(Protocol):
    """Facts about each job at ``now_s``, by row; None where it has reported nothing."""

    def measured(self, row: int) -> tuple[StepPoint, ...] | None:
        """Step times wherever the job has run, in order of the first measurement."""
        ...

    def noise(self, row: int, now_s: float) -> GradientNoise | None:
        """Its gradient noise now, or when it ran last."""
        ...

    def batch_range(self, row: int) -> BatchRange | None:
        """The batches with which the job can train."""
        ...

    def learned(self, row: int, now_s: float) -> Learned | None:
        """The job's progress."""
        ...


class CoreReports(Protocol):
    """Step times of simulated jobs by CPU cores, and their phases, by row."""

    def phase(self, row: int) -> str:
        """The phase that the job is in, ``train`` or ``evaluate``."""
        ...

    def core_times(
        self, row: int, place: Allocation, phase: str, now_s: float
    ) -> tuple[CoreTime, ...]:
        """Times measured up to now of the job, or its kind, on GPUs like those of ``place``."""
        ...


class Curves(Protocol):
    """Metrics reported by the trials of searches."""

    def curve(self, row: int, now_s: float) -> Sequence[float]:
        """The metric at each report so far; the caller must not change it."""
        ...


class Truth(Protocol):
    """Facts that only a simulator knows, for policies that declare ``needs_duration``."""

    def step_s(self, row: int, gpus: int) -> float:
        """Seconds of one of the job's steps with its own batch, on the fewest nodes."""
        ...

    def steps_left(self, row: int, now_s: float, whole_epochs: bool) -> float:
        """Steps to its end with its own batch; ``whole_epochs`` leaves out the present epoch."""
        ...
