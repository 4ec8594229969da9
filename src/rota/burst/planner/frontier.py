"""Plans that are worth a choice, and the choices: time, GPU time, or work of the whole cluster."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import cycle
from typing import NamedTuple

from rota.burst.planner.costs import Costs
from rota.burst.planner.front import SAME
from rota.burst.planner.plan import Plan, chained, data_parallel
from rota.burst.planner.search import unbeaten_plans
from rota.burst.planner.structure import Structure
from rota.burst.planner.timeline import timeline
from rota.errors import InputError

MOST_TIMED, MOST_TIMED_LAYERS = 1500, 200_000


class Timed(NamedTuple):
    """A plan, with the seconds of a step and its GPU-seconds as they were timed."""

    plan: Plan
    step_s: float
    gpu_time_s: float


class Frontier:
    """The unbeaten plans of a training, the fastest first, each as long as its timeline is.

    Without ``overlap`` reductions follow each layer's backward pass. For plans whose layers run one
    after another the times are then those of the search, and the frontier is exact. With it, and
    where branches run side by side, times are those of the timelines, and plans that prove beaten
    are left out. Looked at are the unbeaten plans with branches side by side and without, those
    where all reductions are hidden, data parallelism on each number of GPUs, and with overlap what
    changes of single sizes make of the fastest and of data parallelism; of more than
    ``MOST_TIMED`` plans, with overlap, as many that lie evenly among them; fewer of graphs with
    hundreds of layers. Of graphs with more than some hundred sizes to decide the search keeps some
    plans of each part alone, and the frontier is near the exact one.

    ``tangled`` names layers that share a size because they are too entangled to have their own.
    Raises InputError if nothing fits into memory.
    """

    def __init__(self, costs: Costs, *, overlap: bool = True) -> None:
        self.costs, self.overlap = costs, overlap
        structure = Structure(costs.graph)
        self.tangled = tuple(costs.graph.layers[i].name for i in structure.tangled)
        plans = unbeaten_plans(costs, structure, side_by_side=False)
        if structure.has_branches:
            plans += unbeaten_plans(costs, structure)
        if overlap:
            hiding = Costs(
                costs.graph,
                costs.batch,
                costs.gpus,
                costs.network,
                costs.memory_bytes,
                hidden_reductions=True,
            )
            hidden = unbeaten_plans(hiding, structure, side_by_side=False)
            # The costs of these plans leave out their reductions.
            plans += [chained(costs, [group.size for group in plan.groups]) for plan in hidden]
            most = max(1, min(MOST_TIMED, MOST_TIMED_LAYERS // len(costs.graph.layers)))
            plans = plans[:: -(-len(plans) // most)]
        looked_at = {plan.groups: plan for plan in (*plans, *self._data_parallel())}
        points = [self.timed(plan) for plan in looked_at.values()]
        if overlap:
            points += self._changed(structure, unbeaten(points)[0])
        self.points = unbeaten(points)

    def _changed(self, structure: Structure, fastest: Timed) -> Iterator[Timed]:
        """Plans around the fastest and data parallelism: one size is changed while that helps."""
        costs, left = self.costs, MOST_TIMED_LAYERS // 4 // len(self.costs.graph.layers)
        for start in (fastest, *sorted(self.baselines, key=lambda base: base.step_s)):
            sizes, least_s, since = [group.size for group in start.plan.groups], start.step_s, 0
            changes = [(v, size) for v in structure.members.values() for size in costs.sizes]
            for members, size in cycle(changes):
                if not left or since == len(changes):
                    break
                since += 1
                if sizes[members[0]] == size:
                    continue
                changed = [size if i in members else old for i, old in enumerate(sizes)]
                plan, left = chained(costs, changed), left - 1
                if costs.memory_bytes is None or plan.memory_bytes <= costs.memory_bytes:
                    point = self.timed(plan)
                    yield point
                    if point.step_s < least_s * (1.0 - SAME):
                        sizes, least_s, since = changed, point.step_s, 0

    def timed(self, plan: Plan) -> Timed:
        """The plan with the times that it has here."""
        if not self.overlap and all(group.first == 0 for group in plan.groups):
            return Timed(plan, plan.step_s, plan.gpu_time_s)
        course = timeline(self.costs, plan, overlap=self.overlap)
        return Timed(plan, course.step_s, course.gpu_time_s)

    def _data_parallel(self) -> list[Plan]:
        plans = [data_parallel(self.costs, size) for size in self.costs.sizes]
        most = self.costs.memory_bytes
        return [plan for plan in plans if most is None or plan.memory_bytes <= most]

    @cached_property
    def baselines(self) -> tuple[Timed, ...]:
        """Data parallelism on each number of GPUs on which it fits, the fewest first."""
        return tuple(map(self.timed, self._data_parallel()))

    def fastest(self, gpu_time_at_most: float | None = None) -> Timed:
        """The fastest plan whose GPU time is at most so many times that of a step on one GPU.

        Raises InputError if no plan is so cheap.
        """
        if gpu_time_at_most is None:
            return self.points[0]
        if not gpu_time_at_most > 0.0:
            raise InputError(f"gpu_time_at_most is {gpu_time_at_most:g}; it is above 0")
        limit_s = gpu_time_at_most * self.costs.least_gpu_time_s * (1.0 + 1e-9)
        for point in self.points:
            if point.gpu_time_s <= limit_s:
                return point
        least = self.points[-1].gpu_time_s / self.costs.least_gpu_time_s
        raise InputError(
            f"gpu_time_at_most is {gpu_time_at_most:g}; the cheapest plan takes {least:.4g} times "
            "the GPU time of one GPU: allow as much"
        )

    def cheapest(self, within: float | None = None) -> Timed:
        """The plan of least GPU time that takes at most ``within`` times as long as the fastest.

        Raises InputError if ``within`` is below 1.
        """
        if within is None:
            return self.points[-1]
        return self._within(within)[-1]

    def best_for_cluster(self, background: float = 1.0, within: float = 1.1) -> Timed:
        """The plan with which all GPUs together do most, if others use what it leaves.

        It takes at most ``within`` times as long as the fastest. ``background`` is what a
        GPU-second left by the plan is worth to another job, as a part of what it is worth to this
        training on one GPU. Raises InputError unless it is 0 to 1 and ``within`` 1 or more.
        """
        if not 0.0 <= background <= 1.0:
            raise InputError(f"background is {background:g}; it is from 0 to 1")
        allowed = self._within(within)
        return max(allowed, key=lambda point: self.throughput(point, background))

    def _within(self, within: float) -> list[Timed]:
        if not within >= 1.0:
            raise InputError(f"within is {within:g}; it is 1 or more: 1.05 allows 5 % more time")
        limit_s = within * self.points[0].step_s * (1.0 + 1e-9)
        return [point for point in self.points if point.step_s <= limit_s]

    def throughput(self, point: Timed, background: float = 1.0) -> float:
        """Steps a second of the training, and of one-GPU jobs like it on the GPU time it leaves."""
        left_s = self.costs.gpus * point.step_s - point.gpu_time_s
        return (1.0 + background * left_s / self.costs.least_gpu_time_s) / point.step_s


def unbeaten(points: Iterable[Timed]) -> tuple[Timed, ...]:
    """Those that no other one beats in time and GPU time, the fastest first."""
    kept: list[Timed] = []
    for point in sorted(points, key=lambda point: (point.step_s, point.gpu_time_s)):
        if not kept or point.gpu_time_s < kept[-1].gpu_time_s * (1.0 - SAME):
            if kept and point.step_s <= kept[-1].step_s * (1.0 + SAME):
                kept.pop()
            kept.append(point)
    return tuple(kept)
