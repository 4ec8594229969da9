"""Pollux: GPUs and batch sizes chosen together, for goodput (Qiao et al., OSDI 2021).

Jobs tell how long their steps take and how noisy their gradients are. From that follows what each
would learn in a second on any number of GPUs, with the batch that is best there. The numbers of
GPUs are those that are worth most in sum, found exactly; then batches are those of the best
goodput where the jobs come to lie.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.model.desired_nodes import DesiredNodes, desired_nodes
from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.autoscale import (
    Autoscaler,
    leave_surplus,
    number_of_nodes,
    parse_band,
    parse_nodes,
)
from rota.policy.base import Setting, not_negative, one_of, positive, turn_s
from rota.policy.information import DECLARED, DECLARED_AND_LABEL, LABEL, NONE
from rota.policy.pollux_batches import restarts_of, settle
from rota.policy.pollux_models import Knowledge, Models, Shapes
from rota.policy.pollux_places import Places
from rota.policy.pollux_types import ByType
from rota.policy.stages import Stages
from rota.predict.goodput_table import canonical

if TYPE_CHECKING:
    from rota.policy.pollux_value import Jobs, Matrix, Vector

FIRST_GPUS = 4  # a job of which nothing was measured may have so many
GROWTH = 4  # times as many GPUs as were measured, at most
PUBLISHED_GROWTH = 2
LAST_QUEUE_GPU_S = 57_600.0  # 16 GPU-hours: Tiresias' published threshold
NO_MARK: dict[str, Any] = {"noise": {}}


class Seen(NamedTuple):
    """The jobs that ask for GPUs, by row, what is known of them, and (GPUs, nodes) on offer."""

    rows: list[int]
    known: list[Knowledge]
    jobs: Jobs
    shapes: Shapes
    node_gpus: int


class Pollux:
    """Jobs get the GPUs and the batches with which all of them together learn fastest.

    ``objective`` says what is best: ``service`` counts how fast each learns, less the more service
    it has had; ``length`` the less, the longer it still needs by what its user declared; ``pollux``
    is the published harmonic mean over fair shares.
    """

    name = "pollux"
    composes = False
    preemptive = True
    resizes = True
    stages: Stages | None = None
    SETTINGS = {
        "objective": Setting(
            one_of("service", "length", "pollux"),
            "service",
            "what is maximised: with weights by attained service, by declared length, or as "
            "published",
        ),
        "fits": Setting(
            one_of("kind", "job"), "kind", "whose measurements a job's model is fitted to"
        ),
        "interval_s": Setting(turn_s, 60.0, "seconds between decisions that nothing calls for"),
        "restart_s": Setting(positive, 30.0, "seconds that a job stands still for other GPUs"),
        "horizon_s": Setting(positive, 150.0, "seconds for which a change is expected to last"),
        "nodes": Setting(
            parse_nodes, (0, 0), "the least and the most nodes to ask for; 0,0 asks for none"
        ),
        "utility": Setting(
            parse_band, (0.35, 0.65), "the band within which more or fewer nodes keep utility"
        ),
        "shrink_after_s": Setting(
            not_negative, 300.0, "seconds of too low a utility after which fewer nodes do"
        ),
        "interference": Setting(
            one_of("avoid", "ignore"),
            "avoid",
            "whether jobs on several nodes may share one, where both exchange gradients",
        ),
        "types": Setting(
            one_of("on", "off"), "on", "whether GPU types count by how fast each job is on them"
        ),
    }

    def __init__(
        self,
        objective: str = "service",
        fits: str = "kind",
        interval_s: float = 60.0,
        restart_s: float = 30.0,
        horizon_s: float = 150.0,
        nodes: tuple[int, int] = (0, 0),
        utility: tuple[float, float] = (0.35, 0.65),
        shrink_after_s: float = 300.0,
        interference: str = "avoid",
        types: str = "on",
    ) -> None:
        self.objective = objective
        self.fits = fits
        self.interval_s = interval_s
        self.restart_s = restart_s
        self.horizon_s = max(horizon_s, restart_s)
        self.autoscaler = Autoscaler(*nodes, *utility, shrink_after_s) if any(nodes) else None
        self.interference = interference
        self.types = types
        self._by_type = ByType(self)
        self._models = Models(shared=fits == "kind")
        self._plan: Plan | None = None  # the last one

    @property
    def information(self) -> str:
        """What it is told of how long jobs are, which its settings choose."""
        if self.objective == "length":
            return DECLARED_AND_LABEL if self.fits == "kind" else DECLARED
        return LABEL if self.fits == "kind" else NONE

    def decide(self, view: View) -> Plan:
        """The numbers of GPUs that are worth most, laid out with few moves, and their batches."""
        rows = sorted(view.active)
        wake_at_s = (view.now_s // self.interval_s + 1) * self.interval_s
        if wake_at_s <= view.now_s:  # by rounding
            wake_at_s += self.interval_s
        sizes = Counter(node.num_gpus for node in view.state.nodes if node.alive)
        if not rows:
            self._plan = self._without_jobs(view)
            return self._plan
        if pools := self._by_type.pools(view, rows):
            self._plan = self._by_type.decide(view, rows, pools, wake_at_s)
            return self._plan
        avoid = self.interference == "avoid"
        node_gpus = max(sizes, key=lambda size: (sizes[size], size), default=1)
        rented = self.autoscaler.most * node_gpus if self.autoscaler else 0
        most_gpus = max(rented, view.total_gpus)
        shapes = offered(view, rows, node_gpus, most_gpus, whole_nodes=avoid)
        mark = view.policy_mark or NO_MARK
        early = {group: list(noise) for group, noise in mark["noise"].items()}
        known = self._models.know(view, rows, early, anew=view.plan is not self._plan)
        jobs = self._jobs(view, rows, known, shapes)
        seen = Seen(rows, known, jobs, shapes, node_gpus)
        trial, gpus, after = view.trial(), view.total_gpus, mark | {"noise": early}
        if self.autoscaler is not None:
            wish = self._desired(view, self.autoscaler, seen)
            gpus = leave_surplus(view, trial, wish.desired)
            after["nodes"] = wish._asdict()
        values, wanted = self._solve(view, seen, gpus)
        weights = {row: float(value) for row, value in zip(rows, values.max(axis=1), strict=True)}
        Places(trial, node_gpus, wanted, weights, avoid=avoid).place()
        settle(view, trial, dict(zip(rows, known, strict=True)), self._models)
        changed = after != mark
        self._plan = trial.plan(wake_at_s=wake_at_s, policy_mark=after if changed else None)
        return self._plan

    # -- nodes ---------------------------------------------------------------------------------

    def _desired(self, view: View, scaler: Autoscaler, seen: Seen) -> DesiredNodes:
        """How many nodes there should be for these jobs."""
        counts = [0, *(gpus for gpus, _ in seen.shapes)]

        @cache
        def utility(nodes: int) -> float:
            gpus = nodes * seen.node_gpus
            sizes = self._solve(view, seen, gpus)[1].values()
            return (
                sum(
                    float(speedups[counts.index(size)])
                    for speedups, size in zip(seen.jobs.speedups, sizes, strict=True)
                )
                / gpus
            )

        needed = max(-(-view.sizes(row)[0] // seen.node_gpus) for row in seen.rows)
        before = desired_nodes(view.policy_mark)
        return scaler.decide(
            view.now_s, before, there=number_of_nodes(view), needed=needed, utility=utility
        )

    def _without_jobs(self, view: View) -> Plan:
        """There is nothing to decide but how long nodes are kept."""
        if self.autoscaler is None:
            return view.unchanged()
        mark = view.policy_mark or NO_MARK
        there = number_of_nodes(view)
        wish = self.autoscaler.decide(
            view.now_s, desired_nodes(mark), there=there, needed=0, utility=lambda nodes: 0.0
        )
        after = mark | {"nodes": wish._asdict()}
        return view.trial().plan(
            wake_at_s=self.autoscaler.wake_at_s(wish), policy_mark=after if after != mark else None
        )

    # -- what GPUs are worth -------------------------------------------------------------------

    def _jobs(self, view: View, rows: list[int], known: list[Knowledge], shapes: Shapes) -> Jobs:
        import numpy as np

        from rota.policy.pollux_value import Jobs

        counts = np.array([0, *(gpus for gpus, _ in shapes)], dtype=float)
        speedups = np.tile(counts, (len(rows), 1))
        left_s, unit = np.full(len(rows), np.nan), np.ones(len(rows))
        modelled = [(job, each.model) for job, each in enumerate(known) if each.model is not None]
        if modelled and shapes:
            models = [model for _, model in modelled]
            goodputs = self._models.goodputs(models, shapes)
            first = np.argmax(goodputs > 0, axis=1)
            one = goodputs[np.arange(len(models)), first] / counts[1 + first]
            fit = one > 0  # at any of the sizes
            which = np.array([job for job, _ in modelled])[fit]
            speedups[which, 1:] = goodputs[fit] / one[fit, None]
            left_steps = [known[job].left_steps * model.limits.initial for job, model in modelled]
            left_s[which] = np.array(left_steps)[fit] / one[fit]
            unit[which] = one[fit]
        held = [view.target[row] for row in rows]
        gpus = [0 if each is None else each.num_gpus for each in held]
        current = np.abs(counts[None, :] - np.array(gpus)[:, None]).argmin(axis=1)
        submit_s = [view.submit_s[row] for row in rows]
        return Jobs(
            speedups,
            current,
            np.array(gpus) > 0,
            np.array([view.attained_gpu_s(row) for row in rows]),
            np.arange(len(rows)),
            self.kinds(view, rows),
            view.now_s - np.array(submit_s),
            np.array([restarts_of(view, row) for row in rows], dtype=float),
            left_s,
            unit,
        )

    def kinds(self, view: View, rows: list[int]) -> Vector:
        """The number of each job's kind; nobody else's, if it has none or its kind is not asked."""
        import numpy as np

        numbers: dict[str, int] = {}
        kinds = np.arange(len(rows))
        if self.fits == "kind":
            for job, row in enumerate(rows):
                if kind := view.kind(row):
                    kinds[job] = numbers.setdefault(kind, job)
        return kinds

    def _fair(self, jobs: Jobs, known: list[Knowledge], total_gpus: int) -> Vector:
        """Jobs' speedups at their share of the GPUs, taken to be on one node as published."""
        import numpy as np

        gpus = -(-total_gpus // len(known))
        fair = np.full(len(known), float(gpus))
        models = [(job, each.model) for job, each in enumerate(known) if each.model is not None]
        asked = [(model, (min(gpus, model.limits.most_gpus), 1)) for _, model in models]
        for (job, _), choice in zip(models, self._models.choices(asked), strict=True):
            fair[job] = choice.goodput / jobs.one[job]
        return fair

    def _solve(self, view: View, seen: Seen, gpus: int) -> tuple[Matrix, dict[int, int]]:
        """What each size is worth to each job, and how many of so many GPUs each is to have."""
        values = self.values(seen.jobs, seen.known, seen.node_gpus, gpus)
        return values, self._wanted(view, seen, values, gpus)

    def values(self, jobs: Jobs, known: list[Knowledge], node_gpus: int, total_gpus: int) -> Matrix:
        """What each size is worth to each job, by what is maximised."""
        import numpy as np

        from rota.policy import pollux_value as value

        if jobs.speedups.shape[1] == 1:
            return np.zeros(jobs.speedups.shape)
        restart_s, horizon_s = self.restart_s, self.horizon_s
        if self.objective == "pollux":
            fair = self._fair(jobs, known, total_gpus)
            share = 1 / node_gpus
            return value.as_published(jobs, fair=fair, share=share, restart_s=restart_s)
        charged = value.charged_for_restarts(jobs, restart_s=restart_s, horizon_s=horizon_s)
        if self.objective == "length":
            return value.by_length(jobs, charged=charged)
        limit_gpu_s = LAST_QUEUE_GPU_S if self.fits == "job" else inf
        return value.by_service(jobs, limit_gpu_s=limit_gpu_s, charged=charged)

    def _wanted(self, view: View, seen: Seen, values: Matrix, total_gpus: int) -> dict[int, int]:
        """How many GPUs each job is to have."""
        import numpy as np

        from rota.policy.knapsack import solve

        rows, known = seen.rows, seen.known
        counts = (0, *(gpus for gpus, _ in seen.shapes))
        sizes, most = [], []
        for row, each in zip(rows, known, strict=True):
            allowed = view.sizes(row)
            sizes.append(allowed)
            most.append(max(self.most_gpus(each), _least(allowed, counts)))
            if (elastic := view.state.spec[row].elastic) and not elastic.by_restart:
                most[-1] = min(most[-1], seen.node_gpus)  # its ranks stay on one node
        possible = np.array([_among(allowed, counts) for allowed in sizes])
        possible &= np.array(counts) <= np.minimum(most, total_gpus)[:, None]
        possible[:, 0] = True
        values[~possible] = -np.inf
        solution = solve(values, list(counts), total_gpus)
        return {row: counts[choice] for row, choice in zip(rows, solution.choices, strict=True)}

    def most_gpus(self, known: Knowledge) -> int:
        """To how many GPUs a job may grow, by what was measured of it."""
        if self.objective == "pollux":
            return max(PUBLISHED_GROWTH * known.most_seen, 1)
        return max(GROWTH * known.most_seen, FIRST_GPUS)


def offered(
    view: View, rows: list[int], node_gpus: int, most_gpus: int, *, whole_nodes: bool = True
) -> Shapes:
    """(GPUs, nodes) among which jobs are given one: the canonical ones, and what gangs ask for.

    Of a job that can have none of the canonical numbers of GPUs it is the least that it can have.
    Without ``whole_nodes`` every number is offered.
    """
    asked = [view.sizes(row) for row in rows]
    most = min(max(sizes[-1] for sizes in asked), most_gpus)
    shapes = dict(canonical(node_gpus, most))
    if not whole_nodes:
        shapes |= {gpus: -(-gpus // node_gpus) for gpus in range(1, most + 1)}
    for sizes in dict.fromkeys(asked):
        if shapes.keys().isdisjoint(sizes) and sizes[0] <= most_gpus:
            shapes[sizes[0]] = -(-sizes[0] // node_gpus)
    return sorted(shapes.items())


@lru_cache(maxsize=1024)
def _least(allowed: tuple[int, ...], counts: tuple[int, ...]) -> int:
    """The least of these numbers of GPUs that is allowed."""
    return min(set(allowed).intersection(counts), default=allowed[0])


@lru_cache(maxsize=1024)
def _among(allowed: tuple[int, ...], counts: tuple[int, ...]) -> tuple[bool, ...]:
    """Which of these numbers of GPUs are allowed."""
    found = frozenset(allowed)
    return tuple(gpus in found for gpus in counts)
