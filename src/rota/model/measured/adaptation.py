"""Live jobs' reports of their training, for policies that choose GPUs and batches.

It is a fold over the reports in the event log, and answers as a simulation does whose jobs play
measured profiles. What makes no sense is left out: a program may say what it likes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.errors import InputError
from rota.model.events import Event, WorkerReported
from rota.model.measured.average import Average
from rota.model.measured.job_signature import Recent
from rota.model.measured.reports import BatchRange, GradientNoise, Learned, StepPoint

if TYPE_CHECKING:
    from rota.model.measured.rows import Rows

MOST_JOBS = 1000  # jobs that are kept; those with the latest reports stay
MOST_POINTS = 64  # of one job
MOST = 1e300
LONGEST_STEP_S, SHORTEST_STEP_S = 86_400.0, 1e-6

Place = tuple[int, int, int, str]  # nodes, GPUs, samples on each, type of these GPUs


class Told(NamedTuple):
    """One report. ``point`` is the mean of ``steps`` steps; None if none was measured.

    ``wait_s`` is the part of a step in which it waited for data.
    """

    batches: BatchRange
    noise: GradientNoise | None
    learned: Learned | None
    point: StepPoint | None
    steps: int
    wait_s: float

    def unstarved(self) -> StepPoint | None:
        """The point as it is where data are always there."""
        point = self.point
        if point is None:
            return None
        return point._replace(step_s=max(point.compute_s, point.step_s - self.wait_s))


def read(progress: Mapping[str, Any]) -> Told | None:
    """The part of a report about batches that can be chosen; None if it has none.

    Raises InputError for an impossible figure, with its name and value.
    """
    told = progress.get("adaptation")
    if told is None:
        return None
    if not isinstance(told, Mapping):
        raise InputError(f"adaptation: {told!r:.80} is no mapping")
    least_per_gpu = 1 if told.get("least_per_gpu") is None else _count(told, "least_per_gpu")
    batches = BatchRange(
        _count(told, "initial"), _count(told, "most"), least_per_gpu, _count(told, "most_per_gpu")
    )
    if batches.most < batches.initial:
        raise InputError(
            f"adaptation.most: {batches.most} is below the initial batch of {batches.initial}"
        )
    sqr, var = _number(told, "sqr"), _number(told, "var")
    noise = None if sqr is None or var is None else GradientNoise(sqr, var)
    steps = _number(told, "steps") or 0
    point = _point(told) if steps >= 1 else None
    learned = _learned(progress, told, batches.initial)
    return Told(batches, noise, learned, point, int(steps), _number(told, "wait_s") or 0.0)


def _point(told: Mapping[str, Any]) -> StepPoint:
    """A step in the throughput model's form: with a single gradient, whatever was accumulated."""
    gpus, batch = _count(told, "gpus"), _count(told, "per_gpu")
    gradient_s, step_s = _number(told, "gradient_s"), _number(told, "step_s")
    for name, seconds in (("gradient_s", gradient_s), ("step_s", step_s)):
        if seconds is None or not SHORTEST_STEP_S <= seconds <= LONGEST_STEP_S:
            raise InputError(f"adaptation.{name}: {seconds!r} s is no time for a step")
    assert gradient_s is not None
    assert step_s is not None
    if gradient_s > step_s:
        raise InputError(
            f"adaptation.gradient_s: {gradient_s!r} s is more than the whole step's {step_s!r} s"
        )
    more_s = (_number(told, "accumulation") or 0) * gradient_s
    return StepPoint(1, gpus, batch, gradient_s, max(step_s - more_s, gradient_s))


def _learned(progress: Mapping[str, Any], told: Mapping[str, Any], initial: int) -> Learned | None:
    """Statistical progress; the rest is counted in the samples that the program will take."""
    done, epoch_samples = _number(told, "scaled_steps"), _number(told, "epoch_samples")
    if done is None or not epoch_samples:
        return None
    left = None
    total, total_samples = _number(progress, "total"), _number(progress, "total_samples")
    if total_samples is not None:
        left = total_samples - (_number(progress, "samples") or 0)
    elif total is not None:
        left = (total - (_number(progress, "step") or 0)) * (_number(told, "size") or initial)
    whole = None if left is None else done + max(0.0, left) / initial
    return Learned(done, epoch_samples / initial, whole)


