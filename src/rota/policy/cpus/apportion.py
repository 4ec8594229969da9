"""Apportions the cores of one node among the jobs on it.

Cores are told in thousandths and dealt out in quanta: whole cores, or parts of one. Speed by cores
need not be concave (Mohan et al., *Synergy*, OSDI 2022, measured ResNet-18 at 1.75 with 6 cores and
at 2.4 with 9), so that handing out one core after another falls short of the best; an exact
knapsack does not.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf, isfinite
from typing import NamedTuple

from rota.errors import InputError
from rota.policy.scaling.allotment import Claim, allot

CORE = 1000  # thousandths
QUARTER, EIGHTH = 250, 125
FLOORS = ("none", "proportional")
AS_FAST = 1e-9  # relative difference of speeds that is rounding
ALL = 1 << 62  # of the combinations that an exact solution looks at


def quantum_of(each_gpu: float) -> int:
    """Thousandths that cores are dealt out in on a node that has so many for each of its GPUs.

    With two cores or more these are whole ones, with one quarters, with less eighths.
    """
    return CORE if each_gpu >= 2 * CORE else QUARTER if each_gpu >= CORE else EIGHTH


class CoreClaim(NamedTuple):
    """One job's claim on the cores of a node.

    ``share`` is its proportional share in thousandths of a core: the node's cores by the part of
    the node's GPUs that the job holds. ``speeds[k - 1]`` is its speed with k quanta, in any unit;
    the last one holds for more. Without speeds nothing is known of the job, which then has its
    share. ``least`` and ``most`` bound its cores, in thousandths.
    """

    share: int
    speeds: tuple[float, ...] = ()
    weight: float = 1.0
    least: int = 0
    most: int | None = None


def apportion(
    claims: Sequence[CoreClaim],
    cores: int,
    *,
    floor: str = "proportional",
    slack: float = 0.0,
    quantum: int = CORE,
) -> list[int]:
    """Thousandths of a core for each claim, within ``cores`` thousandths, and none of them 0.

    The sum of weight times speed, relative to the speed with the share, is as large as it can be.
    With ``floor=proportional`` no job is slower than with its share by more than ``slack``
    (0.03 is 3 %, for predicted speeds); with ``none`` each job keeps a quantum. Of equal sums, the
    one with fewer cores in use is taken, then the one that gives more to earlier claims. Cores
    without a gain go to jobs that they do not slow down, quantum by quantum to the job with the
    least cores for its share, the earlier one first.

    Floors that do not fit together are given up, then the ``least`` of claims; with fewer quanta
    than claims, every claim gets the same part of the cores. Raises InputError for words and
    numbers that make no sense.
    """
    _check(claims, cores, floor, slack, quantum)
    quanta = cores // quantum
    if quanta < len(claims):
        return [cores // len(claims) for _ in claims]
    ranges = _ranges(claims, quanta, quantum)
    options = _all_options(claims, ranges, quantum, floor, slack)
    if sum(each.sizes[0] for each in options) > quanta:
        options = _all_options(claims, ranges, quantum, None, slack)
    held = allot(quanta, options, effort=ALL)
    most = [
        _last_as_fast(claim.speeds, has, top)
        for claim, has, (_, top) in zip(claims, held, ranges, strict=True)
    ]
    _deal(held, quanta - sum(held), claims, most)
    return [each * quantum for each in held]


def worth(claims: Sequence[CoreClaim], held: Sequence[int], *, quantum: int = CORE) -> float:
    """The sum that :func:`apportion` makes large, for ``held`` thousandths of each claim.

    Claims without speeds count nothing.
    """
    total = 0.0
    for claim, cores in zip(claims, held, strict=True):
        if claim.speeds:
            speed = _speed(claim, cores // quantum)
            total += claim.weight * speed / _speed(claim, claim.share // quantum)
    return total


def fewest(claim: CoreClaim, quanta: int, floor: str, slack: float, quantum: int) -> int:
    """The fewest quanta with which its floor is kept, of so many; its share if nothing is known."""
    options = _options(claim, *_range(claim, quanta, quantum), quantum, floor, slack)
    return options.sizes[0]


def bears(
    claims: Sequence[CoreClaim],
    held: Sequence[int],
    *,
    floor: str = "proportional",
    slack: float = 0.0,
    quantum: int = CORE,
) -> bool:
    """True if with ``held`` thousandths each claim is within its bounds, and above its floor."""
    for claim, cores in zip(claims, held, strict=True):
        most = inf if claim.most is None else max(quantum, claim.most)
        if not claim.least <= cores <= most:
            return False
        share = int(min(claim.share, most))
        if not claim.speeds:
            if cores // quantum < share // quantum:
                return False
        elif floor == "proportional":
            slowest = _speed(claim, share // quantum) * (1 - slack - AS_FAST)
            if _speed(claim, cores // quantum) < slowest:
                return False
    return True


def _check(claims: Sequence[CoreClaim], cores: int, floor: str, slack: float, quantum: int) -> None:
    if floor not in FLOORS:
        raise InputError(f"cpu_floor: {floor!r} must be one of {', '.join(FLOORS)}")
    if not 0 <= slack < 1:
        raise InputError(f"slack: {slack:g} must be a part of a speed, from 0 to below 1")
    if quantum < 1:
        raise InputError(f"quantum: {quantum} thousandths of a core must be above zero")
    if cores < len(claims):
        raise InputError(
            f"cores: {cores} thousandths of a core are not one for each of {len(claims)} jobs"
        )
    for claim in claims:
        if claim.share < 1 or not (isfinite(claim.weight) and claim.weight > 0):
            raise InputError(
                f"claim: share {claim.share} and weight {claim.weight} must be above zero"
            )
        if claim.least < 0 or (claim.most is not None and claim.most < max(claim.least, 1)):
            raise InputError(
                f"claim: {claim.least} to {claim.most} thousandths of a core; give the smaller "
                "number first"
            )


def _range(claim: CoreClaim, quanta: int, quantum: int) -> tuple[int, int]:
    """The fewest and the most quanta within the claim's bounds, of so many."""
    most = quanta if claim.most is None else min(quanta, max(1, claim.most // quantum))
    return min(most, max(1, -(-claim.least // quantum))), most


def _ranges(claims: Sequence[CoreClaim], quanta: int, quantum: int) -> list[tuple[int, int]]:
    """The fewest and the most quanta of each claim; the fewest fit together."""
    found = [_range(claim, quanta, quantum) for claim in claims]
    if sum(least for least, _ in found) > quanta:
        return [(1, most) for _, most in found]
    return found


@lru_cache(maxsize=8192)
def _last_as_fast(speeds: tuple[float, ...], held: int, most: int) -> int:
    """The most quanta up to which the speed does not fall."""
    last = held
    while last < min(most, len(speeds)) and speeds[last] >= speeds[last - 1] * (1 - AS_FAST):
        last += 1
    return most if last >= len(speeds) else last


def _deal(held: list[int], left: int, claims: Sequence[CoreClaim], most: Sequence[int]) -> None:
    """Give ``left`` quanta one by one to the claim that has the least for its share."""
    from heapq import heapify, heappop, heappush

    queue = [
        (quanta / claim.share, row)
        for row, (quanta, claim) in enumerate(zip(held, claims, strict=True))
        if quanta < most[row]
    ]
    heapify(queue)
    while left and queue:
        _, row = heappop(queue)
        held[row] += 1
        left -= 1
        if held[row] < most[row]:
            heappush(queue, (held[row] / claims[row].share, row))


def _all_options(
    claims: Sequence[CoreClaim],
    ranges: Sequence[tuple[int, int]],
    quantum: int,
    floor: str | None,
    slack: float,
) -> list[Claim]:
    return [
        _options(claim, least, most, quantum, floor, slack)
        for claim, (least, most) in zip(claims, ranges, strict=True)
    ]


def _speed(claim: CoreClaim, quanta: int) -> float:
    """The speed with so many quanta; less than one counts as one."""
    return claim.speeds[min(max(quanta, 1), len(claim.speeds)) - 1]


@lru_cache(maxsize=8192)  # curves change with what jobs report, far less often than decisions
def _options(
    claim: CoreClaim, least: int, most: int, quantum: int, floor: str | None, slack: float
) -> Claim:
    """The numbers of quanta worth having: each more than the one before, and faster.

    Without a ``floor``, a claim of unknown speed does not insist on its share either.
    """
    share = min(most, max(least, claim.share // quantum))
    if not claim.speeds:
        return Claim((share if floor else least,), (0.0,))
    if not (isfinite(sum(claim.speeds)) and min(claim.speeds) > 0):
        raise InputError(f"claim: speeds {list(claim.speeds)} must be finite and above zero")
    base = _speed(claim, claim.share // quantum)
    slowest = _speed(claim, share) * (1 - slack - AS_FAST) if floor == "proportional" else 0.0
    sizes, values, enough = list[int](), list[float](), slowest
    known = claim.speeds[least - 1 : most] or claim.speeds[-1:]
    for quanta, speed in enumerate(known, least):
        if speed >= enough:
            sizes.append(quanta)
            values.append(claim.weight * speed / base)
            enough = speed * (1 + AS_FAST)
    return Claim(tuple(sizes), tuple(values))
