"""The multiple-choice knapsack: one choice for each item, most value within a capacity.

The solution is exact. A Lagrangian bound excludes choices that can't be part of a best solution
(Sinha and Zoltners, *The Multiple-Choice Knapsack Problem*, Operations Research 27, 1979); the rest
is solved by dynamic programming over the capacity.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDS = 60  # of the search for a unit's price; about ten are usual
LEAST_PRICE = 1e-300  # above 0, so that doubling it increases it
STEPS = 20  # between a price that is too low by rounding and one that is high enough
MOST_CELLS = 5e7  # items times capacities, to which dynamic programming goes
SLACK = 1e-9  # possible error of a bound, relative to the value


class Solution(NamedTuple):
    """The number of each item's choice, their value, and an upper bound on any value."""

    choices: list[int]
    value: float
    bound: float


def solve(values: NDArray[np.float64], weights: list[int], capacity: int) -> Solution:
    """The most valuable choice of each item with weights that add up to ``capacity`` at most.

    ``values`` has the shape (items, choices), numbers up to 1e300; minus infinity marks a choice
    that an item does not have. ``weights`` are those of the choices, the same for all items, rising
    from 0: the first choice, which takes nothing, every item has. Of solutions of equal value, the
    one that gives less to later items is returned. The solution may not be the best if some 1,000
    items are undecided and 50,000 units are left to them: its bound says how far it can be off.
    """
    if not len(values):
        return Solution([], 0.0, 0.0)
    sizes = np.asarray(weights)
    prices, bound = _prices(values, sizes, capacity)
    chosen = _feasible(values, sizes, capacity, prices)
    net = values - prices[0] * sizes
    return improved(values, net, bound, chosen, sizes[None, :], np.array([capacity]))


def improved(
    values: NDArray[np.float64],
    net: NDArray[np.float64],
    bound: float,
    chosen: NDArray[Any],
    takes: NDArray[np.int64],
    room: NDArray[np.int64],
) -> Solution:
    """The best solution, given the ``chosen`` choices of one, and a bound on the value of all.

    ``takes`` has the shape (pools, choices), whole numbers: what a choice takes of what has
    ``room``. ``net`` are values less the prices of that, from which the bound follows. Choices that
    would make a solution worse than the chosen one are left out; the others are searched by dynamic
    programming over what is taken. If that is too much work, the chosen solution is returned.
    """
    rows = np.arange(len(values))
    lacking = bound - float(values[rows, chosen].sum())
    loss = net.max(axis=1, keepdims=True) - net
    possible = loss <= lacking + SLACK * max(1.0, abs(bound))
    possible[rows, chosen] = True
    best = _by_room(values, possible, takes, room, chosen)
    total = float(values[rows, best].sum())
    return Solution([int(choice) for choice in best], total, max(bound, total))


def _prices(
    values: NDArray[np.float64], sizes: NDArray[np.int64], capacity: int
) -> tuple[tuple[float, float], float]:
    """The price of a unit of weight, and the least upper bound on the value, which it gives.

    The second price is no lower; at that price, the chosen items surely fit.
    """

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
) -> NDArray[Any]:
    """A good solution within the capacity: the best at a price just high enough, then filled up.

    ``prices`` are one that may be a little too low, by rounding, and one that is high enough.
    """
    rows = np.arange(len(values))
    price, enough = prices
    choices: NDArray[Any] = (values - price * sizes).argmax(axis=1)
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
    return choices


def _by_room(
    values: NDArray[np.float64],
    possible: NDArray[np.bool_],
    takes: NDArray[np.int64],
    room: NDArray[np.int64],
    chosen: NDArray[Any],
) -> NDArray[Any]:
    """The best choices among the possible ones; ``chosen`` if the search is too much work."""
    best_choices: NDArray[Any] = possible.argmax(axis=1)
    is_open = possible.sum(axis=1) > 1
    open_items = np.flatnonzero(is_open)
    left = room - takes[:, best_choices[~is_open]].sum(axis=1)
    shape = tuple(left + 1)
    if len(open_items) * float(np.prod(shape, dtype=float)) > MOST_CELLS:
        return chosen
    best = np.zeros(shape)  # by capacity: the value of the items so far
    taken = np.zeros((len(open_items), *shape), dtype=np.uint16)
    for number, item in enumerate(open_items):
        reached = np.full(shape, -np.inf)
        for choice in np.flatnonzero(possible[item]):
            weights = takes[:, choice]
            if (weights > left).any():
                continue
            after = tuple(slice(weight, None) for weight in weights)
            before = tuple(
                slice(0, end - weight) for end, weight in zip(shape, weights, strict=True)
            )
            with_it = best[before] + values[item, choice]
            better = with_it > reached[after]
            reached[after][better] = with_it[better]
            taken[number][after][better] = choice
        best = reached
    for number in range(len(open_items) - 1, -1, -1):
        found = taken[number][tuple(left)]
        best_choices[open_items[number]] = found
        left -= takes[:, found]
    return best_choices
