"""What jobs report about their training, beyond the columns: steps, gradient noise, batch limits.

A simulation sets :attr:`~rota.model.state.state.ClusterState.reports`, and of live jobs the state
sets it itself (:mod:`rota.model.measured.adaptation`); policies ask the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class StepPoint(NamedTuple):
    """What steps took: on so many nodes and GPUs, with ``batch`` samples on each GPU.

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


class GradientNoise(NamedTuple):
    """The gradient's squared norm, and its variance at the initial batch size."""

    sqr: float
    var: float


class BatchRange(NamedTuple):
    """Which batches a job can train with, in samples.

    ``initial`` is the whole batch that its learning rate is for, ``most`` the largest whole batch;
    a GPU computes from ``least_per_gpu`` to ``most_per_gpu`` at once.
    """

    initial: int
    most: int
    least_per_gpu: int
    most_per_gpu: int

    def without(self, samples: int, works: Iterable[int]) -> BatchRange | None:
        """With fewer than so many samples at once on a GPU: half of them at most, or more than that
        if it ``works``. None if no number is left."""
        half = max(self.least_per_gpu, samples // 2)
        most = max((number for number in works if half < number < samples), default=half)
        return self._replace(most_per_gpu=min(self.most_per_gpu, most)) if half < samples else None


class Learned(NamedTuple):
    """How far a job has come, in steps of its initial batch (Pollux' scale-invariant iterations).

    ``epoch`` is what one pass over its data comes to; ``total`` that of all epochs that its user
    declared, None if nobody did.
    """

    done: float
    epoch: float
    total: float | None


class Reports(Protocol):
    """What is known of each job at ``now_s``, by row; None where it has told nothing."""

    def measured(self, row: int) -> tuple[StepPoint, ...] | None:
        """What its steps took wherever it has run, the first time first."""
        ...

    def noise(self, row: int, now_s: float) -> GradientNoise | None:
        """Its gradient noise now, or when it ran last."""
        ...

    def batch_range(self, row: int) -> BatchRange | None:
        """Which batches it can train with."""
        ...

    def learned(self, row: int, now_s: float) -> Learned | None:
        """How far it has come."""
        ...


class Curves(Protocol):
    """What the trials of searches have reported of their metric."""

    def curve(self, row: int, now_s: float) -> Sequence[float]:
        """What the metric was at each report so far; not to be changed."""
        ...


class Truth(Protocol):
    """What only a simulator knows: for policies that declare ``needs_duration``."""

    def step_s(self, row: int, gpus: int) -> float:
        """Seconds of one of the job's steps with its own batch, on as few nodes as can be."""
        ...

    def steps_left(self, row: int, now_s: float, whole_epochs: bool) -> float:
        """Steps to its end with its own batch; of ``whole_epochs``, only after the present one."""
        ...
