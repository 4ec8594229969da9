"""What a plan says to the scheduler: steps with other numbers of ranks, and idle devices."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from rota.burst.planner.costs import Costs
from rota.burst.planner.frontier import Frontier, Timed
from rota.burst.planner.structure import Structure
from rota.burst.planner.timeline import timeline
from rota.errors import InputError
from rota.model.layer_graph import LayerGraph, Network

LONGEST_S = 5.0  # after which no other number of ranks is looked at, while a training waits
DIGITS = 6


class Planned(NamedTuple):
    """The plan of a step of ``batch`` samples.

    ``step_s`` are seconds with 1, 2, ... ranks, None where that is not known; ``idle`` is the part
    of a step for which each present rank's device neither computes nor sends, takes or reduces.
    """

    batch: int
    step_s: tuple[float | None, ...]
    idle: tuple[float, ...]


class Outlook:
    """The times of a training's steps with 1 to ``most`` ranks.

    Each number of ranks is planned for once for a batch. ``clock`` gives seconds.
    """

    def __init__(
        self, graph: LayerGraph, most: int, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._graph, self._most, self._clock = graph, most, clock
        self._has_branches = Structure(graph).has_branches
        self._batch = 0
        self._step_s: dict[int, float | None] = {}

    def of(self, frontier: Frontier, chosen: Timed) -> Planned:
        """The outlook with a plan that was chosen of a frontier, for as many ranks as it has."""
        costs = frontier.costs
        if costs.batch != self._batch:
            self._batch, self._step_s = costs.batch, {}
        self._step_s[costs.gpus] = _rounded(chosen.step_s)
        self._look(costs.network)
        most = max(self._most, costs.gpus)
        step_s = tuple(self._step_s.get(ranks) for ranks in range(1, most + 1))
        return Planned(costs.batch, step_s, idle_parts(costs, chosen))

    def _look(self, network: Network) -> None:
        """Plan for the other numbers of ranks, the fewest first, as long as there is time."""
        since_s, known = self._clock(), dict[tuple[int, ...], float]()
        for ranks in range(1, self._most + 1):
            if ranks in self._step_s:
                continue
            try:
                costs = Costs(self._graph, self._batch, ranks, network)
            except InputError:
                self._step_s[ranks] = None
                continue
            # Without branches a plan has no use for more ranks than the largest of its sizes.
            sizes = (*costs.sizes, ranks) if self._has_branches else costs.sizes
            if sizes not in known:
                if self._clock() - since_s > LONGEST_S:
                    return
                known[sizes] = _rounded(chosen_of(Frontier(costs)).step_s)
            self._step_s[ranks] = known[sizes]


def chosen_of(frontier: Frontier) -> Timed:
    """The plan that a training runs by: the one with which all GPUs together do most."""
    return frontier.best_for_cluster()


def idle_parts(costs: Costs, chosen: Timed) -> tuple[float, ...]:
    """The part of a step for which each rank's device is idle, from 0 to 1."""
    course = timeline(costs, chosen.plan)
    gaps_s = (sum(end - begin for begin, end in course.gaps(gpu)) for gpu in range(costs.gpus))
    return tuple(_rounded(min(1.0, gap_s / course.step_s)) for gap_s in gaps_s)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
