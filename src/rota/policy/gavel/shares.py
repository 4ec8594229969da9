"""The share of time that each gang gets on each GPU type, by the chosen notion of fairness.

A share is the fraction of wall time that a job runs on GPUs of one type; a job's shares add up to
1 at most, and the shares of all jobs, times their GPUs, to no more GPUs than there are of the
type. The programs are Gavel's (Narayanan et al., OSDI 2020, sections 4.1 and 4.2), solved by HiGHS.
Equal gangs get equal shares, and of all solutions that are as fair the one that hands out the
least GPU time is taken, so that the result hangs on no solver's choice among equals.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rota.errors import PlanError

Shares = tuple[float, ...]  # one per GPU type
# Beyond this many decimals shares are noise of the solver.
DECIMALS = 9
# What the second program gives up so that rounding can't make it infeasible.
SLACK = 1e-7
CLOSE = 1e-6  # distance of the level from 1 at which a finish-time ratio counts as the least
MOST_PROGRAMS = 50


class Gang(NamedTuple):
    """A job in the programs: ``speeds`` has one per GPU type, 0 where it can't run."""

    gpus: int
    weight: float
    speeds: tuple[float, ...]


class Clock(NamedTuple):
    """A job's times: since arrival, left at speed 1, and in all on an equal part of the GPUs."""

    elapsed_s: float
    left_s: float
    alone_s: float


def least_shares(gangs: Sequence[Gang], gpus: Sequence[int]) -> list[Shares]:
    """The shares with the largest minimum of GPUs times time per weight, if GPUs are alike.

    GPUs that one gang can't use go to the others, so that the second least is the largest too, and
    so on (water-filling). Each gang's time is spread over the GPU types by their number of GPUs.
    """
    total = sum(gpus)
    time, left = [0.0] * len(gangs), float(total)
    weights = sum(gang.weight for gang in gangs)
    # Those that a full-time run satisfies first leave the rest to the others.
    for i in sorted(range(len(gangs)), key=lambda i: (gangs[i].gpus / gangs[i].weight, i)):
        gang = gangs[i]
        used = max(0.0, min(float(gang.gpus), left * gang.weight / weights))
        time[i] = used / gang.gpus
        left, weights = left - used, weights - gang.weight
    return [
        tuple(
            round(time[i] * count / total, DECIMALS) if gang.speeds[t] > 0 else 0.0
            for t, count in enumerate(gpus)
        )
        for i, gang in enumerate(gangs)
    ]


def fastest_shares(gangs: Sequence[Gang], gpus: Sequence[int]) -> list[Shares]:
    """The shares with the largest minimum of GPUs times normalised speed per weight.

    A job's speed counts relative to what it would have if its time were spread over all GPUs alike
    (OSDI 2020, section 4.1). Every gang can run on at least one type.
    """
    total = sum(gpus)
    kinds = Counter(gangs)
    needs = [
        gang.weight
        * sum(speed * count for speed, count in zip(gang.speeds, gpus, strict=True))
        / total
        / gang.gpus
        for gang in kinds
    ]
    counts = list(kinds.values())
    level, shares, _ = _program(list(kinds), counts, gpus, needs, None)
    lean = _program(list(kinds), counts, gpus, needs, level * (1 - SLACK))[1] or shares
    found = dict(zip(kinds, lean, strict=True))
    return [found[gang] for gang in gangs]


def equal_split(gangs: Sequence[Gang], gpus: Sequence[int]) -> list[float]:
    """Each gang's speed if every job had the same part of all GPUs (OSDI 2020, section 4.2)."""
    speeds = []
    for gang in gangs:
        time = [count / len(gangs) / gang.gpus for count in gpus]
        most = max(1.0, sum(time))
        speeds.append(
            sum(speed * part for speed, part in zip(gang.speeds, time, strict=True)) / most
        )
    return speeds


