"""Sets of plans of which none is better than another in everything that counts.

A point of a front has four figures: seconds, GPU-seconds, bytes on the fullest GPU, and the GPUs
that are in use at once. It remembers of which points of which fronts it is made.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SECONDS, GPU_SECONDS, BYTES, GPUS = range(4)
SAME = 1e-12  # part of a figure below which two sums of the same numbers may differ
WEIGHTS = np.geomspace(1e-4, 1e2, 200)
CHUNK = 1 << 20  # points that are looked at together


class Part(NamedTuple):
    """Way to make points of a front: one of ``first`` and one of ``second``, beside it or after."""

    first: "Front"
    second: "Front"
    beside: bool = False


class Front:
    """Points, the fastest first, as columns of ``figures``; each names its part and its two points.

    ``choice`` is (variable, size) for a front of a single point that is no sum.
    """

    __slots__ = ("choice", "figures", "parts", "rows")

    def __init__(
        self,
        figures: Array,
        parts: Sequence[Part] = (),
        rows: NDArray[np.int64] | None = None,
        choice: tuple[int, int] | None = None,
    ) -> None:
        self.figures, self.parts, self.rows, self.choice = figures, parts, rows, choice

    def __len__(self) -> int:
        return self.figures.shape[1]


def point(
    seconds: float,
    gpu_seconds: float,
    held_bytes: float = 0.0,
    gpus: float = 0.0,
    choice: tuple[int, int] | None = None,
) -> Front:
    """A front of one point."""
    return Front(np.array([[seconds], [gpu_seconds], [held_bytes], [gpus]]), choice=choice)


NOTHING = point(0.0, 0.0)


def in_turn(points: Sequence[Front]) -> Front:
    """Fronts of one point, of which one at most is a choice, one after another."""
    figures = sum(each.figures for each in points)
    assert isinstance(figures, np.ndarray)
    figures[GPUS] = max(float(each.figures[GPUS, 0]) for each in points)
    return Front(figures, choice=next((each.choice for each in points if each.choice), None))


def best(parts: Iterable[Part], gpus: float, memory_bytes: float | None, *, width: bool) -> Front:
    """The points of all parts that no other one beats; those that don't fit are left out.

    Memory counts if ``memory_bytes`` limits it, the GPUs in use at once if ``width`` is true.
    """
    listed = [part for part in parts if len(part.first) and len(part.second)]
    found, rows = np.empty((4, 0)), np.empty((3, 0), dtype=np.int64)
    pending: list[tuple[Array, NDArray[np.int64]]] = []
    waiting = 0
    for at, part in enumerate(listed):
        step = max(1, CHUNK // len(part.second))
        for begin in range(0, len(part.first), step):
            figures, points = _sums(part, begin, min(len(part.first), begin + step))
            fits = figures[GPUS] <= gpus
            if memory_bytes is not None:
                fits &= figures[BYTES] <= memory_bytes
            if not fits.all():
                figures, points = figures[:, fits], points[:, fits]
            named = np.vstack([np.full(points.shape[1], at), points])
            pending.append((figures, named))
            waiting += points.shape[1]
            if waiting >= CHUNK:
                found, rows = _merged(found, rows, pending, memory_bytes, width)
                pending, waiting = [], 0
    found, rows = _merged(found, rows, pending, memory_bytes, width)
    if not width:
        found[GPUS] = 0.0
    return Front(found, listed, rows)


def _sums(part: Part, begin: int, end: int) -> tuple[Array, NDArray[np.int64]]:
    """Each of some points of the first front with each of the second, and their indices."""
    first, second = part.first.figures[:, begin:end], part.second.figures
    after = not part.beside
    joined = np.empty((4, first.shape[1], second.shape[1]))
    for row, adds in enumerate((after, True, after, part.beside)):
        operation = np.add if adds else np.maximum
        operation(first[row][:, None], second[row][None, :], out=joined[row])
    points = np.indices((first.shape[1], second.shape[1])).reshape(2, -1)
    points[0] += begin
    return joined.reshape(4, -1), points


def _merged(
    found: Array,
    rows: NDArray[np.int64],
    pending: Sequence[tuple[Array, NDArray[np.int64]]],
    memory_bytes: float | None,
    width: bool,
) -> tuple[Array, NDArray[np.int64]]:
    figures = np.hstack([found, *(each for each, _ in pending)])
    named = np.hstack([rows, *(each for _, each in pending)])
    keep = unbeaten(figures, memory=memory_bytes is not None, width=width)
    return figures[:, keep], named[:, keep]


def thinned(front: Front, most: int) -> Front:
    """Some hundred more than ``most`` points at most: evenly chosen ones, and the best by weights.

    The weights of GPU time are the same for all fronts. So of a sum of fronts the best points by
    each weight are exact, however often fronts are thinned.
    """
    if len(front) <= most:
        return front
    assert front.rows is not None
    even = np.linspace(0, len(front) - 1, most).round().astype(np.int64)
    seconds, gpu_seconds = front.figures[[SECONDS, GPU_SECONDS]]
    weighted = (seconds + WEIGHTS[:, None] * gpu_seconds).argmin(axis=1)
    kept = np.unique(np.concatenate([even, weighted, front.figures.argmin(axis=1)]))
    return Front(front.figures[:, kept], front.parts, front.rows[:, kept])


def unbeaten(figures: Array, *, memory: bool, width: bool) -> NDArray[np.int64]:
    """Columns that no other one beats or equals, in the order of their seconds."""
    counted = [GPU_SECONDS, *([BYTES] if memory else []), *([GPUS] if width else [])]
    order = np.lexsort([*figures[counted[::-1]], figures[SECONDS]])
    if not order.size:
        return order
    if memory and not width:
        return order[_falling_both(figures[GPU_SECONDS][order], figures[BYTES][order])]
    if not width:
        kept = order[_falling(figures[GPU_SECONDS][order])]
        seconds = figures[SECONDS][kept]
        later = np.append(seconds[1:] > seconds[:-1] * (1.0 + SAME), [True])
        return kept[later]  # of equally fast ones the last, which costs least
    keep = np.zeros(order.size, dtype=bool)
    gpus = figures[GPUS][order]
    cost, held = figures[GPU_SECONDS][order], figures[BYTES][order]
    for level in set(gpus.tolist()):
        within = np.flatnonzero(gpus <= level)
        falls = _falling_both(cost[within], held[within]) if memory else _falling(cost[within])
        good = within[falls]
        keep[good[gpus[good] == level]] = True
    return order[keep]


def _falling(cost: Array) -> NDArray[np.bool_]:
    """True where a value is below all before it, by more than what sums lose."""
    least = np.minimum.accumulate(cost)
    keep = np.ones(cost.size, dtype=bool)
    keep[1:] = cost[1:] < least[:-1] * (1.0 - SAME)
    return keep


def _falling_both(cost: Array, held: Array) -> NDArray[np.bool_]:
    """True where no value before is at most as high in both figures, but for what sums lose."""
    costs: list[float] = []  # of the lowest so far, rising; what they hold falls
    holds: list[float] = []
    keep = np.zeros(cost.size, dtype=bool)
    for index, (one, other) in enumerate(zip(cost.tolist(), held.tolist(), strict=True)):
        lower = bisect_right(costs, one * (1.0 + SAME))
        if lower and holds[lower - 1] <= other * (1.0 + SAME):
            continue
        keep[index] = True
        first = last = bisect_left(costs, one)
        while last < len(holds) and holds[last] >= other:
            last += 1
        costs[first:last], holds[first:last] = [one], [other]
    return keep
