"""Measured step times, and the check that a model can be fitted to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rota.model.figure import rounded

if TYPE_CHECKING:
    from rota.model.measured.reports import StepPoint

LEAST_S = 1e-6  # shorter or longer times are no steps
MOST_S = 86_400.0
TWO_CLOCKS = 1.5  # times as long as the whole step, computing is measured wrongly
MOST_COUNT = 1 << 53  # of nodes, GPUs and samples: a double has all whole numbers up to there
MOST_BATCHES = 8  # batches per number of GPUs and nodes, when points are combined
NAMED = 3  # points in a warning


class Point(NamedTuple):
    """Average time of a step on so many nodes and GPUs, with ``batch`` samples on each GPU.

    ``compute_s`` is computing a gradient of that batch, ``step_s`` the whole step, of one such
    gradient and its exchange. ``compute_s`` is None where only the step was timed. All points of a
    fit are of one ``gpu_type``.
    """

    nodes: int
    gpus: int
    batch: int
    compute_s: float | None
    step_s: float
    gpu_type: str = ""

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU" + "s" * (self.gpus != 1)
        return f"{gpus} on {self.nodes} node" + "s" * (self.nodes != 1) + f", batch {self.batch}"


def usable(points: Iterable[Point]) -> tuple[list[Point], list[str]]:
    """The points that can be fitted, and the faults of the others.

    On one GPU a step is all computing; computing never takes longer than the step.
    """
    kept, dropped = [], []
    for point in points:
        wrong = _wrong(point)
        if wrong:
            dropped.append(f"{point}: {wrong}")
        elif point.compute_s is None and point.gpus > 1:
            kept.append(point)
        else:
            compute_s = point.step_s if point.compute_s is None else point.compute_s
            kept.append(point._replace(compute_s=min(compute_s, point.step_s)))
    return kept, dropped


class Pooled(NamedTuple):
    """Combined points, and the numbers of the jobs they come from."""

    points: tuple[StepPoint, ...]
    jobs: set[int]


def pooled(told: Iterable[Iterable[StepPoint]]) -> Pooled:
    """Measurements of several jobs combined: the first point of each place and batch.

    A place is a number of nodes and GPUs; of each, the first 8 batches count. Points that can't be
    fitted are passed over, so that they stand in the way of none.
    """
    kept: dict[tuple[int, int, int], StepPoint] = {}
    batches: dict[tuple[int, int], int] = {}
    jobs = set()
    for job, points in enumerate(told):
        for point in points:
            place, key = point[:2], point[:3]
            if key in kept or batches.get(place, 0) >= MOST_BATCHES:
                continue
            if is_usable(point):
                batches[place] = batches.get(place, 0) + 1
                kept[key] = point
                jobs.add(job)
    return Pooled(tuple(kept.values()), jobs)


def is_usable(point: StepPoint | Point) -> bool:
    """True if a model can be fitted to the point."""
    return not _wrong(Point(*point))


def listed(items: Sequence[str]) -> str:
    """The first few items, and the number of the others."""
    more = [f"and {len(items) - NAMED} more"] if len(items) > NAMED else []
    return "; ".join([*items[:NAMED], *more])


def _wrong(point: Point) -> str:
    """The reason for which a point can't be fitted, or ""."""
    for name, number in (("nodes", point.nodes), ("GPUs", point.gpus), ("batch", point.batch)):
        if not 1 <= number <= MOST_COUNT:
            return f"{name}: {number}"
    if point.nodes > point.gpus:
        return "fewer GPUs than nodes"
    for name, seconds in (("computing", point.compute_s), ("the step", point.step_s)):
        if seconds is not None and not LEAST_S <= seconds <= MOST_S:
            return f"{name} took {seconds} s"
    if point.compute_s is not None and point.compute_s > TWO_CLOCKS * point.step_s:
        computing, step = rounded(point.compute_s, 4), rounded(point.step_s, 4)
        return f"computing took {computing} s of a step of {step} s"
    return ""
