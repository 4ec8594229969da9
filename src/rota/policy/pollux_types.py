"""Pollux on GPUs of several types: each job on GPUs of one type, chosen with their number.

Goodput by GPU type as in Sia (Jayaram Subramanya et al., SOSP 2023): what a type is worth to a job
is how much faster the job learns on it, and those who gain most by the fast ones get them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rota.model.allocation import Allocation
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import Trial, View
from rota.policy.pollux_batches import restarts_of, settle
from rota.policy.pollux_models import Knowledge, Models, Shapes
from rota.policy.pollux_places import Places
from rota.policy.type_speeds import Told, TypeSpeeds

if TYPE_CHECKING:
    from rota.policy.pollux import Pollux
    from rota.policy.pollux_value import Jobs, Matrix, Vector


class Pool(NamedTuple):
    """The GPUs of one type: its nodes as a set of bits, most of them of ``node_gpus``."""

    gpu_type: str
    nodes: int
    num_gpus: int
    node_gpus: int


class _OnType:
    """A view in which all that jobs measured was measured on the GPUs of one pool."""

    def __init__(self, view: View, pool: Pool, told: dict[int, Told]) -> None:
        self._view = view
        self._told = told
        self.total_gpus = pool.num_gpus

    def measured(self, row: int) -> Told:
        return self._told.get(row, ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


class Choices(NamedTuple):
    """What a job may be given, in the order of the columns: GPUs of a pool; first, nothing."""

    gpus: list[int]
    pools: list[int]
    shapes: list[Shapes]  # of each pool


class ByType:
    """Decisions of a :class:`Pollux` where GPUs are of several types."""

    def __init__(self, policy: Pollux) -> None:
        self._policy = policy
        self._models: dict[str, Models] = {}
        self._speeds = TypeSpeeds()

    def pools(self, view: View, rows: list[int]) -> list[Pool]:
        """The GPUs of each type, most first; none if there is one type, or a gang needs several."""
        by_type: dict[str, list[int]] = {}
        for index, node in enumerate(view.state.nodes):
            if node.alive:
                by_type.setdefault(node.gpu_type, []).append(index)
        if len(by_type) < 2:
            return []
        pools = []
        for gpu_type, nodes in by_type.items():
            sizes = Counter(view.state.nodes[node].num_gpus for node in nodes)
            node_gpus = max(sizes, key=lambda size: (sizes[size], size))
            num_gpus = sum(size * number for size, number in sizes.items())
            pools.append(Pool(gpu_type, sum(1 << node for node in nodes), num_gpus, node_gpus))
        pools.sort(key=lambda pool: (-pool.num_gpus, pool.gpu_type))
        largest = pools[0].num_gpus
        fits = all(not largest < view.sizes(row)[0] <= view.total_gpus for row in rows)
        return pools if fits else []

    def decide(self, view: View, rows: list[int], pools: list[Pool], wake_at_s: float) -> Plan:
        """The types and numbers of GPUs that are worth most, laid out with few moves."""
        from rota.policy.knapsack_pools import solve_pools

        mark = view.policy_mark or {"noise": {}}
        early = {group: list(noise) for group, noise in mark["noise"].items()}
        views = self._views(view, rows, pools)
        known = [
            self._models_of(pool).know(each, rows, early)
            for pool, each in zip(pools, views, strict=True)
        ]
        choices = self._choices(views, rows, pools)
        jobs = self._jobs(view, rows, pools, known, choices)
        first = pools[0]
        values = self._policy.values(jobs, known[0], first.node_gpus, view.total_gpus)
        values[~self._may_have(view, rows, pools, known[0], choices)] = -float("inf")
        capacities = [pool.num_gpus for pool in pools]
        solution = solve_pools(values, choices.gpus, choices.pools, capacities)
        weights = dict(zip(rows, map(float, values.max(axis=1)), strict=True))
        trial = view.trial()
        wanted = dict(zip(rows, solution.choices, strict=True))
        self._place(trial, pools, choices, wanted, weights)
        types = {row: choices.pools[choice] for row, choice in wanted.items()}
        settled = {row: known[types[row]][job] for job, row in enumerate(rows)}
        settle(view, trial, settled, self._models_of(pools[0]))
        after = {"noise": early}  # no number of nodes is asked for where they are of several types
        return trial.plan(wake_at_s=wake_at_s, policy_mark=after if after != mark else None)

    # -- what is known -------------------------------------------------------------------------

    def _views(self, view: View, rows: list[int], pools: list[Pool]) -> list[View]:
        """The view as if all had been measured on each of the pools in turn."""
        shared = self._policy.fits == "kind"
        members: dict[str, list[int]] = {}
        active = {view.kind(row) for row in rows} if shared else set()
        for row in range(len(view.submit_s)) if shared else rows:
            kind = view.kind(row) if shared else ""
            if row in view.active or (kind and kind in active):
                members.setdefault(kind or f"job {row}", []).append(row)
        told = {
            group: [point for row in within for point in view.measured(row) or ()]
            for group, within in members.items()
        }
        if self._policy.types == "off":
            on = {group: [tuple(points)] * len(pools) for group, points in told.items()}
        else:
            self._speeds.learn(told)
            on = {g: [self._speeds.on(g, pool.gpu_type) for pool in pools] for g in told}
        views = []
        for index, pool in enumerate(pools):
            first = {within[0]: on[group][index] for group, within in members.items()}
            views.append(cast(View, _OnType(view, pool, first)))
        return views

    def _models_of(self, pool: Pool) -> Models:
        if pool.gpu_type not in self._models:
            self._models[pool.gpu_type] = Models(shared=self._policy.fits == "kind")
        return self._models[pool.gpu_type]

    # -- what GPUs are worth -------------------------------------------------------------------

    def _choices(self, views: list[View], rows: list[int], pools: list[Pool]) -> Choices:
        from rota.policy.pollux import offered

        whole = self._policy.interference == "avoid"
        shapes = [
            offered(view, rows, pool.node_gpus, pool.num_gpus, whole_nodes=whole)
            for view, pool in zip(views, pools, strict=True)
        ]
        gpus = [0, *(gpus for each in shapes for gpus, _ in each)]
        return Choices(gpus, [0, *(p for p, each in enumerate(shapes) for _ in each)], shapes)

    def _jobs(
        self,
        view: View,
        rows: list[int],
        pools: list[Pool],
        known: list[list[Knowledge]],
        choices: Choices,
    ) -> Jobs:
        """Speedups are over one GPU of the type on which a job learns least."""
        import numpy as np

        counts, of_pool = np.array(choices.gpus, dtype=float), np.array(choices.pools)
        speedups = np.tile(counts, (len(rows), 1))
        left_s, unit = np.full(len(rows), np.nan), np.ones(len(rows))
        goodputs = np.zeros((len(rows), len(counts)))
        for index, each in enumerate(known):
            columns = np.flatnonzero((of_pool == index) & (counts > 0))
            modelled = np.array([job for job, one in enumerate(each) if one.model is not None])
            models = [one.model for one in each if one.model is not None]
            if models and len(columns):
                table = self._models_of(pools[index]).goodputs(models, choices.shapes[index])
                goodputs[np.ix_(modelled, columns)] = table
        per_gpu = np.where(goodputs > 0, goodputs / np.maximum(counts, 1.0), np.inf)
        for job, found in enumerate(known[0]):
            ones = [_first(per_gpu[job, of_pool == index]) for index in range(len(pools))]
            if found.model is not None and min(ones) < np.inf:
                unit[job] = min(ones)
                speedups[job] = goodputs[job] / unit[job]
                left_s[job] = found.left_steps * found.model.limits.initial / unit[job]
        return self._as_asked(view, rows, pools, choices, (speedups, left_s, unit))

    def _as_asked(
        self,
        view: View,
        rows: list[int],
        pools: list[Pool],
        choices: Choices,
        learned: tuple[Matrix, Vector, Vector],
    ) -> Jobs:
        """The jobs with these speedups, work left and goodputs of one GPU."""
        import numpy as np

        from rota.policy.pollux_value import Jobs

        speedups, left_s, unit = learned
        held = [view.target[row] for row in rows]
        current = [
            0 if each is None else _nearest(each.num_gpus, _pool_of(pools, each), choices)
            for each in held
        ]
        return Jobs(
            speedups,
            np.array(current),
            np.array([each is not None for each in held]),
            np.array([view.attained_gpu_s(row) for row in rows]),
            np.arange(len(rows)),
            self._policy.kinds(view, rows),
            view.now_s - np.array([view.submit_s[row] for row in rows]),
            np.array([restarts_of(view, row) for row in rows], dtype=float),
            left_s,
            unit,
        )

    def _may_have(
        self,
        view: View,
        rows: list[int],
        pools: list[Pool],
        known: list[Knowledge],
        choices: Choices,
    ) -> Matrix:
        """Which choices each job has: its sizes, as far as it may grow, where it can be."""
        import numpy as np

        counts, of_pool = np.array(choices.gpus), np.array(choices.pools)
        may = np.zeros((len(rows), len(counts)), dtype=bool)
        for job, (row, each) in enumerate(zip(rows, known, strict=True)):
            allowed = view.sizes(row)
            may[job] = np.isin(counts, allowed)
            least = counts[may[job]].min(initial=allowed[-1])
            may[job] &= counts <= max(self._policy.most_gpus(each), least)
            elastic, held = view.state.spec[row].elastic, view.target[row]
            as_it_runs = elastic is not None and not elastic.by_restart
            if as_it_runs:  # its ranks stay on one node
                may[job] &= counts <= np.array([pool.node_gpus for pool in pools])[of_pool]
            stays = held if as_it_runs else None
            if view.must_stay(row) or view.stays_on_node(row):
                stays = view.home[row]
            if stays is not None:
                may[job] &= of_pool == _pool_of(pools, stays)
        may[:, 0] = True
        return may

    # -- where ---------------------------------------------------------------------------------

    def _place(
        self,
        trial: Trial,
        pools: list[Pool],
        choices: Choices,
        wanted: dict[int, int],
        weights: dict[int, float],
    ) -> None:
        """Free what jobs leave for another type, then lay each type's jobs out on its nodes."""
        avoid = self._policy.interference == "avoid"
        sizes: list[dict[int, int]] = [{} for _ in pools]
        for row, choice in wanted.items():
            before, pool = trial.target(row), choices.pools[choice]
            if not choice and before is not None:
                pool = _pool_of(pools, before)
            sizes[pool][row] = choices.gpus[choice]
            if before is not None and not _on(pools[pool], before):
                trial.release(row, Reason.WAIT_PRIORITY)
        for each, of_rows in zip(pools, sizes, strict=True):
            places = Places(trial, each.node_gpus, of_rows, weights, avoid=avoid, nodes=each.nodes)
            places.place()


def _on(pool: Pool, allocation: Allocation) -> bool:
    """Whether all of these GPUs are of the pool."""
    return all(pool.nodes >> node & 1 for node in allocation.nodes())


def _pool_of(pools: list[Pool], allocation: Allocation) -> int:
    """The pool of most of these GPUs; the first if they are of none, on nodes that are lost."""
    gpus = [
        sum(mask.bit_count() for node, mask in allocation.parts if pool.nodes >> node & 1)
        for pool in pools
    ]
    return gpus.index(max(gpus))


def _nearest(num_gpus: int, pool: int, choices: Choices) -> int:
    """The choice of that pool whose number of GPUs is nearest."""
    of_pool = [index for index, each in enumerate(choices.pools) if each == pool and index]
    return min(of_pool, key=lambda index: abs(choices.gpus[index] - num_gpus), default=0)


def _first(per_gpu: Vector) -> float:
    """What one GPU learns at the fewest at which a job runs; infinite if it runs at none."""
    import numpy as np

    known = per_gpu[np.isfinite(per_gpu)]
    return float(known[0]) if len(known) else float("inf")
