"""Pollux: GPUs and batch sizes chosen together, for goodput (Qiao et al., OSDI 2021).

Jobs tell how long their steps take and how noisy their gradients are. From that follows what each
would learn in a second on any number of GPUs, with the batch that is best there. The numbers of
GPUs are those that are worth most in sum, found exactly; then batches are those of the best
goodput where the jobs come to lie.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from rota.model.allocation import Allocation, gpus_text
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import Trial, View
from rota.policy.base import Setting, one_of, positive, turn_s
from rota.policy.pollux_models import Knowledge, Models, Shape, Shapes
from rota.policy.pollux_places import Places
from rota.policy.stages import Stages
from rota.predict.goodput import Choice, Goodput
from rota.predict.goodput_table import canonical

if TYPE_CHECKING:
    from rota.policy.pollux_value import Jobs, Matrix, Vector

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
        self._models = Models(shared=fits == "kind")
        self._plan: Plan | None = None  # the last one

    def decide(self, view: View) -> Plan:
        """The numbers of GPUs that are worth most, laid out with few moves, and their batches."""
        rows = sorted(view.active)
        wake_at_s = (view.now_s // self.interval_s + 1) * self.interval_s
        sizes = Counter(node.num_gpus for node in view.state.nodes if node.alive)
        if not rows:
            self._plan = view.unchanged()
            return self._plan
        node_gpus = max(sizes, key=lambda size: (sizes[size], size), default=1)
        shapes = offered(view, rows, node_gpus)
        early = {group: list(noise) for group, noise in (view.policy_mark or {}).items()}
        known = self._models.know(view, rows, early, anew=view.plan is not self._plan)
        jobs = self._jobs(view, rows, known, shapes)
        values = self._values(view, jobs, known, shapes)
        wanted = self._wanted(view, rows, known, shapes, values, node_gpus)
        trial = view.trial()
        weights = {row: float(value) for row, value in zip(rows, values.max(axis=1), strict=True)}
        Places(trial, node_gpus, wanted, weights).place()
        self._settle(view, trial, dict(zip(rows, known, strict=True)))
        changed = early != (view.policy_mark or {})
        self._plan = trial.plan(wake_at_s=wake_at_s, policy_mark=early if changed else None)
        return self._plan

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
            self._kinds(view, rows),
            view.now_s - np.array(submit_s),
            np.array([_restarts(view, row) for row in rows], dtype=float),
            left_s,
            unit,
        )

    def _kinds(self, view: View, rows: list[int]) -> Vector:
        """The number of each job's kind; nobody else's, if it has none or its kind is not asked."""
        import numpy as np

        numbers: dict[str, int] = {}
        kinds = np.arange(len(rows))
        if self.fits == "kind":
            for job, row in enumerate(rows):
                if kind := view.kind(row):
                    kinds[job] = numbers.setdefault(kind, job)
        return kinds

    def _fair(self, view: View, jobs: Jobs, known: list[Knowledge]) -> Vector:
        """Jobs' speedups at their share of the GPUs, taken to be on one node as published."""
        import numpy as np

        gpus = -(-view.total_gpus // len(known))
        fair = np.full(len(known), float(gpus))
        models = [(job, each.model) for job, each in enumerate(known) if each.model is not None]
        asked = [(model, (min(gpus, model.limits.most_gpus), 1)) for _, model in models]
        for (job, _), choice in zip(models, self._models.choices(asked), strict=True):
            fair[job] = choice.goodput / jobs.one[job]
        return fair

    def _values(self, view: View, jobs: Jobs, known: list[Knowledge], shapes: Shapes) -> Matrix:
        import numpy as np

        from rota.policy import pollux_value as value

        if not shapes:
            return np.zeros((len(jobs.running), 1))
        restart_s, horizon_s = self.restart_s, self.horizon_s
        if self.objective == "pollux":
            share = sum(node.alive for node in view.state.nodes) / max(view.total_gpus, 1)
            fair = self._fair(view, jobs, known)
            return value.as_published(jobs, fair=fair, share=share, restart_s=restart_s)
        charged = value.charged_for_restarts(jobs, restart_s=restart_s, horizon_s=horizon_s)
        if self.objective == "length":
            return value.by_length(jobs, charged=charged)
        limit_gpu_s = LAST_QUEUE_GPU_S if self.fits == "job" else inf
        return value.by_service(jobs, limit_gpu_s=limit_gpu_s, charged=charged)

    def _wanted(
        self,
        view: View,
        rows: list[int],
        known: list[Knowledge],
        shapes: Shapes,
        values: Matrix,
        node_gpus: int,
    ) -> dict[int, int]:
        """How many GPUs each job is to have."""
        import numpy as np

        from rota.policy.knapsack import solve

        counts = (0, *(gpus for gpus, _ in shapes))
        growth = PUBLISHED_GROWTH if self.objective == "pollux" else GROWTH
        first = 1 if self.objective == "pollux" else FIRST_GPUS
        sizes, most = [], []
        for row, each in zip(rows, known, strict=True):
            allowed = view.sizes(row)
            sizes.append(allowed)
            most.append(max(growth * each.most_seen, first) if len(allowed) > 1 else allowed[0])
            if (elastic := view.state.spec[row].elastic) and not elastic.by_restart:
                most[-1] = min(most[-1], node_gpus)  # its ranks stay on one node
        possible = np.array([_among(allowed, counts) for allowed in sizes])
        possible &= np.array(counts) <= np.array(most)[:, None]
        possible[:, 0] = True
        values[~possible] = -np.inf
        solution = solve(values, list(counts), view.total_gpus)
        return {row: counts[choice] for row, choice in zip(rows, solution.choices, strict=True)}

    # -- batches -------------------------------------------------------------------------------

    def _settle(self, view: View, trial: Trial, known: dict[int, Knowledge]) -> None:
        """Choose jobs' batches where they are now, and remember what users may want to know."""
        asked: list[tuple[Goodput, Shape]] = []
        settled, marks = [], dict[int, dict[str, Any]]()
        for row, each in known.items():
            target = trial.target(row)
            if target is not None:
                settled.append((row, target))
                if each.model is not None:
                    asked += [(each.model, (target.num_gpus, len(target.parts)))]
                    asked += [(each.model, (1, 1))]
        choices = iter(self._models.choices(asked))
        for row, target in settled:
            before, model = view.target[row], known[row].model
            moved = before is None or target.parts != before.parts
            why = f"{gpus_text(target.num_gpus)}, to be measured: nothing is known of its kind yet"
            if model is not None:
                best, alone = next(choices), next(choices)
                why = _why(target, best, alone)
                target = self._with_batch(trial, row, model, target, best, moved)
            if moved or target != before:
                marks[row] = {"restarts": _restarts(view, row) + moved, "why": why}
        for row, each in known.items():
            mark = _with_warnings(marks.get(row), view.marks[row], each.warnings)
            if mark is not None:
                trial.mark(row, mark)

    def _with_batch(
        self,
        trial: Trial,
        row: int,
        model: Goodput,
        target: Allocation,
        best: Choice,
        moved: bool,
    ) -> Allocation:
        if not best.goodput:
            return target
        if not moved and target.batch is not None:
            now = model.goodput(target.num_gpus, len(target.parts), *target.batch)
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
    asked = [view.sizes(row) for row in rows]
    most = max(sizes[-1] for sizes in asked)
    shapes = dict(canonical(node_gpus, min(most, view.total_gpus)))
    for sizes in dict.fromkeys(asked):
        if shapes.keys().isdisjoint(sizes) and sizes[0] <= view.total_gpus:
            shapes[sizes[0]] = -(-sizes[0] // node_gpus)
    return sorted(shapes.items())


@lru_cache(maxsize=1024)
def _among(allowed: tuple[int, ...], counts: tuple[int, ...]) -> tuple[bool, ...]:
    """Which of these numbers of GPUs are allowed."""
    found = frozenset(allowed)
    return tuple(gpus in found for gpus in counts)


def _restarts(view: View, row: int) -> int:
    mark = view.marks[row]
    return int(mark.get("restarts", 0)) if mark else 0


def _with_warnings(
    new: dict[str, Any] | None, old: dict[str, Any] | None, warnings: tuple[str, ...]
) -> dict[str, Any] | None:
    """A job's mark with what it is to be warned of; None if the old one will do."""
    if new is None and list(warnings) == (old or {}).get("warnings", []):
        return None
    mark = dict((old if new is None else new) or {})
    mark.pop("warnings", None)
    return mark | {"warnings": list(warnings)} if warnings else mark


def _why(target: Allocation, best: Choice, alone: Choice) -> str:
    """Why a job has its GPUs, for its user."""
    times = f", {best.goodput / alone.goodput:.2f} times one GPU's" if alone.goodput else ""
    return f"{gpus_text(target.num_gpus)}: {best.goodput:.4g} useful samples a second{times}"
