"""Distributes GPUs among elastic jobs, by the value of one more GPU to each."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from rota.errors import InputError
from rota.policy.scaling.condition import UNKNOWN, Condition, Outlook

ROUNDING = 1e-9  # relative, of sums of values
EFFORT = 200_000  # size by GPU combinations that an exact solution may look at


class Claim(NamedTuple):
    """The sizes that one job may have, ascending, and the value of each.

    The first size is what it must have; 0 is a size for a job that may wait. Values of all jobs
    are added up, so they must have one unit.
    """

    sizes: tuple[int, ...]
    values: tuple[float, ...]


def claim(
    sizes: Sequence[int],
    rate: Callable[[int], float],
    condition: Condition | None = None,
    outlook: Outlook = UNKNOWN,
    *,
    weight: float = 1.0,
) -> Claim:
    """A job's claim by its scaling curve; ``rate`` gives samples per second by size.

    Without a condition a value is throughput relative to the smallest size above 0, times
    ``weight``: the sum over jobs counts how much faster than their least they run, and a job that
    scales takes from one that does not. With a condition it is the size's worth:
    ``ThroughputScaling(0)`` makes it ln(throughput), so that doubling any job counts alike;
    :class:`UtilityOverCost` makes it money. A size of 0 has no worth then, and may not be there.
    Raises InputError for sizes that don't ascend.
    """
    sizes = tuple(sizes)
    positive = [size for size in sizes if size]
    if not positive or min(positive) < 1 or list(sizes) != sorted(set(sizes)):
        raise InputError(f"claim: sizes {list(sizes)} must ascend, and have one above zero")
    if condition is None:
        least = rate(positive[0])
        return Claim(sizes, tuple(weight * rate(size) / least if size else 0.0 for size in sizes))
    if 0 in sizes:
        raise InputError("claim: size 0 has no worth under a condition; leave it out")
    worths = condition.worths([(size, rate(size)) for size in sizes], outlook)
    return Claim(sizes, tuple(weight * worth for worth in worths))


def allot(gpus: int, jobs: Sequence[Claim], *, effort: int = EFFORT) -> list[int]:
    """The sizes within ``gpus`` that make the sum of values large.

    Greedy by value per GPU along the upper concave hull of each claim. The sum is the best possible
    if each step of the hulls that has a value fits when its turn comes, as with concave values and
    every size allowed. Otherwise the sum is short of the best by less than the value of the first
    step that does not fit; if ``effort`` suffices (jobs' sizes times GPUs), the best is then found
    exactly instead. No GPU is given without a gain; of equal steps the earlier job's is taken.
    Raises InputError if the least sizes alone need more GPUs.
    """
    climbs = [_climb(job) for job in jobs]
    needed = sum(job.sizes[0] for job in jobs)
    if needed > gpus:
        raise InputError(
            f"allot: the least sizes of {len(jobs)} jobs need {needed} GPUs, there are {gpus}; let "
            "some jobs wait"
        )
    sizes, missed = _by_hulls(gpus, jobs, climbs)
    if missed is None:
        return sizes
    if gpus * sum(len(job.sizes) for job in jobs) <= effort:
        return _exactly(gpus, _contenders(gpus, jobs, sizes, missed))
    return _filled(gpus, jobs, sizes)


def _check(job: Claim) -> None:
    if not job.sizes or len(job.sizes) != len(job.values):
        raise InputError(f"claim: {len(job.sizes)} sizes and {len(job.values)} values; give pairs")
    if job.sizes[0] < 0 or any(a >= b for a, b in pairwise(job.sizes)):
        raise InputError(f"claim: sizes {list(job.sizes)} must ascend from 0 or above")
    if not all(map(isfinite, job.values)):
        raise InputError(f"claim: values {list(job.values)} must be finite numbers")


@lru_cache(maxsize=8192)  # between two decisions few claims change
def _climb(job: Claim) -> tuple[tuple[float, int], ...]:
    """The steps up the claim's concave hull, as far as it rises: value for each GPU, size after it.

    Raises InputError for a claim that makes no sense.
    """
    _check(job)
    hull = [0]
    for at in range(1, len(job.sizes)):
        while len(hull) > 1 and _slope(job, hull[-2], hull[-1]) < _slope(job, hull[-1], at):
            hull.pop()
        hull.append(at)
    while len(hull) > 1 and _slope(job, hull[-2], hull[-1]) <= 0:
        hull.pop()
    return tuple((_slope(job, old, new), job.sizes[new]) for old, new in pairwise(hull))


def _slope(job: Claim, old: int, new: int) -> float:
    return (job.values[new] - job.values[old]) / (job.sizes[new] - job.sizes[old])


def _by_hulls(
    gpus: int, jobs: Sequence[Claim], climbs: Sequence[tuple[tuple[float, int], ...]]
) -> tuple[list[int], float | None]:
    """The sizes, and the slope of the first step that did not fit though it had a value."""
    sizes = [job.sizes[0] for job in jobs]
    steps = [(-climb[0][0], row, 0) for row, climb in enumerate(climbs) if climb]
    heapify(steps)
    free, missed = gpus - sum(sizes), None
    while steps and free:
        slope, row, at = heappop(steps)
        size = climbs[row][at][1]
        if size - sizes[row] > free:
            missed = -slope if missed is None else missed
            continue
        free -= size - sizes[row]
        sizes[row] = size
        if at + 1 < len(climbs[row]):
            heappush(steps, (-climbs[row][at + 1][0], row, at + 1))
    return sizes, missed


def _contenders(
    gpus: int, jobs: Sequence[Claim], sizes: Sequence[int], slope: float
) -> list[list[tuple[int, float]]]:
    """The sizes, and values, of each job that may be part of a sum no less than that of ``sizes``.

    At a price of ``slope`` for a GPU no sum exceeds the worth of all GPUs and the best surplus of
    each job. A size whose surplus falls short of its job's best by more than ``sizes`` fall short
    of that is part of no better sum (reduced costs; Dantzig's bound of multiple-choice knapsacks).
    """
    surplus = [
        [value - slope * size for size, value in zip(job.sizes, job.values, strict=True)]
        for job in jobs
    ]
    best = [max(each) for each in surplus]
    bound = slope * gpus + sum(best)
    reached = sum(job.values[job.sizes.index(size)] for job, size in zip(jobs, sizes, strict=True))
    scale = slope * gpus + sum(max(map(abs, job.values)) for job in jobs)
    short = bound - reached + ROUNDING * scale
    return [
        [
            (size, value)
            for size, value, left in zip(job.sizes, job.values, each, strict=True)
            if most - left <= short
        ]
        for job, each, most in zip(jobs, surplus, best, strict=True)
    ]


def _filled(gpus: int, jobs: Sequence[Claim], sizes: list[int]) -> list[int]:
    """The sizes with left-over GPUs given to jobs that gain most per GPU, off the hulls."""
    free = gpus - sum(sizes)
    while free:
        best = (0.0, -1, 0)
        for row, job in enumerate(jobs):
            old = job.sizes.index(sizes[row])
            for new in range(old + 1, bisect_right(job.sizes, sizes[row] + free)):
                slope = _slope(job, old, new)
                if slope > best[0]:
                    best = (slope, row, job.sizes[new])
        _, row, size = best
        if row < 0:
            break
        free -= size - sizes[row]
        sizes[row] = size
    return sizes


def _exactly(gpus: int, jobs: Sequence[Sequence[tuple[int, float]]]) -> list[int]:
    """The best sum, by dynamic programming over jobs and GPUs, with the fewest GPUs.

    A job has its sizes and their values.
    """
    lowest = float("-inf")
    best = [0.0] * (gpus + 1)
    taken: list[list[int]] = []
    for job in jobs:
        after, chosen = [lowest] * (gpus + 1), [0] * (gpus + 1)
        for size, value in job:
            for held in range(size, gpus + 1):
                total = best[held - size] + value
                if total > after[held]:
                    after[held], chosen[held] = total, size
        best = after
        taken.append(chosen)
    held, sizes = best.index(max(best)), []
    for chosen in reversed(taken):
        sizes.append(chosen[held])
        held -= chosen[held]
    return sizes[::-1]
