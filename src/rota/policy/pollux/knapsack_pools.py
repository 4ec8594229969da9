"""The multiple-choice knapsack over several pools: each choice takes from one of them.

GPUs of several types are such pools. The linear relaxation (HiGHS) gives the price of a unit of
each pool, which excludes most choices from any best solution; the rest is solved as in
:mod:`rota.policy.pollux.knapsack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rota.policy.pollux.knapsack import SLACK, Solution, improved, solve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUND_OFF = 1e-7  # within which HiGHS keeps constraints


def solve_pools(
    values: Floats, weights: Sequence[int], pools: Sequence[int], capacities: Sequence[int]
) -> Solution:
    """The best choice of each item so that the weights from each pool are within its capacity.

    ``values`` has the shape (items, choices); minus infinity marks a choice that an item does not
    have. ``weights`` and ``pools`` are those of the choices, the same for all items; the first
    choice, which takes nothing, every item has. Beyond some 10,000 units of each of two pools the
    solution may not be the best; how far it can be off is what its bound says.
    """
    if len(capacities) == 1 or not len(values):
        return solve(values, list(weights), sum(capacities))
    takes = np.zeros((len(capacities), len(weights)), dtype=np.int64)
    takes[list(pools), range(len(weights))] = weights
    room = np.array(capacities)
    rows = np.arange(len(values))
    free = values.argmax(axis=1)
    if (takes[:, free].sum(axis=1) <= room).all():
        best = float(values[rows, free].sum())
        return Solution([int(choice) for choice in free], best, best)
    have = values > -np.inf
    shares, prices = _relaxed(values, have, takes, room)
    net = np.where(have, values - prices @ takes, -np.inf)
    bound = float(net.max(axis=1).sum() + prices @ room)
    return improved(values, net, bound, _rounded(values, shares, takes, room), takes, room)


def _constraints(have: Any, takes: Ints) -> tuple[Any, Any, Any]:
    """(items, choices) of the unknowns, and the matrices of what each takes and whose it is."""
    from scipy.sparse import csr_array  # here: one pool needs none of scipy

    items, choices = np.nonzero(have)
    unknowns = np.arange(len(items))
    whose = csr_array((np.ones(len(items)), (items, unknowns)), shape=(len(have), len(items)))
    return (items, choices), csr_array(takes[:, choices]), whose


def _relaxed(values: Floats, have: Any, takes: Ints, room: Ints) -> tuple[Floats, Floats]:
    """The best fractional solution: the part of each choice, and the prices of units."""
    from scipy.optimize import linprog

    (items, choices), taken, whose = _constraints(have, takes)
    found = linprog(
        -values[items, choices],
        A_ub=taken,
        b_ub=room,
        A_eq=whose,
        b_eq=np.ones(len(values)),
        method="highs-ds",
    )
    shares = np.zeros_like(values)
    if found.x is None:  # the prices below are worse then, the solution is the same
        shares[:, 0] = 1.0
        return shares, np.zeros(len(room))
    shares[items, choices] = found.x
    return shares, np.maximum(-found.ineqlin.marginals, 0.0)


def _rounded(values: Floats, shares: Floats, takes: Ints, room: Ints) -> Ints:
    """A good whole solution: whole choices stay; of others, the least part that fits is taken."""
    chosen = np.where(shares.max(axis=1) > 1 - ROUND_OFF, shares.argmax(axis=1), 0)
    left = room - takes[:, chosen].sum(axis=1)
    for item in np.flatnonzero(shares.max(axis=1) <= 1 - ROUND_OFF):
        parts = np.flatnonzero(shares[item] > ROUND_OFF)
        parts = parts[(takes[:, parts] <= left[:, None]).all(axis=0)]
        if len(parts):  # the least of them, so that there is room for the others' least
            chosen[item] = parts[takes[:, parts].sum(axis=0).argmin()]
            left -= takes[:, chosen[item]]
    rows = np.arange(len(values))
    while True:  # fill up what is left
        more = takes[:, None, :] - takes[:, chosen][:, :, None]
        fits = (more <= left[:, None, None]).all(axis=0)
        gains = np.where(fits, values - values[rows, chosen][:, None], 0.0)
        item, choice = np.unravel_index(int(gains.argmax()), gains.shape)
        if gains[item, choice] <= SLACK:
            return chosen
        left -= more[:, item, choice]
        chosen[item] = choice
