"""The multiple-choice knapsack over several pools: each choice takes from one of them.

GPUs of several types are such pools. The linear relaxation (HiGHS) gives the price of a unit of
each pool, by which most choices are told not to be part of any best solution, as in
:mod:`rota.policy.knapsack`; what is left is solved exactly by branch and bound (HiGHS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rota.policy.knapsack import SLACK, Solution

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ROUND_OFF = 1e-7  # within which HiGHS keeps constraints
GAP = 1e-6  # of the value, at which it need not search on


def solve_pools(
    values: Floats, weights: Sequence[int], pools: Sequence[int], capacities: Sequence[int]
) -> Solution:
    """The best choice of each item so that the weights from each pool are within its capacity.

    ``values`` has the shape (items, choices); minus infinity marks a choice that an item does not
    have. ``weights`` and ``pools`` are those of the choices, the same for all items; the first
    choice, which takes nothing, every item has. No solution is worth more than 1e-6 more; of
    equals the same one is found each time.
    """
    import numpy as np

    if not len(values):
        return Solution([], 0.0, 0.0)
    takes = np.zeros((len(capacities), len(weights)))
    takes[list(pools), range(len(weights))] = weights
    room = np.array(capacities, dtype=float)
    rows = np.arange(len(values))
    free = values.argmax(axis=1)
    if (takes[:, free].sum(axis=1) <= room).all():
        best = float(values[rows, free].sum())
        return Solution([int(choice) for choice in free], best, best)
    have = values > -np.inf
    shares, prices = _relaxed(values, have, takes, room)
    net = np.where(have, values - prices @ takes, -np.inf)
    highest = net.max(axis=1)
    bound = float(highest.sum() + prices @ room)
    chosen = _rounded(values, shares, takes, room)
    lacking = bound - float(values[rows, chosen].sum())
    possible = highest[:, None] - net <= lacking + SLACK * max(1.0, abs(bound))
    possible[rows, chosen] = True
    best_choices = _exact(values, possible, takes, room, chosen)
    total = float(values[rows, best_choices].sum())
    return Solution([int(choice) for choice in best_choices], total, max(bound, total))


def _constraints(have: Any, takes: Floats) -> tuple[Any, Any, Any]:
    """(items, choices) of the unknowns, and the matrices of what each takes and whose it is."""
    import numpy as np
    from scipy.sparse import csr_array

    items, choices = np.nonzero(have)
    unknowns = np.arange(len(items))
    whose = csr_array((np.ones(len(items)), (items, unknowns)), shape=(len(have), len(items)))
    return (items, choices), csr_array(takes[:, choices]), whose


def _relaxed(values: Floats, have: Any, takes: Floats, room: Floats) -> tuple[Floats, Floats]:
    """What part of each choice the best solution has if they can be divided; units' prices."""
    import numpy as np
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


def _rounded(values: Floats, shares: Floats, takes: Floats, room: Floats) -> Ints:
    """A good whole solution: whole choices as they are, the others the best that fits."""
    import numpy as np

    chosen = np.where(shares.max(axis=1) > 1 - ROUND_OFF, shares.argmax(axis=1), 0)
    left = room - takes[:, chosen].sum(axis=1)
    for item in np.flatnonzero(shares.max(axis=1) <= 1 - ROUND_OFF):
        fits = (takes <= left[:, None]).all(axis=0)
        chosen[item] = np.where(fits, values[item], -np.inf).argmax()
        left -= takes[:, chosen[item]]
    return chosen


def _exact(values: Floats, possible: Any, takes: Floats, room: Floats, chosen: Ints) -> Ints:
    """The best whole solution among the choices that are possible; ``chosen`` is one."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    open_items = np.flatnonzero(possible.sum(axis=1) > 1)
    best = np.where(possible.sum(axis=1) > 1, 0, possible.argmax(axis=1))
    if not len(open_items):
        return best
    left = room - takes[:, best].sum(axis=1)
    (items, choices), taken, whose = _constraints(possible[open_items], takes)
    found = milp(
        -values[open_items[items], choices],
        constraints=[
            LinearConstraint(taken, ub=left),
            LinearConstraint(whose, lb=1.0, ub=1.0),
        ],
        bounds=Bounds(0.0, 1.0),
        integrality=np.ones(len(items)),
        options={"mip_rel_gap": GAP},
    )
    if found.x is None:
        return chosen
    taken_up = found.x > 0.5
    best[open_items[items[taken_up]]] = choices[taken_up]
    rows = np.arange(len(values))
    return best if values[rows, best].sum() >= values[rows, chosen].sum() else chosen
