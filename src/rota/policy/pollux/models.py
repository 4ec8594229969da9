"""Goodput models of jobs, from their own measurements or those of their kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from math import inf, nan
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from rota.model.view import View
from rota.policy.pollux.planned import planned_steps
from rota.policy.pollux.type_speeds import Told, TypeSpeeds
from rota.predict.goodput import UNKNOWN_NOISE, BatchLimits, Goodput, Noise
from rota.predict.goodput_table import TableCache
from rota.predict.step_points import Point, Pooled, listed, pooled, usable

if TYPE_CHECKING:
    from rota.policy.pollux.value import Matrix
    from rota.predict.step_time import StepTime

MOST_KINDS = 256  # kinds whose early noise is remembered
LEAST_EPOCH = 0.02  # least part of an epoch that counts as left, whatever a job has declared

Shape = tuple[int, int]  # (GPUs, nodes)
Shapes = list[Shape]


class Knowledge(NamedTuple):
    """Knowledge of one job.

    ``model`` is None and ``most_seen`` is 0 before anything was measured. ``left_steps`` is what
    its user declared, less its progress, in steps of the initial batch. ``warnings`` tell of
    impossible measurements by the job or its kind, which are left out. Of a job without a model
    whose program plans its layers, ``steps_s`` has the seconds of a step by GPUs of one node.
    """

    model: Goodput | None
    most_seen: int
    left_steps: float
    warnings: tuple[str, ...] = ()
    steps_s: Mapping[int, float] = MappingProxyType({})


class _Fitted(NamedTuple):
    """A group's models, its jobs' reports, and the points that are fitted.

    ``points``, ``step_times`` and ``warnings``, which are those of the fit, have an entry for each
    type.
    """

    told: list[Told]
    points: list[Told]
    step_times: list[StepTime | None]
    most_seen: int
    warnings: list[tuple[str, ...]]


class Models:
    """The models of all jobs, fitted again when something new was measured.

    With ``shared``, jobs of one kind share their measurements. A function of the view: throwing the
    object away changes speed only.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._tables: dict[int, TableCache] = {}  # by pool
        self._fits: dict[str, _Fitted] = {}
        self._checked: dict[int, tuple[Told, list[str]]] = {}  # by row: told, and wrong of it
        self._speeds = TypeSpeeds()
        self._types: list[str] | None = None  # of the last call
        self._others: dict[str, set[int]] = {}  # rows that are not active, and may count
        self._active: set[int] = set()  # rows, when it was asked last
        self._seen = 0  # rows that there were then

    def know(
        self,
        view: View,
        rows: list[int],
        early: dict[str, list[float]],
        types: list[str] | None = None,
        *,
        anew: bool = True,
    ) -> list[list[Knowledge]]:
        """Knowledge of each of ``rows``, which are all active rows, by GPU type.

        Without ``types`` there is one type, on which everything was measured. ``early`` has each
        group's latest noise from a first epoch, which a starting job is assumed to have; it is
        updated. ``anew`` is True if ``rows`` may differ from those of the last call.
        """
        if types != self._types:
            self._types, anew = types, True
            self._fits.clear()
        groups = [self._group(view, row) for row in rows]
        members = self._members(view, rows, groups, anew)
        self._fit(view, members)
        if self._shared:
            _learn_early(view, zip(rows, groups, strict=True), early)
        on_types: list[str | None] = [None] if types is None else [*types]
        known: list[list[Knowledge]] = [[] for _ in on_types]
        for row, group in zip(rows, groups, strict=True):
            fitted, limits, noise = self._fits[group], _limits(view, row), _noise(view, row)
            begun = Noise(*early[group]) if group in early else UNKNOWN_NOISE
            left_steps, impossible = _left_steps(view, row), None
            wrong = self._checked[row][1]
            parts = zip(on_types, known, fitted.step_times, fitted.warnings, strict=True)
            for gpu_type, on_type, step_time, warnings in parts:
                model = None
                if step_time is not None and isinstance(limits, BatchLimits):
                    model = Goodput(step_time, noise or begun, limits)
                if noise is None or model is None or wrong:
                    if impossible is None:
                        impossible = _impossible(view, row, limits, noise, wrong)
                    warnings = (*impossible, *warnings)
                most_seen = 0 if model is None else fitted.most_seen
                steps_s = planned_steps(view, row, gpu_type) if model is None else {}
                on_type.append(Knowledge(model, most_seen, left_steps, warnings, steps_s))
        return known

    def goodputs(self, models: list[Goodput], shapes: Shapes, pool: int = 0) -> Matrix:
        """The best goodput of each model at each of the shapes, which are those of a pool."""
        if self.tables(pool).shapes != tuple(shapes):
            self._tables[pool] = TableCache(shapes)
        return self._tables[pool].of(models).goodput

    def tables(self, pool: int = 0) -> TableCache:
        """The tables computed last for the pool."""
        return self._tables.setdefault(pool, TableCache([]))

    def _group(self, view: View, row: int) -> str:
        kind = view.signature(row) if self._shared else ""
        return kind or f"job {row}"

    def _members(
        self, view: View, rows: list[int], groups: list[str], anew: bool
    ) -> dict[str, list[int]]:
        """The rows of each group that may have reported something: active ones, and some others."""
        members: dict[str, list[int]] = {group: [] for group in groups}
        for row, group in zip(rows, groups, strict=True):
            members[group].append(row)
        active = set(rows)
        if not self._shared:
            self._active = active
            return members
        if anew:
            self._others.clear()
            self._active, self._seen = set(), 0
        for row in (self._active | set(range(self._seen, len(view.submit_s)))) - active:
            self._others.setdefault(self._group(view, row), set()).add(row)
        self._active, self._seen = active, len(view.submit_s)
        for group, within in members.items():
            within += self._others.get(group, set()) - active
            within.sort()
        return members

    def _fit(self, view: View, members: dict[str, list[int]]) -> None:
        """Fit new reports; with several types all groups, because each informs the others."""
        gone = self._fits.keys() - members.keys()
        for group in gone:
            del self._fits[group]
        told = {g: [view.measured(row) or () for row in rows] for g, rows in members.items()}
        self._check(members, told)
        kept = {group: each.told for group, each in self._fits.items()}
        changed = [group for group, each in told.items() if kept.get(group) != each]
        if self._types is None:
            for group in changed:
                found = pooled(told[group])
                self._keep(group, told[group], [found])
                if group in self._others:  # such points never count: earlier ones only add up
                    self._others[group] &= {members[group][number] for number in found.jobs}
        elif changed or gone:
            self._speeds.learn({g: chain.from_iterable(each) for g, each in told.items()})
            for group, each in told.items():
                on = [self._speeds.on(group, gpu_type) for gpu_type in self._types]
                self._keep(group, each, [pooled([points]) for points in on])

    def _keep(self, group: str, told: list[Told], found: list[Pooled]) -> None:
        """Note a group's reports, and fit its points by type if they have changed."""
        points = [each.points for each in found]
        fitted = self._fits.get(group)
        if fitted is None or fitted.points != points:
            fits = [_step_time(each) for each in points]
            most_seen = max((point.gpus for each in points for point in each), default=0)
            step_times, warnings = [list(each) for each in zip(*fits, strict=True)]
            fitted = _Fitted(told, points, step_times, most_seen, warnings)
        self._fits[group] = fitted._replace(told=told)

    def _check(self, members: dict[str, list[int]], told: dict[str, list[Told]]) -> None:
        """Note the impossible reports of each active job."""
        before, self._checked = self._checked, {}
        for group, rows in members.items():
            for row, points in zip(rows, told[group], strict=True):
                if row in self._active:
                    known = before.get(row)
                    if known is None or known[0] != points:
                        known = points, usable(Point(*point) for point in points)[1]
                    self._checked[row] = known


def _step_time(points: Told) -> tuple[StepTime | None, tuple[str, ...]]:
    from rota.predict.throughput_fit import fit

    found, warnings = fit(Point(*point) for point in points)
    return None if found is None else found.step_time, warnings


def _limits(view: View, row: int) -> BatchLimits | str | None:
    """A job's batch limits; None if it reports none, and an error text if they are impossible."""
    from rota.errors import InputError

    told = view.batch_range(row)
    try:
        return None if told is None else BatchLimits(*told)
    except InputError as error:
        return str(error)


def _impossible(
    view: View,
    row: int,
    limits: BatchLimits | str | None,
    noise: Noise | None,
    wrong: list[str],
) -> list[str]:
    """Warnings of impossible values that the job has reported; ``wrong`` are measurements."""
    found = [limits] if isinstance(limits, str) else []
    if noise is None and view.noise(row) is not None:
        found.append("gradient noise left out: it is no number that can be")
    return [*found, f"measurements left out: {listed(wrong)}"] if wrong else found


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
