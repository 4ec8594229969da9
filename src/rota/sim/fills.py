"""Background jobs in a simulation: how fast they are beside foreground jobs, and what that costs.

The truth is a :class:`GapModel`'s; a gang is as fast as on the GPU of which it gets least. The
stage that places background jobs sees measurements of it alone, with noise and after the time of a
probe, as a live cluster's agents tell them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from random import Random
from typing import NamedTuple, Protocol

from rota.model.allocation import Allocation, indices
from rota.model.events import FillMeasured
from rota.model.job import JobSpec
from rota.model.state.state import ClusterState
from rota.sim.engine import FILL, Engine

LEAST_SPEED = 1e-3  # of a background job that is held back all the time, for its end to be finite
IDLE = 0.3  # part of a GPU that a foreground job leaves if its use is not known
ERRORS, PAIRS = 1.96, 32  # standard errors of an interval of 95 %; as many pairs as are measured
COST = 0.1  # of a foreground job's step time, for the whole of a GPU that a background job harvests


class Beside(NamedTuple):
    """The part of its own speed alone that a background job has, and what it costs others.

    Steps of the foreground jobs there take ``slowdown`` times as long as without it.
    """

    harvest: float
    slowdown: float


class GapModel(Protocol):
    """What background jobs make of the GPUs of foreground jobs.

    ``noise`` is that of what is measured, as a part of it, drawn by ``seed``: the standard error,
    by which the interval of a slowdown is told. A measurement takes ``probe_s`` seconds.
    """

    noise: float
    seed: int
    probe_s: float

    def beside(self, background: JobSpec, foreground: Sequence[JobSpec]) -> Beside:
        """The truth about a background job on a GPU of these foreground jobs, at least one."""
        ...


class Gaps:
    """Gaps by what foreground jobs use of their GPUs, harvested at a cost and up to a limit.

    A background job gets the part of the GPU that the foreground jobs leave idle (``gpu_util``
    less than 1; ``IDLE`` where it is not known), and each part that it gets costs them ``cost``
    times it of their step time, or as ``costs`` says for background jobs of some models. A
    controller holds it back: its parts never cost more than the least ``max_slowdown`` allows.
    ``floors`` have, by model, what a background job costs however much it is held back.
    """

    def __init__(
        self,
        *,
        cost: float = COST,
        costs: Mapping[str, float] | None = None,
        floors: Mapping[str, float] | None = None,
        noise: float = 0.02,
        seed: int = 0,
        probe_s: float = 30.0,
    ) -> None:
        self.noise, self.seed, self.probe_s = noise, seed, probe_s
        self._cost, self._costs, self._floors = cost, costs or {}, floors or {}

    def beside(self, background: JobSpec, foreground: Sequence[JobSpec]) -> Beside:
        """The truth about a background job on a GPU of these foreground jobs, at least one."""
        used = sum(1 - IDLE if each.gpu_util is None else each.gpu_util for each in foreground)
        harvest = max(0.0, 1.0 - used)
        cost = self._costs.get(background.model, self._cost)
        allowed = min(each.max_slowdown for each in foreground) - 1.0
        if cost * harvest > allowed:
            harvest = allowed / cost
        return Beside(harvest, 1.0 + max(cost * harvest, self._floors.get(background.model, 0.0)))


class _Pairing(NamedTuple):
    """A background job beside these rows, by GPU, since then; ``number`` is that of its probe."""

    number: int
    place: Allocation
    rows: tuple[tuple[int, ...], ...]
    since_s: float


class Fills:
    """Who runs beside whom on each GPU, at what speeds, and the measurements of that.

    :meth:`runs` is told of each job that begins to run, :meth:`look` of GPUs where jobs have begun
    or stopped.
    """

    def __init__(self, engine: Engine, state: ClusterState, gaps: GapModel) -> None:
        self._engine, self._state, self._gaps = engine, state, gaps
        self._on: dict[tuple[int, int], set[int]] = {}  # rows that run on a GPU, or have run there
        self._pairings: dict[int, _Pairing] = {}
        self._probes = 0
        self._chance = Random(f"{gaps.seed} fills")
        self._beside_s = self._slowed_s = 0.0
        for row in state.open_rows():
            self.runs(row)

    def runs(self, row: int) -> None:
        """Note that the job runs on what it holds."""
        held = self._state.held[row]
        for gpu in () if held is None or self._state.since_s[row] < 0 else _gpus(held):
            self._on.setdefault(gpu, set()).add(row)

    def factor(self, row: int, place: Allocation) -> float:
        """The part of its speed that the job has there beside running jobs of the other layer."""
        if place.background:
            found = (self._truth(row, rows) for rows in self._beside(place))
            return max(LEAST_SPEED, min(each.harvest for each in found))
        slowdown = 1.0
        for gpu in _gpus(place):
            for other in self._running(gpu, background=True):
                rows = sorted({row, *self._running(gpu, background=False)})
                slowdown = max(slowdown, self._truth(other, rows).slowdown)
        return 1.0 / slowdown

    def across(self, place: Allocation) -> list[int]:
        """The running jobs of the other layer on these GPUs, by row."""
        return self._rows_on(place, background=not place.background)

    def look(self, place: Allocation) -> None:
        """Begin to measure background jobs on these GPUs that are beside others than before."""
        state = self._state
        for gpu in _gpus(place):
            rows = self._on.get(gpu, set())
            for row in sorted(rows):
                if state.spec[row].is_background:
                    self._look_at(row)
                if state.held[row] is None:
                    rows.discard(row)

    def begins(self, row: int) -> None:
        """Note that a background job has started or gone on: it is measured anew."""
        self._close(row)

    def measured(self, row: int, number: int) -> None:
        """Tell what the probe of this number has measured, unless conditions have changed."""
        pairing = self._pairings.get(row)
        if pairing is None or pairing.number != number or not self._is_on(row, pairing.place):
            return
        beside, slowdown, harvest = -1, 1.0, 1.0
        interval: tuple[float, float, int] | tuple[()] = ()
        found = [(self._truth(row, rows), rows[0]) for rows in pairing.rows if rows]
        if found:
            noise, gauss, spec = self._gaps.noise, self._chance.gauss, self._state.spec
            truth, beside = max(
                found, key=lambda each: (each[0].slowdown / spec[each[1]].max_slowdown, -each[1])
            )
            slowdown = max(0.0, truth.slowdown * gauss(1.0, noise))
            off = exp(ERRORS * noise)
            interval = slowdown / off, slowdown * off, PAIRS
            least = min(each.harvest for each, _ in found)
            harvest = min(1.0, max(0.0, least * gauss(1.0, noise)))
        told = FillMeasured(self._engine.now_s, row, beside, slowdown, harvest, *interval)
        self._state.apply(told)

    def figures(self) -> dict[str, float | None]:
        """``foreground_slowdown``: that of steps beside background jobs, averaged over time."""
        for row in list(self._pairings):
            self._close(row)
        return {
            "beside_gpu_s": self._beside_s,
            "foreground_slowdown": self._slowed_s / self._beside_s if self._beside_s else None,
        }

    def _look_at(self, row: int) -> None:
        held = self._state.held[row]
        if held is None or not self._is_on(row, held):
            self._close(row)
            return
        rows = tuple(self._beside(held))
        before = self._pairings.get(row)
        if before is not None and (before.place, before.rows) == (held, rows):
            return
        self._close(row)
        self._probes += 1
        now_s = self._engine.now_s
        self._pairings[row] = _Pairing(self._probes, held, rows, now_s)
        self._engine.at(now_s + self._gaps.probe_s, FILL, (row, self._probes))

    def _close(self, row: int) -> None:
        pairing = self._pairings.pop(row, None)
        for rows in pairing.rows if pairing is not None else ():
            if pairing is not None and rows:
                lasted_s = self._engine.now_s - pairing.since_s
                self._beside_s += lasted_s
                self._slowed_s += lasted_s * self._truth(row, rows).slowdown

    def _truth(self, row: int, rows: Sequence[int]) -> Beside:
        if not rows:
            return Beside(1.0, 1.0)
        spec = self._state.spec
        return self._gaps.beside(spec[row], [spec[other] for other in rows])

    def _beside(self, place: Allocation) -> list[tuple[int, ...]]:
        """The running foreground jobs on each of these GPUs."""
        return [tuple(sorted(self._running(gpu, background=False))) for gpu in _gpus(place)]

    def _is_on(self, row: int, place: Allocation) -> bool:
        return self._state.since_s[row] >= 0 and self._state.held[row] == place

    def _rows_on(self, place: Allocation, *, background: bool) -> list[int]:
        found = (self._running(gpu, background=background) for gpu in _gpus(place))
        return sorted({row for rows in found for row in rows})

    def _running(self, gpu: tuple[int, int], *, background: bool) -> list[int]:
        state, rows = self._state, self._on.get(gpu)
        if not rows:
            return []
        node, bit = gpu[0], 1 << gpu[1]
        return [
            row
            for row in rows
            if (held := state.held[row]) is not None
            and held.background == background
            and state.since_s[row] >= 0
            and any(n == node and mask & bit for n, mask in held.parts)
        ]


def _gpus(place: Allocation) -> list[tuple[int, int]]:
    return [(node, gpu) for node, mask in place.parts for gpu in indices(mask)]
