"""What is known of jobs' training: a goodput model of each, from what it or its kind measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from rota.model.view import View
from rota.predict.goodput import UNKNOWN_NOISE, BatchLimits, Choice, Goodput, Noise
from rota.predict.goodput_table import TableCache
from rota.predict.step_points import Point

if TYPE_CHECKING:
    from rota.model.reports import StepPoint
    from rota.policy.pollux_value import Matrix
    from rota.predict.step_time import StepTime

MOST_BATCHES = 8  # of one number of GPUs and nodes are fitted to
MOST_KINDS = 256  # of which the noise of a job that begins is remembered
LEAST_EPOCH = 0.02  # of an epoch is left of every job, whatever it has declared

Shape = tuple[int, int]  # (GPUs, nodes)
Shapes = list[Shape]
Points = dict[tuple[int, int, int], "StepPoint"]


class Knowledge(NamedTuple):
    """Of one job. ``model`` is None before anything was measured; ``most_seen`` is 0 then.

    ``left_steps`` is what its user has declared, less its progress, in steps of the initial batch.
    """

    model: Goodput | None
    most_seen: int
    left_steps: float


class Models:
    """The models of all jobs, fitted anew when something new was measured.

    With ``shared``, jobs of one kind share what they measured. A function of the view: throwing
    the object away changes speed only.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._tables = TableCache([])
        self._fits: dict[str, tuple[tuple[StepPoint, ...], StepTime | None]] = {}

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
        times = {group: self._fit(view, group, within) for group, within in members.items()}
        if self._shared:
            _learn_early(view, zip(rows, groups, strict=True), early)
        knowledge = []
        for row, group in zip(rows, groups, strict=True):
            step_time, most_seen = times[group]
            limits = _limits(view, row)
            model = None
            if step_time is not None and limits is not None:
                begun = Noise(*early[group]) if group in early else UNKNOWN_NOISE
                model = Goodput(step_time, _noise(view, row) or begun, limits)
            knowledge.append(Knowledge(model, most_seen, _left_steps(view, row)))
        return knowledge

    def goodputs(self, models: list[Goodput], shapes: Shapes) -> Matrix:
        """The best goodput of each at each of the shapes."""
        if self._tables.shapes != tuple(shapes):
            self._tables = TableCache(shapes)
        return self._tables.of(models).goodput

    def choices(self, asked: list[tuple[Goodput, Shape]]) -> list[Choice]:
        """The best batch of each of these models at a shape of its own."""
        return self._tables.choices(asked)

    def _group(self, view: View, row: int) -> str:
        kind = view.kind(row) if self._shared else ""
        return kind or f"job {row}"

    def _fit(self, view: View, group: str, rows: list[int]) -> tuple[StepTime | None, int]:
        kept: Points = {}
        batches: dict[tuple[int, int], int] = {}
        for row in rows:
            for point in view.measured(row) or ():
                place = point.nodes, point.gpus
                if (*place, point.batch) in kept or batches.get(place, 0) >= MOST_BATCHES:
                    continue
                batches[place] = batches.get(place, 0) + 1
                kept[*place, point.batch] = point
        points = tuple(kept.values())
        before = self._fits.get(group)
        if before is None or before[0] != points:
            before = self._fits[group] = points, _step_time(points)
        return before[1], max((gpus for _, gpus in batches), default=0)


def _step_time(points: tuple[StepPoint, ...]) -> StepTime | None:
    from rota.predict.throughput_fit import fit

    found, _ = fit(Point(*point) for point in points)
    return None if found is None else found.step_time


def _limits(view: View, row: int) -> BatchLimits | None:
    """None of a job that does not tell its batches, or tells of some that can't be."""
    from rota.errors import InputError

    told = view.batch_range(row)
    try:
        return None if told is None else BatchLimits(*told)
    except InputError:
        return None


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
    return max(learned.total - learned.done, LEAST_EPOCH * learned.epoch)
