"""Pollux' published search for allocations, as a baseline: NSGA-II of pymoo (extra ``bench``).

100 solutions, 100 generations a call, and each call begins with the best solutions of the one
before, those that no other is better than in both objectives; fitness and operators are those of
``_genetic_operators``. What a job gains by a number of nodes and GPUs is looked up in a table that
is made beforehand; the published code works it out when it is first asked for.
"""

from typing import Any

import numpy as np
from _genetic_operators import Allocations, crossed
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.crossover import Crossover
from pymoo.core.mutation import Mutation
from pymoo.core.problem import Problem
from pymoo.core.repair import Repair
from pymoo.optimize import minimize

POPULATION = GENERATIONS = 100


class Search:
    """Calls for one decision after another, for the same jobs; arguments as of ``Allocations``."""

    def __init__(
        self, speedups: Any, most: Any, base: Any, node_gpus: int, restart: Any, seed: int
    ) -> None:
        self.problem = Flat(Allocations(speedups, most, base, node_gpus, restart))
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
        return self.problem.states(self._population[best])


class Flat(Problem):
    """The problem as pymoo takes it: each solution is a row of numbers."""

    def __init__(self, allocations: Allocations) -> None:
        base, most = allocations.base, allocations.node_gpus
        super().__init__(n_var=base.size, n_obj=2, xl=0, xu=most, vtype=int)
        self.allocations = allocations

    def states(self, flat: Any) -> Any:
        return flat.astype(int).reshape(*flat.shape[:-1], *self.allocations.base.shape)

    def _evaluate(self, flat: Any, out: Any, *args: Any, **more: Any) -> None:
        states = self.states(flat)
        fitness, utility = self.allocations.fitness(states), self.allocations.utility(states)
        out["F"] = np.column_stack([-fitness, -utility])


class ByJobs(Crossover):
    """Of two parents, one gives the jobs up to a random one, the other those after it."""

    def __init__(self) -> None:
        super().__init__(n_parents=2, n_offsprings=2, vtype=int)

    def _do(self, problem: Any, flat: Any, *args: Any, random_state: Any, **more: Any) -> Any:
        one, other = problem.states(flat)
        points = random_state.integers(one.shape[1], size=len(one))
        return crossed(one, other, points).reshape(flat.shape)


class OfGpus(Mutation):
    def __init__(self) -> None:
        super().__init__(vtype=int)

    def _do(self, problem: Any, flat: Any, *args: Any, random_state: Any, **more: Any) -> Any:
        states = problem.states(flat)
        return problem.allocations.mutated(states, random_state).reshape(flat.shape)


class ToFit(Repair):
    def __init__(self) -> None:
        super().__init__(vtype=int)

    def _do(self, problem: Any, flat: Any, *args: Any, random_state: Any, **more: Any) -> Any:
        states = problem.states(flat)
        return problem.allocations.repaired(states, random_state).reshape(flat.shape)
