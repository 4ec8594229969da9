"""Numbers of cores at which to measure a job's step time, so that few measurements tell the curve.

Designs that are made beforehand suit curves that are a sum of known terms (Ernest, NSDI 2016):
:func:`best_design` is for whoever profiles a program before it is queued, all runs at once. Where a
curve saturates is unknown beforehand, and a running job is measured with cores that others lend:
trials ask :func:`next_cores`, which chooses one number at a time and may stop after each.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations_with_replacement
from math import log

from rota.errors import InputError
from rota.predict.core_points import CorePoint, best_known, usable
from rota.predict.cpu_demand import fit

TERMS: dict[str, Callable[[float], float]] = {  # of step times by cores
    "1": lambda cores: 1.0,
    "1/c": lambda cores: 1.0 / cores,
    "c": lambda cores: float(cores),
    "log c": lambda cores: log(cores),
}
CRITERIA = ("A", "D")
MOST_DESIGNS = 1_000_000
EQUAL = 1e-9  # relative difference of criteria that is rounding
PRECISE = 0.05  # relative error of predictions that is small enough
NEAR = 1.2  # times as many cores or fewer tell nothing new
MUCH_SLOWER = 1.25  # times as long as with the share; nobody wants to know it more exactly
MOST_PROBES = 4  # numbers of cores at which one GPU type is measured


def best_design(
    candidates: Sequence[float], runs: int, terms: Sequence[str], criterion: str
) -> tuple[float, ...]:
    """The numbers of cores to measure in so many runs, ascending; one may come more than once.

    ``D`` makes the determinant of the information matrix largest, ``A`` the sum of the variances of
    the terms least, in units of the terms' means over the candidates. All designs are looked at; of
    equal ones, the first in ascending order is taken. Raises InputError for too few runs or
    candidates, or too many designs to look at.
    """
    import numpy as np

    cores = sorted(set(candidates))
    _check(cores, runs, terms, criterion)
    table = np.array([[TERMS[term](each) for term in terms] for each in cores])
    table /= table.mean(axis=0)
    designs = list(combinations_with_replacement(range(len(cores)), runs))
    rows = table[np.array(designs)]
    information = rows.transpose(0, 2, 1) @ rows
    sizes = np.linalg.det(information)
    told = np.flatnonzero(sizes > EQUAL * sizes.max())  # the others leave a term unknown
    if criterion == "D":
        worth = sizes[told]
    else:
        worth = 1 / np.trace(np.linalg.inv(information[told]), axis1=1, axis2=2)
    first = int(np.flatnonzero(worth >= worth.max() * (1 - EQUAL))[0])
    return tuple(cores[at] for at in designs[told[first]])


def _check(cores: Sequence[float], runs: int, terms: Sequence[str], criterion: str) -> None:
    from math import comb

    if criterion not in CRITERIA:
        raise InputError(f"criterion: {criterion!r} must be one of {', '.join(CRITERIA)}")
    unknown = [term for term in terms if term not in TERMS]
    if unknown or not terms:
        raise InputError(f"terms: {list(terms)} must be some of {', '.join(TERMS)}")
    if cores and cores[0] <= 0:
        raise InputError(f"candidates: {cores[0]:g} cores must be above zero")
    if runs < len(terms) or len(cores) < len(terms):
        raise InputError(
            f"design: {runs} runs at {len(cores)} numbers of cores do not tell {len(terms)} terms; "
            "give one of each at least"
        )
    designs = comb(len(cores) + runs - 1, runs)
    if designs > MOST_DESIGNS:
        raise InputError(
            f"design: {runs} runs at {len(cores)} numbers of cores are {designs} designs; give "
            "fewer candidates"
        )


def next_cores(
    points: Iterable[CorePoint],
    candidates: Sequence[float],
    share: float,
    gpu_type: str = "",
) -> float | None:
    """The number of cores for each GPU at which to measure next, None if enough is known.

    First the most of the candidates, then the one nearest to the proportional ``share``; then the
    one at which the curves that agree with the points differ most, which is about where the job
    saturates, above the share as long as one there is unsure; until each candidate is predicted
    within 5 %, or four were measured. If the curve on another GPU type is known, one point on this
    one is enough. Raises InputError without candidates.
    """
    if not candidates:
        raise InputError("candidates: there is no number of cores to measure at; give one")
    kept, _ = usable(points)
    measured = {point.cores for point in kept if point.gpu_type == gpu_type}
    most = max(candidates)
    if not measured:
        return most
    if best_known(kept) not in (gpu_type, None):
        return None
    if most not in measured:
        return most
    rest = [
        cores
        for cores in sorted(set(candidates))
        if not any(1 / NEAR < cores / known < NEAR for known in measured)
    ]
    if not rest or len(measured) >= MOST_PROBES:
        return None
    found, _ = fit(kept)
    if found is None:
        return min(rest, key=lambda cores: (abs(cores - share), cores))
    bearable = MUCH_SLOWER * found.demand.step_s(share, gpu_type)
    rest = [c for c in rest if c > share or found.demand.step_s(c, gpu_type) <= bearable]
    errors = dict(zip(rest, found.errors(rest, gpu_type), strict=True))
    unsure = [cores for cores in rest if errors[cores] > PRECISE]
    above = [cores for cores in unsure if cores > share]
    return max(above or unsure, key=lambda cores: errors[cores], default=None)
