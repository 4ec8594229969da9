"""The fitness and the operators of Pollux' published search for allocations, on arrays alone.

Those of AdaptDL's branch osdi21-artifact (Qiao et al., OSDI 2021, section 4.2). A state has the
shape (jobs, nodes) and says how many GPUs of each node a job has; all functions take many of them,
(solutions, jobs, nodes). ``random`` is a generator of NumPy.
"""

from typing import Any, NamedTuple

import numpy as np

MOST_NODES = 16  # of one job
SMALL = 1e-3  # is added to every speedup
POWER = -1.0  # of the mean over jobs
RESET, THINNED, ZEROED = 0.1, 0.1, 0.1  # probabilities of a mutation


class Allocations(NamedTuple):
    """The problem.

    ``speedups`` has the shape (jobs, nodes, GPUs), with a place for none, and is over the fair
    share, in units of one node's share; ``most`` is the most GPUs of each job, ``base`` the state
    that jobs are in, and ``restart`` the factor of those whose GPUs are others.
    """

    speedups: Any
    most: Any
    base: Any
    node_gpus: int
    restart: Any

    def fitness(self, states: Any) -> Any:
        """The power mean of the jobs' speedups, for each of the solutions."""
        speedups = self._of_jobs(states)
        changed = np.any(states != self.base, axis=2)
        speedups = np.where(changed, speedups * self.restart, speedups)
        return np.mean((speedups + SMALL) ** POWER, axis=1) ** (1 / POWER)

    def utility(self, states: Any) -> Any:
        """Speedups over the GPUs that they take, each job by its share of the nodes in use."""
        gpus = states.sum(axis=2)
        in_use = self.node_gpus * np.count_nonzero(states.sum(axis=1), axis=1)
        each = np.where(gpus > 0, self._of_jobs(states) / np.maximum(gpus, 1), 0.0)
        return (each * gpus).sum(axis=1) / np.maximum(in_use, 1)

    def _of_jobs(self, states: Any) -> Any:
        nodes, gpus = np.count_nonzero(states, axis=2), states.sum(axis=2)
        return self.speedups[np.arange(len(self.base)), nodes, gpus]

    def mutated(self, states: Any, random: Any) -> Any:
        """Jobs go back to what they had, lose GPUs of some nodes, and get more of others."""
        reset = random.random(states.shape[:2]) < RESET
        states = np.where(reset[:, :, None], self.base, states)
        thinned = random.random(states.shape[:2]) < THINNED
        states[thinned[:, :, None] & (random.random(states.shape) < ZEROED)] = 0
        return self.grown(states, random)

    def grown(self, states: Any, random: Any) -> Any:
        """Of every node with room a job, and one that is there, get up to as many as it has."""
        room = np.broadcast_to((states.sum(axis=1) < self.node_gpus)[:, None, :], states.shape)
        anyone, who_is_there = (_one_of(cells) for cells in (room, room & (states > 0)))
        chosen = random.random(states.shape) < anyone + who_is_there - anyone * who_is_there
        drawn = random.integers(states, self.node_gpus + 1)
        return np.where(chosen, drawn, states)

    def repaired(self, states: Any, random: Any) -> Any:
        """What breaks a rule is made to fit, in the published order."""
        states = apart(states)
        order = np.argsort(random.random(states.shape), axis=2)
        states = np.take_along_axis(states, order, axis=2)
        states = cut(states, self.most[:, None], axis=2)
        states[(states > 0).cumsum(axis=2) > MOST_NODES] = 0
        states = np.take_along_axis(states, np.argsort(order, axis=2), axis=2)
        return cut(states, self.node_gpus, axis=1)


def crossed(one: Any, other: Any, points: Any) -> Any:
    """Two children of each pair: up to a job the one is as the other parent, after it as its own.

    ``points`` has one number of a job for each pair. The children come along a new first axis.
    """
    before = (np.arange(one.shape[1]) < np.reshape(points, (-1, 1)))[:, :, None]
    return np.stack([np.where(before, other, one), np.where(before, one, other)])


def apart(states: Any) -> Any:
    """The states with one job on several nodes on each node, the first of them."""
    spread = (np.count_nonzero(states, axis=2) > 1)[:, :, None] & (states > 0)
    return np.where(spread & (spread.cumsum(axis=1) > 1), 0, states)


def cut(states: Any, most: Any, axis: int) -> Any:
    """What is within ``most`` when it is given out along the axis."""
    return np.diff(np.minimum(states.cumsum(axis=axis), most), axis=axis, prepend=0)


def _one_of(cells: Any) -> Any:
    """The probability of each of the cells, so that of every node one is drawn in the mean."""
    return cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
