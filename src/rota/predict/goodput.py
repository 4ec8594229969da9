"""Goodput: how much a training learns in a second, by GPUs, nodes and batch size.

The model of Qiao et al., *Pollux*, OSDI 2021, section 3: throughput in samples per second, times
the statistical efficiency of a sample at that batch size. The batch that serves a given allocation
best is found as in the paper's artifact (AdaptDL, branch osdi21-artifact), except that no batch is
larger than its limit.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from rota.errors import InputError
from rota.predict.step_time import StepTime

LEAST_VAR = 1e-6
MOST_SAMPLES = 1 << 53  # of a batch: a double has all whole numbers up to there
MOST_NOISE = 1e100  # larger values are no measurements, and their products overflow


class Noise(NamedTuple):
    """Statistics of a job's gradient at its initial batch size M0.

    ``sqr`` is the squared norm of the true gradient, ``var`` the trace of the covariance of a
    batch's gradient, in the same unit.
    """

    sqr: float
    var: float

    @classmethod
    def measured(cls, sqr: float, var: float) -> Noise | None:
        """Noise from estimates, which chance may make negative; None if they are not finite."""
        if not (abs(sqr) <= MOST_NOISE and abs(var) <= MOST_NOISE):
            return None
        return cls(max(sqr, 0.0), max(var, LEAST_VAR))

    def scale(self, initial: float) -> float:
        """The gradient noise scale phi, in samples: M0 var / sqr. Infinite without a gradient."""
        return initial * self.var / self.sqr if self.sqr > 0 else inf

    def efficiency(self, batch: float, initial: float) -> float:
        """Progress by a sample in a batch of ``batch``, relative to one of ``initial``.

        (phi + M0) / (phi + M), and never above 1.
        """
        scale = batch / initial
        total = self.var + self.sqr * scale
        return min(1.0, (self.var + self.sqr) / total if total > 0 else 1.0 / scale)


UNKNOWN_NOISE = Noise(0.0, 1.0)  # before anything was measured: every batch teaches in proportion


class _Limits(NamedTuple):
    initial: int
    most: int
    least_per_gpu: int
    most_per_gpu: int


class BatchLimits(_Limits):
    """The batch sizes that a job may use, in samples.

    ``initial`` (M0) is the whole batch that the user tuned the job for, and ``most`` the largest
    whole batch. A GPU computes from ``least_per_gpu`` to ``most_per_gpu`` at once, and may sum the
    gradients of several such before a step. Raises InputError if a limit is no whole number from 1
    to 2^53, or if no batch is within all of them.
    """

    __slots__ = ()

    def __new__(
        cls,
        initial: int,
        most: int | None = None,
        least_per_gpu: int = 1,
        most_per_gpu: int | None = None,
    ) -> BatchLimits:
        """``most`` is the initial batch and ``most_per_gpu`` the largest one if not given."""
        most = initial if most is None else most
        most_per_gpu = max(most, least_per_gpu) if most_per_gpu is None else most_per_gpu
        values = {"initial": initial, "most": most}
        values |= {"least_per_gpu": least_per_gpu, "most_per_gpu": most_per_gpu}
        for name, value in values.items():
            if type(value) is not int or value < 1:
                raise InputError(f"{name} batch: {value!r} is no whole number above 0")
            if value > MOST_SAMPLES:
                raise InputError(f"{name} batch: {value!r:.40} is too large; give at most 2^53")
        if most < initial:
            raise InputError(
                f"most batch: {most} is below the initial batch of {initial}; "
                f"give at least {initial}"
            )
        if most_per_gpu < least_per_gpu:
            raise InputError(
                f"most_per_gpu batch: {most_per_gpu} is below the least_per_gpu of "
                f"{least_per_gpu}; give at least {least_per_gpu}"
            )
        if least_per_gpu > most:
            raise InputError(
                f"least_per_gpu batch: {least_per_gpu} is above the whole batch of {most}; "
                f"give at most {most}"
            )
        return super().__new__(cls, initial, most, least_per_gpu, most_per_gpu)

    @property
    def most_gpus(self) -> int:
        """Number of GPUs on which each has its least batch when the whole batch is largest."""
        return self.most // self.least_per_gpu


class BatchChoice(NamedTuple):
    """The best batch for an allocation: ``batch`` samples per GPU, ``accumulation`` + 1 times.

    ``goodput`` is in samples of the initial batch per second; 0 with a batch of 0 where no batch
    is within the limits.
    """

    goodput: float
    batch: int
    accumulation: int


class Goodput(NamedTuple):
    """A job's model on one type of GPU. Equal models make equal choices."""

    step_time: StepTime
    noise: Noise
    limits: BatchLimits

    def throughput(self, gpus: int, nodes: int, batch: int, accumulation: int = 0) -> float:
        """Samples per second, with ``batch`` per GPU, ``accumulation`` + 1 times in each step."""
        step_s = self.step_time.step_s(gpus, nodes, batch)
        step_s += accumulation * self.step_time.compute_s(batch)
        return gpus * batch * (accumulation + 1) / step_s

    def efficiency(self, whole_batch: int) -> float:
        """Progress by a sample in a whole batch of that size, relative to the initial one."""
        return self.noise.efficiency(whole_batch, self.limits.initial)

    def goodput(self, gpus: int, nodes: int, batch: int, accumulation: int = 0) -> float:
        """Samples per second, each weighted by what it teaches."""
        whole_batch = gpus * batch * (accumulation + 1)
        return self.throughput(gpus, nodes, batch, accumulation) * self.efficiency(whole_batch)
