"""What is known of jobs' training: a goodput model of each, from what it or its kind measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nan
from typing import TYPE_CHECKING, NamedTuple

from rota.model.view import View
from rota.predict.goodput import UNKNOWN_NOISE, BatchLimits, Goodput, Noise
from rota.predict.goodput_table import TableCache
from rota.predict.step_points import Point, is_usable, listed, pooled, usable

if TYPE_CHECKING:
    from rota.model.reports import StepPoint
    from rota.policy.pollux_value import Matrix
    from rota.predict.step_time import StepTime

MOST_KINDS = 256  # of which the noise of a job that begins is remembered
LEAST_EPOCH = 0.02  # of an epoch is left of every job, whatever it has declared

Shapes = list[tuple[int, int]]


class Knowledge(NamedTuple):
    """Of one job. ``model`` is None before anything was measured; ``most_seen`` is 0 then.

    ``left_steps`` is what its user has declared, less its progress, in steps of the initial batch.
    ``warnings`` say what it or its kind has told that can't be, and is not reckoned with.
    """

    model: Goodput | None
    most_seen: int
    left_steps: float
    warnings: tuple[str, ...] = ()


class _Fitted(NamedTuple):
    """What a group's jobs have measured, and what was made of it."""

    points: tuple[StepPoint, ...]
    most_seen: int  # GPUs
    step_time: StepTime | None
    warnings: tuple[str, ...]


class Models:
    """The models of all jobs, fitted anew when something new was measured.

    With ``shared``, jobs of one kind share what they measured. A function of the view: throwing
    the object away changes speed only.
    """

    def __init__(self, shapes: Shapes, *, shared: bool) -> None:
        self.shapes = shapes
        self._shared = shared
        self._tables = TableCache(self.shapes)
        self._fits: dict[str, _Fitted] = {}
        self._unsound: set[str] = set()  # groups in which something was measured that can't be

    def know(self, view: View, rows: list[int], early: dict[str, list[float]]) -> list[Knowledge]:
        """What is known of each of these.

        ``early`` has the noise of each group in its first epoch, as it was told last: that of a job
        which begins. It is brought up to date.
        """
        groups = [self._group(view, row) for row in rows]
        members: dict[str, list[int]] = {group: [] for group in groups}
        for row in range(len(view.submit_s)) if self._shared else rows:
            found = members.get(self._group(view, row))
            if found is not None:
                found.append(row)
        for group in self._fits.keys() - members.keys():
            del self._fits[group]
            self._unsound.discard(group)
        fits = {group: self._fit(view, group, within) for group, within in members.items()}
        if self._shared:
            _learn_early(view, zip(rows, groups, strict=True), early)
        knowledge = []
        for row, group in zip(rows, groups, strict=True):
            fitted, limits, noise = fits[group], _limits(view, row), _noise(view, row)
            model = None
            if fitted.step_time is not None and isinstance(limits, BatchLimits):
                begun = Noise(*early[group]) if group in early else UNKNOWN_NOISE
                model = Goodput(fitted.step_time, noise or begun, limits)
            most_seen = 0 if model is None else fitted.most_seen
            warnings = fitted.warnings
            if noise is None or not isinstance(limits, BatchLimits) or group in self._unsound:
                warnings = (*_impossible(view, row, limits, noise), *warnings)
            knowledge.append(Knowledge(model, most_seen, _left_steps(view, row), warnings))
        return knowledge

    def goodputs(self, models: list[Goodput]) -> Matrix:
        """The best goodput of each at each of the shapes."""
        return self._tables.of(models).goodput

    def _group(self, view: View, row: int) -> str:
        kind = view.kind(row) if self._shared else ""
        return kind or f"job {row}"

    def _fit(self, view: View, group: str, rows: list[int]) -> _Fitted:
        told = [points for row in rows if (points := view.measured(row))]
        points = pooled(told, checked=group in self._unsound)
        fitted = self._fits.get(group)
        if fitted is None or fitted.points != points:
            if not all(map(is_usable, points)):
                self._unsound.add(group)
                points = pooled(told)
            most_seen = max((point.gpus for point in points), default=0)
            fitted = self._fits[group] = _Fitted(points, most_seen, *_step_time(points))
        return fitted


def _step_time(points: tuple[StepPoint, ...]) -> tuple[StepTime | None, tuple[str, ...]]:
    from rota.predict.throughput_fit import fit

    found, warnings = fit(Point(*point) for point in points)
    return None if found is None else found.step_time, warnings


def _limits(view: View, row: int) -> BatchLimits | str | None:
    """None of a job that does not tell its batches; why they can't be of one that tells such."""
    from rota.errors import InputError

    told = view.batch_range(row)
    try:
        return None if told is None else BatchLimits(*told)
    except InputError as error:
        return str(error)


def _impossible(
    view: View, row: int, limits: BatchLimits | str | None, noise: Noise | None
) -> list[str]:
    """What the job has told of itself that can't be."""
    found = [limits] if isinstance(limits, str) else []
    if noise is None and view.noise(row) is not None:
        found.append("gradient noise left out: it is no number that can be")
    _, dropped = usable(Point(*point) for point in view.measured(row) or ())
    return [*found, f"measurements left out: {listed(dropped)}"] if dropped else found


def _noise(view: View, row: int) -> Noise | None:
    told = view.noise(row)
    return None if told is None else Noise.measured(*told)


def _learn_early(
    view: View, members: Iterable[tuple[int, str]], early: dict[str, list[float]]
) -> None:
    """Note the noise of jobs in their first epoch by group, and forget the oldest groups."""
    for row, group in members:
        noise, learned = _noise(view, row), view.learned(row)
        if noise is not None and learned is not None and learned.done < learned.epoch:
            early.pop(group, None)
            early[group] = list(noise)
    while len(early) > MOST_KINDS:
        del early[next(iter(early))]


def _left_steps(view: View, row: int) -> float:
    learned = view.learned(row)
    if learned is None or learned.total is None:
        return nan
    left = max(learned.total - learned.done, LEAST_EPOCH * learned.epoch)
    return left if 0 <= left < inf else nan
