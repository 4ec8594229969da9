"""Pollux: GPUs and batch sizes chosen together, for goodput (Qiao et al., OSDI 2021).

Jobs tell how long their steps take and how noisy their gradients are. From that follows what each
would learn in a second on any number of GPUs, with the batch that is best there. The numbers of
GPUs are those that are worth most in sum, found exactly; then batches are those of the best
goodput where the jobs come to lie.
"""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING

from rota.model.allocation import Allocation, gpus_text
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import Trial, View
from rota.policy.base import Setting, one_of, positive, turn_s
from rota.policy.pollux_models import Knowledge, Models, Shapes
from rota.policy.pollux_places import Places
from rota.policy.stages import Stages
from rota.predict.goodput_table import canonical

if TYPE_CHECKING:
    from rota.policy.pollux_value import Jobs, Matrix

RETUNE_GAIN = 1.05  # of goodput, for which a batch is changed that has its GPUs already
FIRST_GPUS = 4  # a job of which nothing was measured may have so many
GROWTH = 4  # times as many GPUs as were measured, at most
PUBLISHED_GROWTH = 2
LAST_QUEUE_GPU_S = 57_600.0  # 16 GPU-hours: Tiresias' published threshold


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
    }

    def __init__(
        self,
        objective: str = "service",
        fits: str = "kind",
        interval_s: float = 60.0,
        restart_s: float = 30.0,
        horizon_s: float = 150.0,
    ) -> None:
        self.objective = objective
        self.fits = fits
        self.interval_s = interval_s
        self.restart_s = restart_s
        self.horizon_s = max(horizon_s, restart_s)
        self._models: Models | None = None

    def decide(self, view: View) -> Plan:
        """The numbers of GPUs that are worth most, laid out with few moves, and their batches."""
        rows = sorted(view.active)
        wake_at_s = (view.now_s // self.interval_s + 1) * self.interval_s
        sizes = Counter(node.num_gpus for node in view.state.nodes if node.alive)
        if not rows:
            return view.unchanged()
        node_gpus = max(sizes, key=lambda size: (sizes[size], size), default=1)
        models = self._models_for(offered(view, rows, node_gpus))
        early = {group: list(noise) for group, noise in (view.policy_mark or {}).items()}
        known = models.know(view, rows, early)
        jobs = self._jobs(view, rows, known, models)
        values = self._values(view, jobs, models)
        wanted = self._wanted(view, rows, known, models, values, node_gpus)
        trial = view.trial()
        weights = {row: float(value) for row, value in zip(rows, values.max(axis=1), strict=True)}
        Places(trial, node_gpus, wanted, weights).place()
        for row, each in zip(rows, known, strict=True):
            self._settle(view, trial, row, each)
        changed = early != (view.policy_mark or {})
        return trial.plan(wake_at_s=wake_at_s, policy_mark=early if changed else None)

    def _models_for(self, shapes: Shapes) -> Models:
        if self._models is None or self._models.shapes != shapes:
            self._models = Models(shapes, shared=self.fits == "kind")
        return self._models

    # -- what GPUs are worth -------------------------------------------------------------------

    def _jobs(self, view: View, rows: list[int], known: list[Knowledge], models: Models) -> Jobs:
        import numpy as np

        from rota.policy.pollux_value import Jobs

        counts = np.array([0, *(gpus for gpus, _ in models.shapes)], dtype=float)
        speedups = np.tile(counts, (len(rows), 1))
        left_s = np.full(len(rows), np.nan)
        modelled = [(job, each.model) for job, each in enumerate(known) if each.model is not None]
        goodputs = models.goodputs([model for _, model in modelled])
        for (job, model), goodput in zip(modelled, goodputs, strict=True):
            first = int(np.argmax(goodput > 0))
            one = goodput[first] / counts[1 + first]
            if one > 0:
                speedups[job, 1:] = goodput / one
                left_s[job] = known[job].left_steps * model.limits.initial / one
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
            view.now_s - np.array(submit_s),
            np.array([_restarts(view, row) for row in rows], dtype=float),
            left_s,
        )

    def _values(self, view: View, jobs: Jobs, models: Models) -> Matrix:
        import numpy as np

        from rota.policy import pollux_value as value

        if not models.shapes:
            return np.zeros((len(jobs.running), 1))
        restart_s, horizon_s = self.restart_s, self.horizon_s
        if self.objective == "pollux":
            fair_gpus = -(-view.total_gpus // len(jobs.running))
            counts = np.array([gpus for gpus, _ in models.shapes])
            fair = np.full(len(jobs.running), 1 + np.abs(counts - fair_gpus).argmin())
            share = 1 / max(gpus for gpus, nodes in models.shapes if nodes == 1)
            return value.as_published(jobs, fair=fair, share=share, restart_s=restart_s)
        charged = value.charged_for_restarts(jobs, restart_s=restart_s, horizon_s=horizon_s)
        if self.objective == "length":
            return value.by_length(jobs, charged=charged)
        return value.by_service(jobs, limit_gpu_s=LAST_QUEUE_GPU_S, charged=charged)

    def _wanted(
        self,
        view: View,
        rows: list[int],
        known: list[Knowledge],
        models: Models,
        values: Matrix,
        node_gpus: int,
    ) -> dict[int, int]:
        """How many GPUs each job is to have."""
        import numpy as np

        from rota.policy.knapsack import solve

        counts = [0, *(gpus for gpus, _ in models.shapes)]
        growth = PUBLISHED_GROWTH if self.objective == "pollux" else GROWTH
        first = 1 if self.objective == "pollux" else FIRST_GPUS
        for job, (row, each) in enumerate(zip(rows, known, strict=True)):
            allowed = set(view.sizes(row))
            most = max(growth * each.most_seen, first) if len(allowed) > 1 else max(allowed)
            if (elastic := view.state.spec[row].elastic) and not elastic.by_restart:
                most = min(most, node_gpus)  # its ranks stay on one node
            for choice, gpus in enumerate(counts):
                if gpus and (gpus not in allowed or gpus > most):
                    values[job, choice] = -np.inf
        solution = solve(values, counts, view.total_gpus)
        return {row: counts[choice] for row, choice in zip(rows, solution.choices, strict=True)}

    # -- batches -------------------------------------------------------------------------------

    def _settle(self, view: View, trial: Trial, row: int, known: Knowledge) -> None:
        """Choose a job's batch where it is now, and remember what its user may want to know."""
        target, before, old = trial.target(row), view.target[row], view.marks[row] or {}
        mark = dict(old)
        if target is not None:
            moved = before is None or target.parts != before.parts
            if known.model is not None:
                target = self._with_batch(trial, row, known, target, moved)
            if moved:
                mark["restarts"] = _restarts(view, row) + 1
            if moved or target != before:
                mark["why"] = _why(known, target, self._next_shape(view, row, target.num_gpus))
        mark.pop("warnings", None)
        if known.warnings:
            mark["warnings"] = list(known.warnings)
        if mark != old:
            trial.mark(row, mark)

    def _next_shape(self, view: View, row: int, gpus: int) -> tuple[int, int] | None:
        """The (GPUs, nodes) with the fewest more that the job may be given, if there are such."""
        elastic, sizes = view.state.spec[row].elastic, set(view.sizes(row))
        one_node = elastic is not None and not elastic.by_restart
        for shape in self._models.shapes if self._models is not None else ():
            if shape[0] > gpus and shape[0] in sizes and not (one_node and shape[1] > 1):
                return shape
        return None

    def _with_batch(
        self, trial: Trial, row: int, known: Knowledge, target: Allocation, moved: bool
    ) -> Allocation:
        model = known.model
        assert model is not None
        shape = target.num_gpus, len(target.parts)
        best = model.best(*shape)
        if not best.goodput:
            return target
        if not moved and target.batch is not None:
            now = model.goodput(*shape, *target.batch)
            if isfinite(now) and best.goodput <= RETUNE_GAIN * now:
                return target
        tuned = target.with_batch((best.batch, best.accumulation))
        if tuned != target:
            trial.release(row, Reason.NONE)
            trial.give(row, tuned)
        return tuned


def offered(view: View, rows: list[int], node_gpus: int) -> Shapes:
    """(GPUs, nodes) among which jobs are given one: the canonical ones, and what gangs ask for.

    Of a job that can have none of the canonical numbers of GPUs it is the least that it can have.
    """
    shapes = dict(canonical(node_gpus, view.total_gpus))
    for row in rows:
        sizes = view.sizes(row)
        if shapes.keys().isdisjoint(sizes) and sizes[0] <= view.total_gpus:
            shapes[sizes[0]] = -(-sizes[0] // node_gpus)
    return sorted(shapes.items())


def _restarts(view: View, row: int) -> int:
    mark = view.marks[row]
    return int(mark.get("restarts", 0)) if mark else 0


def _why(known: Knowledge, target: Allocation, larger: tuple[int, int] | None) -> str:
    """Why a job has its GPUs, and not the ``larger`` (GPUs, nodes), for its user."""
    model, size = known.model, gpus_text(target.num_gpus)
    if model is None:
        return f"{size}, to be measured: nothing is known of its kind yet"
    here = model.best(target.num_gpus, len(target.parts)).goodput
    told = f"{size}: {here:.4g} useful samples a second"
    alone = model.best(1, 1).goodput
    if target.num_gpus > 1 and alone:
        told += f", {here / alone:.2f} times one GPU's"
    if larger is not None and here:
        told += f"; {larger[0]} would do {model.best(*larger).goodput / here:.2f} times as much"
    return told
