"""The multiple-choice knapsack: one choice for each item, most value within a capacity, exactly.

Choices that can't be part of a best solution are told by a Lagrangian bound and left out (Sinha and
Zoltners, *The Multiple-Choice Knapsack Problem*, Operations Research 27, 1979); what is left is
solved by dynamic programming over the capacity.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROUNDS = 60  # of the search for the price of a unit; about ten are usual
LEAST_PRICE = 1e-300  # so that doubling it leads anywhere
STEPS = 20  # from a price that is too low by rounding to one that is high enough
SLACK = 1e-9  # by which a bound may be off, relative to the value


class Solution(NamedTuple):
    """The number of the choice taken for each item, their value, and what no solution exceeds."""

    choices: list[int]
    value: float
    bound: float


def solve(values: NDArray[np.float64], weights: list[int], capacity: int) -> Solution:
    """The best choice of each item so that the weights add up to ``capacity`` at most.

    ``values`` has the shape (items, choices), numbers up to 1e300; minus infinity marks a choice
    that an item does not have. ``weights`` are those of the choices, the same for all items, rising
    from 0: the first choice, which takes nothing, every item has. Of solutions of equal value the
    one is found that gives less to later items.
    """
    import numpy as np

    num_items = len(values)
    if not num_items:
        return Solution([], 0.0, 0.0)
    sizes = np.asarray(weights)
    prices, bound = _prices(values, sizes, capacity)
    chosen, value = _feasible(values, sizes, capacity, prices)
    net = values - prices[0] * sizes
    loss = net.max(axis=1, keepdims=True) - net
    possible = loss <= (bound - value) + SLACK * max(1.0, abs(bound))
    possible[np.arange(num_items), chosen] = True
    open_items = np.flatnonzero(possible.sum(axis=1) > 1)
    fixed = np.argmax(possible, axis=1)
    taken = int(sizes[fixed].sum()) - int(sizes[fixed[open_items]].sum())
    best = fixed.copy()
    if len(open_items):
        masked = np.where(possible[open_items], values[open_items], -np.inf)
        best[open_items] = _by_capacity(masked, sizes, capacity - taken)
    total = float(values[np.arange(num_items), best].sum())
    return Solution([int(choice) for choice in best], total, bound)


def _prices(
    values: NDArray[np.float64], sizes: NDArray[np.int64], capacity: int
) -> tuple[tuple[float, float], float]:
    """What a unit of weight should cost, and the least bound on the value, which it gives.

    Beside the price stands one that is no lower, at which what is chosen fits surely.
    """
    import numpy as np

    def bound(price: float) -> tuple[float, int]:
        net = values - price * sizes
        choices = net.argmax(axis=1)
        best = net[np.arange(len(net)), choices]
        return float(best.sum()) + price * capacity, int(sizes[choices].sum())

    low = 0.0, *bound(0.0)
    if low[2] <= capacity:
        return (0.0, 0.0), low[1]
    price = float(((values[:, 1:] - values[:, :1]) / sizes[1:]).max())  # at which nobody gains
    while (high := (price, *bound(price)))[2] > capacity:
        price = max(2.0 * price, LEAST_PRICE)
    for _ in range(ROUNDS):
        # The bound is convex, and linear in pieces: where the tangents at both ends meet it is no
        # lower than they are.
        (less, at_less, over), (more, at_more, within) = low, high
        price = at_less - at_more + (over - capacity) * less - (within - capacity) * more
        price /= over - within
        if not less < price < more:
            break
        middle = price, *bound(price)
        if middle[2] > capacity:
            low = middle
        else:
            high = middle
        if middle[1] <= at_less - (over - capacity) * (price - less):
            break
    price, least = min(low[:2], high[:2], key=itemgetter(1))
    return (price, high[0]), least


def _feasible(
    values: NDArray[np.float64],
    sizes: NDArray[np.int64],
    capacity: int,
    prices: tuple[float, float],
) -> tuple[NDArray[Any], float]:
    """A good solution within the capacity: the best at a price just high enough, then filled up.

    ``prices`` are one that may be a little too low, by rounding, and one that is high enough.
    """
    import numpy as np

    rows = np.arange(len(values))
    price, enough = prices
    choices = (values - price * sizes).argmax(axis=1)
    for step in range(STEPS):
        if int(sizes[choices].sum()) <= capacity:
            break
        price = enough if step == STEPS - 1 else price * (1 + 1e-9) + LEAST_PRICE
        higher = (values - price * sizes).argmax(axis=1)
        price *= 1 + 1e-6 if (higher == choices).all() else 1
        choices = higher
    room = capacity - int(sizes[choices].sum())
    while room > 0:
        more = sizes[None, :] - sizes[choices][:, None]
        gain = values - values[rows, choices][:, None]
        rate = np.where((more > 0) & (more <= room) & (gain > 0), gain / np.maximum(more, 1), 0.0)
        item, choice = np.unravel_index(int(rate.argmax()), rate.shape)
        if rate[item, choice] <= 0:
            break
        room -= int(more[item, choice])
        choices[item] = choice
    return choices, float(values[rows, choices].sum())


def _by_capacity(
    values: NDArray[np.float64], sizes: NDArray[np.int64], capacity: int
) -> NDArray[Any]:
    """The best choices by dynamic programming over the weight that is taken."""
    import numpy as np

    num_items = len(values)
    best = np.zeros(capacity + 1)  # by weight at most: the value of the items so far
    taken = np.zeros((num_items, capacity + 1), dtype=np.uint16)
    for item, offers in enumerate(values):
        reached = best + offers[0]
        for choice in range(1, len(sizes)):
            size = int(sizes[choice])
            if size > capacity or offers[choice] == -np.inf:
                continue
            with_it = best[: capacity + 1 - size] + offers[choice]
            better = with_it > reached[size:]
            reached[size:][better] = with_it[better]
            taken[item, size:][better] = choice
        best = reached
    choices = np.zeros(num_items, dtype=np.int64)
    left = capacity
    for item in range(num_items - 1, -1, -1):
        choices[item] = taken[item, left]
        left -= int(sizes[choices[item]])
    return choices
