"""What is known of jobs' training: a goodput model of each, from what it or its kind measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nan
from typing import TYPE_CHECKING, NamedTuple

from rota.model.view import View
from rota.predict.goodput import UNKNOWN_NOISE, BatchLimits, Choice, Goodput, Noise
from rota.predict.goodput_table import TableCache
from rota.predict.step_points import Point, listed, pooled, usable

if TYPE_CHECKING:
    from rota.model.reports import StepPoint
    from rota.policy.pollux_value import Matrix
    from rota.predict.step_time import StepTime

MOST_KINDS = 256  # of which the noise of a job that begins is remembered
LEAST_EPOCH = 0.02  # of an epoch is left of every job, whatever it has declared

Shape = tuple[int, int]  # (GPUs, nodes)
Shapes = list[Shape]
Told = tuple["StepPoint", ...]


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
    """A group's model, what each of its jobs has told, and the points that are fitted to.

    ``sound`` is whether all that was told can be; ``warnings`` are those of the fit.
    """

    told: list[Told]
    points: Told
    step_time: StepTime | None
    most_seen: int
    sound: bool
    warnings: tuple[str, ...]


class Models:
    """The models of all jobs, fitted anew when something new was measured.

    With ``shared``, jobs of one kind share what they measured. A function of the view: throwing
    the object away changes speed only.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._tables = TableCache([])
        self._fits: dict[str, _Fitted] = {}
        self._others: dict[str, set[int]] = {}  # rows that are not active, and may count
        self._active: set[int] = set()  # rows, when it was asked last
        self._seen = 0  # rows that there were then

    def know(
        self, view: View, rows: list[int], early: dict[str, list[float]], *, anew: bool = True
    ) -> list[Knowledge]:
        """What is known of each of these, which are all active rows.

        ``early`` has the noise of each group in its first epoch, as it was told last: that of a job
        which begins. It is brought up to date. ``anew``: the jobs may be others than those of which
        it was asked before.
        """
        groups = [self._group(view, row) for row in rows]
        members = self._members(view, rows, groups, anew)
        for group in self._fits.keys() - members.keys():
            del self._fits[group]
        fits = {group: self._fit(view, group, within) for group, within in members.items()}
        if self._shared:
            _learn_early(view, zip(rows, groups, strict=True), early)
        knowledge = []
        for row, group in zip(rows, groups, strict=True):
            fitted, limits, noise = fits[group], _limits(view, row), _noise(view, row)
            model, warnings = None, fitted.warnings
            if fitted.step_time is not None and isinstance(limits, BatchLimits):
                begun = Noise(*early[group]) if group in early else UNKNOWN_NOISE
                model = Goodput(fitted.step_time, noise or begun, limits)
            if noise is None or model is None or not fitted.sound:
                warnings = (*_impossible(view, row, limits, noise), *warnings)
            most_seen = 0 if model is None else fitted.most_seen
            knowledge.append(Knowledge(model, most_seen, _left_steps(view, row), warnings))
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

    def _members(
        self, view: View, rows: list[int], groups: list[str], anew: bool
    ) -> dict[str, list[int]]:
        """The rows of each group that may have told something: active ones, and some others."""
        members: dict[str, list[int]] = {group: [] for group in groups}
        for row, group in zip(rows, groups, strict=True):
            members[group].append(row)
        if not self._shared:
            return members
        if anew:
            self._others.clear()
            self._active, self._seen = set(), 0
        active = set(rows)
        for row in (self._active | set(range(self._seen, len(view.submit_s)))) - active:
            self._others.setdefault(self._group(view, row), set()).add(row)
        self._active, self._seen = active, len(view.submit_s)
        for group, within in members.items():
            within += self._others.get(group, set()) - active
            within.sort()
        return members

    def _fit(self, view: View, group: str, rows: list[int]) -> _Fitted:
        told = [view.measured(row) or () for row in rows]
        fitted = self._fits.get(group)
        if fitted is None or fitted.told != told:
            points, counted, sound = pooled(told)
            if fitted is None or fitted.points != points:
                most_seen = max((point.gpus for point in points), default=0)
                step_time, warnings = _step_time(points)
                fitted = _Fitted(told, points, step_time, most_seen, sound, warnings)
            fitted = self._fits[group] = fitted._replace(told=told, sound=sound)
            if group in self._others:  # what does not count now never will: those before only add
                self._others[group] &= {rows[number] for number in counted}
        return fitted


def _step_time(points: Told) -> tuple[StepTime | None, tuple[str, ...]]:
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
