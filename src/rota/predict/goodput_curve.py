"""A job's goodput over its GPUs, for its user: its measurements, and predictions from them.

The model and the search for the best batch are those that policies use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rota.errors import InputError
from rota.predict.goodput import UNKNOWN_NOISE, BatchLimits, Goodput, Noise
from rota.predict.step_points import MOST_COUNT, Point, listed, pooled, usable

if TYPE_CHECKING:
    from rota.model.measured.reports import BatchRange, GradientNoise, StepPoint
    from rota.predict.throughput_fit import Fit

MEASURED, BY_KIND, PREDICTED = "measured", "by its kind", "predicted"


class Present(NamedTuple):
    """A job's present GPUs and batch: ``per_gpu`` samples, ``accumulation`` + 1 times."""

    gpus: int
    nodes: int
    per_gpu: int
    accumulation: int


class Told(NamedTuple):
    """Facts about a job: its own measurements, those of its kind, its noise and its batch limits.

    ``shapes`` are the (GPUs, nodes) that it may have; ``present`` is None if it has no GPUs or has
    not reported its batch.
    """

    own: tuple[StepPoint, ...]
    of_kind: tuple[tuple[StepPoint, ...], ...]
    noise: GradientNoise | None
    limits: BatchRange | None
    shapes: tuple[tuple[int, int], ...]
    present: Present | None = None


class Row(NamedTuple):
    """The best that one number of GPUs can do.

    ``goodput`` is in samples of the initial batch per second, 0 where no batch is within the
    limits; ``per_gpu`` samples are computed ``accumulation`` + 1 times. ``known`` tells if steps
    were measured on so many GPUs, by the job or by others of its kind, or predicted; ``error`` is
    the relative standard error of the step's time.
    """

    gpus: int
    nodes: int
    goodput: float
    per_gpu: int
    accumulation: int
    known: str
    error: float


class Standing(NamedTuple):
    """A job's present goodput, and what a sample teaches; 1 is a sample in the initial batch."""

    goodput: float
    efficiency: float


class Curve(NamedTuple):
    """A job's goodput by GPUs, rising; without rows, ``missing`` is a sentence with the reason.

    ``noise_scale`` is in samples: infinite where no gradient shows through the noise, None where it
    was not measured. ``warnings`` name impossible reports.
    """

    rows: tuple[Row, ...]
    now: Standing | None
    noise_scale: float | None
    warnings: tuple[str, ...]
    missing: str = ""


def goodput_curve(told: Told) -> Curve:
    """The curve of a job. No report of the job makes this raise."""
    from rota.predict.throughput_fit import fit

    _, dropped = usable(Point(*point) for point in told.own)
    warnings = [f"measurements left out: {listed(dropped)}"] if dropped else []
    noise = None if told.noise is None else Noise.measured(*told.noise)
    if told.noise is not None and noise is None:
        warnings.append(f"gradient noise left out: it is {told.noise.var} to {told.noise.sqr}")
    limits = _limits(told.limits)
    if not isinstance(limits, BatchLimits):
        return Curve((), None, None, tuple(warnings), limits)
    found, contradictions = fit(Point(*point) for point in pooled([told.own, *told.of_kind]).points)
    warnings += contradictions
    scale = None if noise is None else noise.scale(limits.initial)
    if found is None:
        missing = "no step that it has told of can be" if dropped else "it has timed no step"
        return Curve((), None, scale, tuple(warnings), missing)
    model = Goodput(found.step_time, noise or UNKNOWN_NOISE, limits)
    rows = _rows(told, model, found)
    return Curve(rows, _standing(model, told.present), scale, tuple(warnings))


def _limits(told: BatchRange | None) -> BatchLimits | str:
    """The batches that the job can train with, or the reason for which none are known."""
    if told is None:
        return "it has told nothing of its batches, as jobs do with their first steps"
    try:
        return BatchLimits(*told)
    except InputError as error:
        return f"the batches that it tells can't be: {error}"


def _rows(told: Told, model: Goodput, found: Fit) -> tuple[Row, ...]:
    from rota.predict.goodput_table import tables

    table = tables([model], told.shapes)
    columns = zip(*(column[0].tolist() for column in table), strict=True)
    own = {(point.gpus, point.nodes) for point in told.own}
    fitted = {(point.gpus, point.nodes) for point in found.points}
    rows, errors = [], found.error
    for shape, (goodput, batch, accumulation) in zip(told.shapes, columns, strict=True):
        known = PREDICTED if shape not in fitted else MEASURED if shape in own else BY_KIND
        [error] = errors.relative([(shape[1], shape[0], max(batch, 1))])
        rows.append(Row(*shape, goodput, batch, accumulation, known, error))
    return tuple(rows)


def _standing(model: Goodput, present: Present | None) -> Standing | None:
    if present is None or not (0 < present.per_gpu <= MOST_COUNT):
        return None
    if not 0 <= present.accumulation <= MOST_COUNT:
        return None
    whole = present.gpus * present.per_gpu * (present.accumulation + 1)
    return Standing(model.goodput(*present), model.efficiency(whole))
