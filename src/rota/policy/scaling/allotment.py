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
    for job in jobs:
        _check(job)
    needed = sum(job.sizes[0] for job in jobs)
    if needed > gpus:
        raise InputError(
            f"allot: the least sizes of {len(jobs)} jobs need {needed} GPUs, there are {gpus}; let "
            "some jobs wait"
        )
    sizes, complete = _by_hulls(gpus, jobs)
    if complete:
        return sizes
    if gpus * sum(len(job.sizes) for job in jobs) <= effort:
        return _exactly(gpus, jobs)
    return _filled(gpus, jobs, sizes)


def _check(job: Claim) -> None:
    if not job.sizes or len(job.sizes) != len(job.values):
        raise InputError(f"claim: {len(job.sizes)} sizes and {len(job.values)} values; give pairs")
    if job.sizes[0] < 0 or any(a >= b for a, b in pairwise(job.sizes)):
        raise InputError(f"claim: sizes {list(job.sizes)} must ascend from 0 or above")
    if not all(map(isfinite, job.values)):
        raise InputError(f"claim: values {list(job.values)} must be finite numbers")


@lru_cache(maxsize=8192)  # between two decisions few claims change
def _hull(job: Claim) -> tuple[int, ...]:
    """Indices of the claim's sizes on its upper concave hull, as far as it rises."""
    hull = [0]
    for at in range(1, len(job.sizes)):
        while len(hull) > 1 and _slope(job, hull[-2], hull[-1]) < _slope(job, hull[-1], at):
            hull.pop()
        hull.append(at)
    while len(hull) > 1 and _slope(job, hull[-2], hull[-1]) <= 0:
        hull.pop()
    return tuple(hull)


def _slope(job: Claim, old: int, new: int) -> float:
    return (job.values[new] - job.values[old]) / (job.sizes[new] - job.sizes[old])


def _by_hulls(gpus: int, jobs: Sequence[Claim]) -> tuple[list[int], bool]:
    """(sizes, True if every step fitted when its turn came or nothing more had a value)."""
    hulls = [_hull(job) for job in jobs]
    at = [0] * len(jobs)
    steps = [
        (-_slope(job, hull[0], hull[1]), row)
        for row, (job, hull) in enumerate(zip(jobs, hulls, strict=True))
        if len(hull) > 1
    ]
    heapify(steps)
    free, complete = gpus - sum(job.sizes[0] for job in jobs), True
    while steps and free:
        _, row = heappop(steps)
        job, hull = jobs[row], hulls[row]
        old, new = hull[at[row]], hull[at[row] + 1]
        if job.sizes[new] - job.sizes[old] > free:
            complete = False
            continue
        free -= job.sizes[new] - job.sizes[old]
        at[row] += 1
        if at[row] + 1 < len(hull):
            heappush(steps, (-_slope(job, new, hull[at[row] + 1]), row))
    return [job.sizes[hull[i]] for job, hull, i in zip(jobs, hulls, at, strict=True)], complete


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


def _exactly(gpus: int, jobs: Sequence[Claim]) -> list[int]:
    """The best sum, by dynamic programming over jobs and GPUs, with the fewest GPUs."""
    lowest = float("-inf")
    best = [0.0] * (gpus + 1)
    taken: list[list[int]] = []
    for job in jobs:
        after, chosen = [lowest] * (gpus + 1), [0] * (gpus + 1)
        for size, value in zip(job.sizes, job.values, strict=True):
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