def timely_shares(
    gangs: Sequence[Gang], clocks: Sequence[Clock], gpus: Sequence[int]
) -> list[Shares]:
    """The shares with the least largest finish-time ratio.

    A job's ratio is the time from its arrival to its end under these shares, over ``alone_s``
    (Themis, NSDI 2020, section 4.1; as a program in Gavel, section 4.2). For a given ratio, the
    speed that each job needs is a number, and a linear program tells if all can have it. Each
    program makes all jobs faster than their needs by the same factor; the resulting ratio is tried
    next, until it stops improving.
    """
    counts, needs, level = [1] * len(gangs), list[float](), 1.0
    least = max(clock.elapsed_s / clock.alone_s for clock in clocks)
    ratio = max(
        (clock.elapsed_s + clock.left_s / speed) / clock.alone_s
        for clock, speed in zip(clocks, equal_split(gangs, gpus), strict=True)
    )
    for _ in range(MOST_PROGRAMS):
        left = [ratio * clock.alone_s - clock.elapsed_s for clock in clocks]
        needs = [clock.left_s / seconds for clock, seconds in zip(clocks, left, strict=True)]
        level, shares, prices = _program(gangs, counts, gpus, needs, None)
        if abs(level - 1) <= CLOSE:
            break
        # The level is concave in the ratio, so that Newton's steps close in on it from below.
        slope = sum(
            price * level * need * clock.alone_s / seconds
            for price, need, clock, seconds in zip(prices, needs, clocks, left, strict=True)
        )
        step = ratio - (level - 1) / slope if slope > 0 else least
        ratio = step if step > least else (ratio + least) / 2
    return _program(gangs, counts, gpus, needs, level * (1 - SLACK))[1] or shares


def _program(
    gangs: Sequence[Gang],
    counts: Sequence[int],
    gpus: Sequence[int],
    needs: Sequence[float],
    level: float | None,
) -> tuple[float, list[Shares], list[float]]:
    """The level, shares that give each gang ``level`` times its needed speed, and slopes.

    ``counts`` is the number of gangs of each kind. If ``level`` is None, the largest possible level
    is found; else the shares hand out the least GPU time for it, and are empty if there are none.
    The slopes are the level's relative decrease per unit of each gang's need. Raises PlanError if
    HiGHS finds no solution where there must be one.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    pairs = [
        (i, t)
        for i, gang in enumerate(gangs)
        for t, count in enumerate(gpus)
        if gang.speeds[t] > 0 and gang.gpus <= count
    ]
    m, entries = len(gangs), list[tuple[int, int, float]]()
    for column, (i, t) in enumerate(pairs):
        entries.append((i, column, -gangs[i].speeds[t]))  # speed: at least what it needs
        entries.append((m + i, column, 1.0))  # time: no more than there is
        entries.append((2 * m + t, column, float(gangs[i].gpus * counts[i])))  # GPUs of the type
    if level is None:
        entries += [(i, len(pairs), need) for i, need in enumerate(needs)]
        cost, floor = [0.0] * len(pairs) + [-1.0], [0.0] * m
    else:
        cost = [float(gangs[i].gpus * counts[i]) for i, _ in pairs]
        floor = [-level * need for need in needs]
    lines, columns, values = zip(*entries, strict=True)
    limits = [*floor, *[1.0] * m, *map(float, gpus)]
    matrix = coo_array((values, (lines, columns)), shape=(len(limits), len(cost))).tocsr()
    solution = linprog(cost, A_ub=matrix, b_ub=limits, bounds=(0, None), method="highs-ds")
    if solution.x is None:
        if level is not None:
            return level, [], []
        raise PlanError(f"HiGHS found no fair shares for {m} jobs: {solution.message}")
    shares = [[0.0] * len(gpus) for _ in gangs]
    for (i, t), share in zip(pairs, solution.x, strict=False):
        shares[i][t] = round(min(1.0, max(0.0, float(share))), DECIMALS)
    best = float(solution.x[-1]) if level is None else level
    prices = [-float(price) for price in solution.ineqlin.marginals[:m]]
    return best, [tuple(each) for each in shares], prices
