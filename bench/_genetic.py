"""Pollux' published search for allocations, as a baseline: NSGA-II of pymoo (extra ``bench``).

Objectives and operators are those of AdaptDL's branch osdi21-artifact (Qiao et al., OSDI 2021,
section 4.2): 100 solutions, 100 generations a call, and each call begins with the best solutions of
the one before, those that no other is better than in both objectives. What a job gains by a number
of nodes and GPUs is looked up in a table that is made beforehand; the published code works it out
when it is first asked for.
"""

from typing import Any

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.crossover import Crossover
from pymoo.core.mutation import Mutation
from pymoo.core.problem import Problem
from pymoo.core.repair import Repair
from pymoo.optimize import minimize

POPULATION = GENERATIONS = 100
MOST_NODES = 16  # of one job
SMALL = 1e-3  # is added to every speedup
POWER = -1.0  # of the mean over jobs
RESET, THINNED, ZEROED = 0.1, 0.1, 0.1  # probabilities of a mutation


class Search:
    """Calls for one decision after another, for the same jobs.

    Solutions have the shape (jobs, nodes) and say how many GPUs of each node a job has.
    ``speedups`` has the shape (jobs, nodes, GPUs), with a place for none, and is over the fair
    share, in units of one node's share; ``most`` is the most GPUs of each job, and ``restart`` the
    factor of those whose GPUs are not those of ``base``.
    """

    def __init__(
        self, speedups: Any, most: Any, base: Any, node_gpus: int, restart: Any, seed: int
    ) -> None:
        self.problem = Allocations(speedups, most, base, node_gpus, restart)
        self._seed = seed
        self._population = base.reshape(1, -1)

    def call(self, generations: int = GENERATIONS) -> Any:
        """The solution of the best fitness after so many more generations."""
        algorithm = NSGA2(
            pop_size=POPULATION,
            sampling=self._population,
            crossover=ByJobs(),
            mutation=OfGpus(),
            repair=ToFit(),
        )
        self._seed += 1
        found = minimize(self.problem, algorithm, ("n_gen", generations), seed=self._seed)
        self._population = np.atleast_2d(found.X)
        best = int(np.argmin(np.atleast_2d(found.F)[:, 0]))
        return self._population[best].reshape(self.problem.shape)


class Allocations(Problem):
    """How many GPUs of each node every job has: the fitness, and the cluster's utility."""

    def __init__(self, speedups: Any, most: Any, base: Any, node_gpus: int, restart: Any) -> None:
        super().__init__(n_var=base.size, n_obj=2, xl=0, xu=node_gpus, vtype=int)
        self.shape = base.shape
        self.node_gpus = node_gpus
        self.most = most
        self.base = base
        self._speedups = speedups
        self._restart = restart

    def states(self, flat: Any) -> Any:
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def fitness(self, states: Any) -> Any:
        """The power mean of the jobs' speedups, for each of the solutions."""
        speedups = self._of_jobs(states)
        changed = np.any(states != self.base, axis=2)
        speedups = np.where(changed, speedups * self._restart, speedups)
        return np.mean((speedups + SMALL) ** POWER, axis=1) ** (1 / POWER)

    def _of_jobs(self, states: Any) -> Any:
        nodes, gpus = np.count_nonzero(states, axis=2), states.sum(axis=2)
        return self._speedups[np.arange(self.shape[0]), nodes, gpus]

    def _utility(self, states: Any) -> Any:
        """Speedups over the GPUs that they take, each job by its share of the nodes in use."""
        gpus = states.sum(axis=2)
        in_use = self.node_gpus * np.count_nonzero(states.sum(axis=1), axis=1)
        each = np.where(gpus > 0, self._of_jobs(states) / np.maximum(gpus, 1), 0.0)
        return (each * gpus).sum(axis=1) / np.maximum(in_use, 1)

    def _evaluate(self, flat: Any, out: Any, *args: Any, **more: Any) -> None:
        states = self.states(flat)
        out["F"] = np.column_stack([-self.fitness(states), -self._utility(states)])


class ByJobs(Crossover):
    """Of two parents, one gives the jobs up to a random one, the other those after it."""

    def __init__(self) -> None:
        super().__init__(n_parents=2, n_offsprings=2, vtype=int)

    def _do(self, problem: Any, flat: Any, *args: Any, random_state: Any, **more: Any) -> Any:
        one, other = problem.states(flat)
        num_jobs = problem.shape[0]
        points = random_state.integers(num_jobs, size=(len(one), 1))
        before = (np.arange(num_jobs) < points)[:, :, None]
        children = np.stack([np.where(before, other, one), np.where(before, one, other)])
        return children.reshape(flat.shape)


class OfGpus(Mutation):
    """Jobs go back to what they had, lose GPUs of some nodes, and get more of others."""

    def __init__(self) -> None:
        super().__init__(vtype=int)

    def _do(self, problem: Any, flat: Any, *args: Any, random_state: Any, **more: Any) -> Any:
        chance = random_state.random
        states = problem.states(flat.astype(int))
        reset = chance(states.shape[:2]) < RESET
        states = np.where(reset[:, :, None], problem.base, states)
        thinned = chance(states.shape[:2]) < THINNED
        states[thinned[:, :, None] & (chance(states.shape) < ZEROED)] = 0
        room = np.broadcast_to((states.sum(axis=1) < problem.node_gpus)[:, None, :], states.shape)
        anywhere, where_it_is = (_one_of(cells) for cells in (room, room & (states > 0)))
        chosen = chance(states.shape) < anywhere + where_it_is - anywhere * where_it_is
        drawn = random_state.integers(states, problem.node_gpus + 1)
        return np.where(chosen, drawn, states).reshape(flat.shape)


def _one_of(cells: Any) -> Any:
    """The probability of each of the cells, so that of every node one is drawn in the mean."""
    return cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)


class ToFit(Repair):
    """What breaks a rule is made to fit, in the published order."""

    def __init__(self) -> None:
        super().__init__(vtype=int)

    def _do(self, problem: Any, flat: Any, *args: Any, random_state: Any, **more: Any) -> Any:
        states = problem.states(flat.astype(int))
        spread = (np.count_nonzero(states, axis=2) > 1)[:, :, None] & (states > 0)
        states[spread & (spread.cumsum(axis=1) > 1)] = 0  # one such job on each node

        order = np.argsort(random_state.random(states.shape), axis=2)
        states = np.take_along_axis(states, order, axis=2)
        states = _cut(states, problem.most[:, None], axis=2)
        states[(states > 0).cumsum(axis=2) > MOST_NODES] = 0
        states = np.take_along_axis(states, np.argsort(order, axis=2), axis=2)
        return _cut(states, problem.node_gpus, axis=1).reshape(flat.shape)


def _cut(states: Any, most: Any, axis: int) -> Any:
    """What is within ``most`` when it is given out along the axis."""
    return np.diff(np.minimum(states.cumsum(axis=axis), most), axis=axis, prepend=0)
