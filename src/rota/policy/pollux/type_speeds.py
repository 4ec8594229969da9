"""Speeds of kinds of jobs on GPU types, and step times predicted for a type not yet measured.

As Sia does (Jayaram Subramanya et al., SOSP 2023, section 3.2): a job that was measured on one type
is taken to be as many times as fast on another, whatever its GPUs, as computing on one GPU is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, fsum, log
from typing import TYPE_CHECKING

from rota.predict.step_points import LEAST_S, MOST_S, Point, is_usable

if TYPE_CHECKING:
    from rota.model.measured.reports import StepPoint
    from rota.predict.step_time import StepTime

Told = tuple["StepPoint", ...]


class TypeSpeeds:
    """Measurements of groups of jobs on each type, made comparable.

    For a type on which a group has not run, the ratio of the group that gains most by the type is
    assumed, so that every group comes to try it; and 1 before any group has run on both.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Told]] = {}  # group -> type -> points
        self._fits: dict[tuple[str, str], tuple[Told, StepTime | None]] = {}

    def learn(self, told: Mapping[str, Iterable[StepPoint]]) -> None:
        """Note each group's reports; fits to unchanged points are kept.

        Of each place and batch on a type, the first point that can be fitted counts.
        """
        self._told = {}
        for group, points in told.items():
            by_type: dict[str, dict[tuple[int, int, int], StepPoint]] = {}
            for point in points:
                places = by_type.setdefault(point.gpu_type, {})
                if point[:3] not in places and is_usable(point):
                    places[point[:3]] = point
            self._told[group] = {kind: tuple(each.values()) for kind, each in by_type.items()}
        there = {(group, kind) for group, kinds in self._told.items() for kind in kinds}
        self._fits = {key: kept for key, kept in self._fits.items() if key in there}

    def on(self, group: str, kind: str) -> Told:
        """Step times of the group on the type: measured there, else converted from other types."""
        by_type = self._told.get(group, {})
        points = list(by_type.get(kind, ()))
        places = {(point.nodes, point.gpus) for point in points}
        for other, told in by_type.items():
            if other != kind:
                times = self._times_as_long(group, kind, other)
                points += [
                    _times(point, times, kind)
                    for point in told
                    if (point.nodes, point.gpus) not in places
                ]
        return tuple(points)

    def _times_as_long(self, group: str, kind: str, other: str) -> float:
        """The group's computing time on ``kind`` over its computing time on ``other``."""
        known = self._measured(group, kind, other)
        if known is not None:
            return known
        others = (self._measured(each, kind, other) for each in self._told)
        return min((each for each in others if each is not None), default=1.0)

    def _measured(self, group: str, kind: str, other: str) -> float | None:
        """The same, for a group measured on both: the geometric mean over its measurements."""
        by_type = self._told[group]
        here = by_type.get(kind, ())
        there = self._step_time(group, other) if here else None
        if there is None:
            return None
        logs = [log(min(p.compute_s, p.step_s) / there.compute_s(p.batch)) for p in here]
        return exp(fsum(logs) / len(logs))

    def _step_time(self, group: str, kind: str) -> StepTime | None:
        """The model of the group's measurements on that type alone; None if it has none."""
        points = self._told[group].get(kind, ())
        before = self._fits.get((group, kind))
        if before is None or before[0] != points:
            from rota.predict.throughput_fit import fit

            found, _ = fit(Point(*point) for point in points)
            step_time = None if found is None else found.step_time
            before = self._fits[group, kind] = points, step_time
        return before[1]


def _times(point: StepPoint, times: float, kind: str) -> StepPoint:
    """The point converted to the type, on which everything takes ``times`` as long.

    The result can be fitted, whatever jobs reported of both types.
    """
    compute_s, step_s = (
        min(max(times * seconds, LEAST_S), MOST_S) for seconds in (point.compute_s, point.step_s)
    )
    return point._replace(compute_s=compute_s, step_s=step_s, gpu_type=kind)
