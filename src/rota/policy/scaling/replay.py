"""Replays a scaler on a known scaling curve: the sizes it takes, and the job's cost.

No clock and no process: one job, step by step, in computed time. For tests, benchmarks and
experiments.
"""

from collections.abc import Callable
from math import exp
from random import Random
from typing import NamedTuple

from rota.errors import InputError
from rota.policy.scaling.observations import Observations, Throughput
from rota.policy.scaling.scaler import Choice, Observed, Scaler


class Resizing(NamedTuple):
    """Cost of a change of size.

    During ``warm_up_s`` the job continues at its old size while newcomers, which are paid for,
    start; then nothing trains for ``pause_s``, at the larger of the two sizes. A restart from a
    checkpoint is all pause.
    """

    pause_s: float = 0.0
    warm_up_s: float = 0.0


FREE = Resizing()


class Replay(NamedTuple):
    """Result of a replay. ``sizes`` are in order of time; times in seconds and GPU-seconds."""

    jct_s: float
    gpu_s: float
    sizes: tuple[int, ...]

    @property
    def resizes(self) -> int:
        """Number of changes of size."""
        return len(self.sizes) - 1


def replay(
    rate: Callable[[int], float],
    scaler: Scaler | None,
    *,
    start: int,
    steps: int,
    batch: float = 1.0,
    resizing: Resizing = FREE,
    noise: float = 0.0,
    seed: int = 0,
    every: int = 10,
) -> Replay:
    """Run a job of so many steps of ``batch`` samples; ``rate`` is samples per second by size.

    ``scaler`` is asked ``every`` so many counted steps; without one the size stays ``start``.
    Step times vary by a log-normal factor whose logarithm has standard deviation ``noise``.
    Raises InputError if steps, batch or noise are out of range.
    """
    if steps < 1 or not batch > 0 or noise < 0 or every < 1:
        raise InputError(
            f"steps {steps}, batch {batch}, noise {noise}, every {every}: give at least 1, above "
            "0, at least 0, at least 1"
        )
    job = _Job(rate, batch, resizing, noise, Random(seed), start, steps)
    choice = Choice(start, {}, "")
    while job.left:
        job.run(every)
        if scaler is None or not job.left or job.observations.steps % every:
            continue
        observed = Observed(job.observations, job.elapsed_s, job.left * batch)
        choice = scaler.choose(observed, choice.memory)
        if choice.size != job.size:
            job.resize(choice.size)
    return Replay(job.elapsed_s, job.gpu_s, tuple(job.sizes))


class _Job:
    """The state of the replayed job: what a process and its accounting would keep."""

    def __init__(
        self,
        rate: Callable[[int], float],
        batch: float,
        resizing: Resizing,
        noise: float,
        random: Random,
        size: int,
        left: int,
    ) -> None:
        self.rate, self.batch, self.resizing = rate, batch, resizing
        self.noise, self.random = noise, random
        self.size, self.left = size, left
        self.sizes = [size]
        self.elapsed_s = self.gpu_s = 0.0
        self.observations = Observations()

    def run(self, counted: int) -> None:
        """Train until so many more steps have been counted, or none is left."""
        seen = self.observations
        until = counted + (seen.steps if seen.workers == self.size else 0)
        while self.left and (seen.workers != self.size or seen.steps < until):
            if self.noise or seen.workers != self.size or not seen.steps:
                self._step(self.size)
            else:
                self._equal_steps(min(self.left, until - seen.steps))

    def resize(self, size: int) -> None:
        """Continue at another size."""
        larger, begun_s = max(size, self.size), self.elapsed_s
        while self.left and self.elapsed_s - begun_s < self.resizing.warm_up_s and size > self.size:
            self._step(larger)
        self.elapsed_s += self.resizing.pause_s
        self.gpu_s += self.resizing.pause_s * larger
        self.size = size
        self.sizes.append(size)
        self.observations.restart(size)

    def _equal_steps(self, number: int) -> None:
        rate = self.rate(self.size)
        self.observations.add(self.size, Throughput(number, rate, 0.0))
        self._pay(number, number * self.batch / rate, self.size)

    def _step(self, paid: int) -> None:
        seconds = self.batch / self.rate(self.size)
        if self.noise:
            seconds *= exp(self.random.gauss(0.0, self.noise))
        self.observations.step(self.size, self.batch, seconds)
        self._pay(1, seconds, paid)

    def _pay(self, steps: int, seconds: float, paid: int) -> None:
        self.left -= steps
        self.elapsed_s += seconds
        self.gpu_s += seconds * paid