def _number(told: Mapping[str, Any], name: str) -> float | None:
    value = told.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < MOST:  # neither NaN nor what no float holds
        raise InputError(f"adaptation.{name}: {value!r:.80} is no number from 0")
    return float(value)


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    if type(value) is not int or value < 1:  # True and False are none
        raise InputError(f"adaptation.{name}: {value!r:.80} is no whole number above 0")
    return value


@dataclass(slots=True)
class _Job:
    """One job's reports so far."""

    at_s: float = -1.0  # time of the latest report
    batches: BatchRange | None = None
    noise: GradientNoise | None = None
    learned: Learned | None = None
    # By place, of a gradient and of a step.
    means: dict[Place, tuple[Average, Average]] = field(default_factory=dict)
    points: tuple[StepPoint, ...] = ()

    def count(self, point: StepPoint, steps: int) -> None:
        """Add one more mean of a place; beyond the limit of places, new ones are ignored."""
        place = point.nodes, point.gpus, point.batch, point.gpu_type
        if place not in self.means and len(self.means) == MOST_POINTS:
            return
        means = self.means.setdefault(place, (Average(), Average()))
        for mean, seconds in zip(means, (point.compute_s, point.step_s), strict=True):
            mean.add(seconds * steps, steps, point.step_s * steps)
        self.points = tuple(
            StepPoint(nodes, gpus, batch, gradient.mean or 0.0, step.mean or 0.0, gpu_type)
            for (nodes, gpus, batch, gpu_type), (gradient, step) in self.means.items()
        )


@dataclass
class Adaptations:
    """Reports of jobs, by row: see :class:`rota.model.measured.reports.Reports`."""

    _jobs: Recent[int, _Job] = field(default_factory=lambda: Recent(MOST_JOBS))

    def note(self, rows: Rows, e: Event) -> None:
        """Record a job's report; other events are ignored.

        A report that is repeated, with news of something else, counts once. Steps on shared GPUs
        tell nothing of the job alone, nor do those on more than it has. Where CPU cores are shared
        out, steps count without their waits for data: a job that has few cores is not on slow GPUs.
        """
        if not isinstance(e, WorkerReported) or e.progress.get("adaptation") is None:
            return
        try:
            told, at_s = read(e.progress), _number(e.progress, "at_s")
        except InputError:
            return
        job = self._jobs.get(e.row) or _Job()
        if told is None or at_s is None or at_s <= job.at_s:
            return
        job.at_s, job.batches = at_s, told.batches
        job.noise, job.learned = told.noise or job.noise, told.learned or job.learned
        held = rows.held[e.row]
        point = told.unstarved() if e.row in rows.held_cpus else told.point
        if point is not None and held is not None and not held.shared:
            gpu_type = rows.nodes[held.parts[0][0]].gpu_type
            if point.gpus <= held.num_gpus:
                job.count(point._replace(gpu_type=gpu_type), told.steps)
        self._jobs[e.row] = job

    def measured(self, row: int) -> tuple[StepPoint, ...] | None:
        """One point for each (nodes, GPUs, samples on a GPU, GPU type), the first time first."""
        job = self._jobs.get(row)
        return None if job is None else job.points

    def noise(self, row: int, now_s: float) -> GradientNoise | None:
        """The job's latest report."""
        job = self._jobs.get(row)
        return None if job is None else job.noise

    def batch_range(self, row: int) -> BatchRange | None:
        """The limits of the program and of the job file."""
        job = self._jobs.get(row)
        return None if job is None else job.batches

    def learned(self, row: int, now_s: float) -> Learned | None:
        """The job's latest report."""
        job = self._jobs.get(row)
        return None if job is None else job.learned
