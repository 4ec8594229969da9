"""Pollux: GPUs and batch sizes chosen together, for goodput (Qiao et al., OSDI 2021).

Jobs tell how long their steps take and how noisy their gradients are. From that follows what each
would learn in a second on any number of GPUs, with the batch that is best there. The numbers of
GPUs are those that are worth most in sum, found exactly; then batches are those of the best
goodput where the jobs come to lie.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from math import inf
from typing import Any, NamedTuple

import numpy as np

from rota.model.allocation import Allocation
from rota.model.measured.job_signature import StepWork, signature_of
from rota.model.notes import DesiredNodes, Notes
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import Policy, Setting, not_negative, one_of, pause_s, positive, turn_s
from rota.policy.information import DECLARED, DECLARED_AND_LABEL, LABEL, NONE
from rota.policy.pollux import value
from rota.policy.pollux.batches import restarts_of, settle
from rota.policy.pollux.knapsack_pools import solve_pools
from rota.policy.pollux.layout import Layout
from rota.policy.pollux.models import Knowledge, Models, Shapes
from rota.policy.pollux.pools import (
    Choices,
    Pool,
    choices_of,
    current_choices,
    pool_of,
    pools_of,
    possible_choices,
    resizes_as_it_runs,
    taken_of,
)
from rota.policy.pollux.value import Jobs, Matrix, Vector
from rota.policy.stages.autoscale import (
    Autoscaler,
    leave_surplus,
    number_of_nodes,
    parse_band,
    parse_nodes,
    wish_in,
)

FIRST_GPUS = 4  # a job of which nothing was measured may have so many
GROWTH = 4  # times as many GPUs as were measured, at most
PUBLISHED_GROWTH = 2
LAST_QUEUE_GPU_S = 57_600.0  # 16 GPU-hours: Tiresias' published threshold
NO_MARK: dict[str, Any] = {"noise": {}}


class Seen(NamedTuple):
    """The jobs that ask for GPUs, by row, and the GPUs on offer, in pools.

    ``known`` is the knowledge of the jobs on each pool. ``possible`` is the mask of each job's
    choices.
    """

    rows: list[int]
    pools: list[Pool]
    known: list[list[Knowledge]]
    choices: Choices
    jobs: Jobs
    possible: Matrix


class Pollux(Policy):
    """Gives jobs the GPUs and batches with which all of them together learn fastest.

    ``objective`` is what is maximised: ``service`` counts how fast each job learns, less the more
    service it has had; ``length`` less, the longer it still needs by its user's declaration;
    ``pollux`` is the published harmonic mean over fair shares.
    """

    name = "pollux"
    resizes = True
    adapts = True
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
        "restart_s": Setting(pause_s, 30.0, "seconds that a job stands still for other GPUs"),
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
        self.interval_s = self.turn_s = interval_s
        self.restart_s = restart_s
        self.horizon_s = max(horizon_s, restart_s)
        self.autoscaler = Autoscaler(*nodes, *utility, shrink_after_s) if any(nodes) else None
        self.interference = interference
        self.types = types
        shared = fits == "kind"
        if objective == "length":
            self.information = DECLARED_AND_LABEL if shared else DECLARED
        else:
            self.information = LABEL if shared else NONE
        self._models = Models(shared=shared)
        self._plan: Plan | None = None  # the last one

    def decide(self, view: View) -> Plan:
        """The most valuable numbers of GPUs, laid out with few moves, and the jobs' batches."""
        rows = sorted(view.active)
        wake_at_s = (view.now_s // self.interval_s + 1) * self.interval_s
        if wake_at_s <= view.now_s:  # by rounding
            wake_at_s += self.interval_s
        if not rows:
            self._plan = self._without_jobs(view)
            return self._plan
        mark = view.policy_mark or NO_MARK
        early = {group: list(noise) for group, noise in mark["noise"].items()}
        pools = pools_of(view, rows)
        seen = self._look(view, rows, pools, early)
        what_if, after = view.what_if(), mark | {"noise": early}
        told = Notes({}, {}, {}, {})
        gpus = [pool.num_gpus for pool in pools]
        if len(pools) > 1:  # no number of nodes is asked for where they are of several types
            after = {"noise": early}
        elif self.autoscaler is not None:
            wish = self._desired(view, self.autoscaler, seen)
            gpus = [leave_surplus(view, what_if, wish.desired)]
            after["nodes"] = wish._asdict()
            told = told._replace(nodes=wish)
        kept = {
            row: place
            for row in rows
            if view.changes_gpus(row) and (place := what_if.target(row)) is not None
        }
        taken = taken_of(view, pools, kept.values())
        values, wanted = self._solve(seen, gpus, kept.keys(), taken)
        weights = dict(zip(rows, map(float, values.max(axis=1)), strict=True))
        self._lay_out(what_if, seen, dict(zip(rows, wanted, strict=True)), kept, weights, told)
        changed = after if after != mark else None
        self._plan = what_if.plan(wake_at_s=wake_at_s, policy_mark=changed, notes=told)
        return self._plan

    def _look(
        self, view: View, rows: list[int], pools: list[Pool], early: dict[str, list[float]]
    ) -> Seen:
        """The active jobs and GPUs, and what is known of them."""
        several = len(pools) > 1
        types = [pool.gpu_type for pool in pools] if several and self.types == "on" else None
        known = self._models.know(view, rows, early, types, anew=view.plan is not self._plan)
        if types is None:
            known *= len(pools)
        offers = pools
        if self.autoscaler is not None and not several:
            rented = self.autoscaler.most * pools[0].node_gpus
            offers = [pools[0]._replace(num_gpus=max(rented, pools[0].num_gpus))]
        choices = choices_of(view, rows, offers, whole_nodes=self.interference == "avoid")
        jobs = self._jobs(view, rows, pools, known, choices)
        most = self._most_gpus(view, rows, known[0])
        possible = possible_choices(view, rows, pools, choices, most)
        return Seen(rows, pools, known, choices, jobs, possible)

    def _lay_out(
        self,
        what_if: WhatIf,
        seen: Seen,
        wanted: dict[int, int],
        kept: Mapping[int, Allocation],
        weights: dict[int, float],
        told: Notes,
    ) -> None:
        """Free the GPUs of jobs that change pools, then lay out each pool's jobs on its nodes.

        The ``kept`` jobs keep their target.
        """
        avoid, pools = self.interference == "avoid", seen.pools
        sizes: list[dict[int, int]] = [{} for _ in pools]
        knowledge: list[dict[int, Knowledge]] = [{} for _ in pools]
        for job, (row, choice) in enumerate(wanted.items()):
            before, pool = what_if.target(row), seen.choices.pools[choice]
            if not choice and before is not None:
                pool = pool_of(pools, before)
            sizes[pool][row] = kept[row].num_gpus if row in kept else seen.choices.gpus[choice]
            knowledge[pool][row] = seen.known[pool][job]
            if before is not None and row not in kept and not pools[pool].has(before):
                what_if.release(row, Reason.WAIT_PRIORITY)
        for number, (gpus, of_rows) in enumerate(zip(pools, sizes, strict=True)):
            layout = Layout(
                what_if, gpus.node_gpus, of_rows, weights, avoid=avoid, nodes=gpus.nodes
            )
            layout.place()
            tables = self._models.tables(number)
            settle(what_if.view, what_if, knowledge[number], tables, self.horizon_s, told)

    # -- nodes ---------------------------------------------------------------------------------

    def _desired(self, view: View, scaler: Autoscaler, seen: Seen) -> DesiredNodes:
        """The number of nodes that these jobs should have."""
        node_gpus = seen.pools[0].node_gpus

        @cache
        def utility(nodes: int) -> float:
            gpus = nodes * node_gpus
            chosen = self._solve(seen, [gpus])[1]
            speedups = zip(seen.jobs.speedups, chosen, strict=True)
            return sum(float(each[choice]) for each, choice in speedups) / gpus

        needed = max(-(-view.sizes(row)[0] // node_gpus) for row in seen.rows)
        before = wish_in(view.policy_mark)
        return scaler.decide(
            view.now_s, before, there=number_of_nodes(view), needed=needed, utility=utility
        )

    def _without_jobs(self, view: View) -> Plan:
        """A plan without jobs; only how long nodes are kept is decided."""
        if self.autoscaler is None:
            return view.unchanged()
        mark = view.policy_mark or NO_MARK
        there = number_of_nodes(view)
        wish = self.autoscaler.decide(
            view.now_s, wish_in(mark), there=there, needed=0, utility=lambda nodes: 0.0
        )
        after = mark | {"nodes": wish._asdict()}
        return view.what_if().plan(
            wake_at_s=self.autoscaler.wake_at_s(wish),
            policy_mark=after if after != mark else None,
            notes=Notes(nodes=wish),
        )

    # -- what GPUs are worth -------------------------------------------------------------------

    def _jobs(
        self,
        view: View,
        rows: list[int],
        pools: list[Pool],
        known: list[list[Knowledge]],
        choices: Choices,
    ) -> Jobs:
        """The jobs' columns; speedups are over one GPU of the pool on which a job learns least."""
        counts, of_pool = np.array(choices.gpus, dtype=float), np.array(choices.pools)
        goodputs = np.zeros((len(rows), len(counts)))
        unit, work = np.full(len(rows), np.inf), np.full(len(rows), np.nan)
        for number, each in enumerate(known):
            models = [(job, one.model) for job, one in enumerate(each) if one.model is not None]
            columns = np.flatnonzero((of_pool == number) & (counts > 0))
            if models and len(columns):
                which = np.array([job for job, _ in models])
                told = [model for _, model in models]
                table = self._models.goodputs(told, choices.shapes[number], number)
                goodputs[np.ix_(which, columns)] = table
                first = np.argmax(table > 0, axis=1)  # the fewest GPUs on which a job runs
                one = table[np.arange(len(told)), first] / counts[columns[first]]
                unit[which] = np.minimum(unit[which], np.where(one > 0, one, np.inf))
                work[which] = [each[job].left_steps * model.limits.initial for job, model in models]
            for job, one in enumerate(each):
                if one.steps_s:
                    goodputs[job, columns] = _rates(one.steps_s, choices.shapes[number])
                    least = min(one.steps_s)
                    unit[job] = min(unit[job], 1.0 / one.steps_s[least] / least)
        fit = unit < np.inf  # for any of the sizes
        unit[~fit] = 1.0
        speedups = np.where(fit[:, None], goodputs / unit[:, None], counts)
        current = current_choices(view, rows, pools, choices)
        return Jobs(
            speedups,
            current,
            np.array([view.target[row] is not None for row in rows]),
            np.array([view.attained_gpu_s(row) for row in rows]),
            np.arange(len(rows)),
            self._groups(view, rows),
            view.now_s - np.array([view.submit_s[row] for row in rows]),
            np.array([restarts_of(view, row) for row in rows], dtype=float),
            np.where(fit, work / unit, np.nan),
            unit,
            np.array([resizes_as_it_runs(view, row) for row in rows]),
        )

    def _groups(self, view: View, rows: list[int]) -> Vector:
        """A number for each job, equal for those of one signature; unique if ``fits`` is by job.

        Live jobs without a known signature are alike if they run the same command.
        """
        numbers: dict[str, int] = {}
        groups = np.arange(len(rows))
        if self.fits == "kind":
            for job, row in enumerate(rows):
                program = view.spec[row].program
                if signature := view.signature(row) or (
                    signature_of(program, StepWork()) if program else ""
                ):
                    groups[job] = numbers.setdefault(signature, job)
        return groups

    def _fair(self, jobs: Jobs, known: list[Knowledge], total_gpus: int) -> Vector:
        """Jobs' speedups at their share of the GPUs, as if on one node, as published."""
        gpus = -(-total_gpus // len(known))
        fair = np.full(len(known), float(gpus))
        models = [(job, each.model) for job, each in enumerate(known) if each.model is not None]
        asked = [(model, (min(gpus, model.limits.most_gpus), 1)) for _, model in models]
        found = self._models.tables().choices(asked)
        for (job, _), choice in zip(models, found, strict=True):
            fair[job] = choice.goodput / jobs.one[job]
        for job, each in enumerate(known):
            if each.steps_s:
                within = [size for size in each.steps_s if size <= gpus] or [min(each.steps_s)]
                fair[job] = 1.0 / each.steps_s[max(within)] / jobs.one[job]
        return fair

    def _solve(
        self,
        seen: Seen,
        gpus: list[int],
        kept: Collection[int] = (),
        taken: Sequence[int] = (),
    ) -> tuple[Matrix, list[int]]:
        """The value of each choice to each job, and the best choices for these GPUs of the pools.

        A choice that a job can't have, or whose value is NaN, has the value minus infinity. The
        ``kept`` rows have the GPUs ``taken`` of the pools, and are given none here.
        """
        values, choices = self._values(seen, sum(gpus)), seen.choices
        left = [there - gone for there, gone in zip_longest(gpus, taken, fillvalue=0)]
        room = np.array(choices.gpus) <= np.array(left)[list(choices.pools)]
        values[~(seen.possible & room & np.isfinite(values))] = -np.inf
        if kept:
            values[[row in kept for row in seen.rows]] = -np.inf
        values[values[:, 0] == -np.inf, 0] = 0.0
        return values, solve_pools(values, choices.gpus, choices.pools, left).choices

    def _values(self, seen: Seen, total_gpus: int) -> Matrix:
        """The value of each size to each job under the objective."""
        jobs, known, node_gpus = seen.jobs, seen.known[0], seen.pools[0].node_gpus
        if jobs.speedups.shape[1] == 1:
            return np.zeros(jobs.speedups.shape)
        restart_s, horizon_s = self.restart_s, self.horizon_s
        if self.objective == "pollux":
            fair = self._fair(jobs, known, total_gpus)
            share = 1 / node_gpus
            return value.as_published(jobs, fair=fair, share=share, restart_s=restart_s)
        charged = value.charged_for_restarts(jobs, restart_s=restart_s, horizon_s=horizon_s)
        if self.objective == "length":
            values = value.by_length(jobs, charged=charged)
        else:
            limit_gpu_s = LAST_QUEUE_GPU_S if self.fits == "job" else inf
            values = value.by_service(jobs, limit_gpu_s=limit_gpu_s, charged=charged)
        return value.charged_for_stops(jobs, values, restart_s=restart_s, horizon_s=horizon_s)

    def _most_gpus(self, view: View, rows: list[int], known: list[Knowledge]) -> list[int]:
        """The size up to which each job may grow.

        A job of which nothing is known and that can grow while it runs stays at its least while
        others lack room to start.
        """
        begin = {row: view.sizes(row)[0] for row in rows if view.target[row] is None}
        needed, free, most = sum(begin.values()), view.free_gpus, []
        for row, each in zip(rows, known, strict=True):
            lacking = needed - begin.get(row, 0) > free
            unknown = each.model is None and not each.steps_s
            least = lacking and unknown and resizes_as_it_runs(view, row)
            most.append(0 if least else self.most_gpus(each))
        return most

    def most_gpus(self, known: Knowledge) -> int:
        """The size up to which a job may grow, by its measurements or its program's plan."""
        if known.steps_s:
            return max(known.steps_s)
        if self.objective == "pollux":
            return max(PUBLISHED_GROWTH * known.most_seen, 1)
        return max(GROWTH * known.most_seen, FIRST_GPUS)


def _rates(steps_s: Mapping[int, float], shapes: Shapes) -> Vector:
    """Steps per second at each of the shapes; 0 where none is known, as on several nodes."""
    known = (steps_s.get(gpus) if nodes == 1 else None for gpus, nodes in shapes)
    return np.array([0.0 if seconds is None else 1.0 / seconds for seconds in known])
