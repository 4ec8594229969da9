"""Step times measured at numbers of CPU cores, and the check that a model can be fitted to them."""

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

from rota.model.figure import rounded
from rota.predict.step_points import LEAST_S, MOST_S

LEAST_CORES, MOST_CORES = 0.01, 4096.0
NOISE = 0.02  # relative: by which step times that were measured well differ still
FALLS = 1.1  # times as long with more cores is more than noise


class CorePoint(NamedTuple):
    """Seconds of a step with so many CPU cores for each GPU.

    All points of a fit are of one job and one phase of it.
    """

    cores: float
    step_s: float
    gpu_type: str = ""

    def __str__(self) -> str:
        cores = f"{self.cores:g} core" + "s" * (self.cores != 1)
        return f"{cores} on {self.gpu_type}" if self.gpu_type else cores


def usable(points: Iterable[CorePoint]) -> tuple[list[CorePoint], list[str]]:
    """The points that can be fitted, and the faults of the others."""
    kept, dropped = [], []
    for point in points:
        if not LEAST_CORES <= point.cores <= MOST_CORES:
            dropped.append(f"{point}: no number of cores from {LEAST_CORES:g} to {MOST_CORES:g}")
        elif not LEAST_S <= point.step_s <= MOST_S:
            dropped.append(f"{point}: the step took {point.step_s} s")
        else:
            kept.append(point)
    return kept, dropped


def best_known(points: Iterable[CorePoint]) -> str | None:
    """The GPU type measured at the most numbers of cores; None if it is one number only.

    Of equal types it is the first in the alphabet.
    """
    counts: dict[str, set[float]] = {}
    for point in points:
        counts.setdefault(point.gpu_type, set()).add(point.cores)
    if not counts:
        return None
    best = min(counts, key=lambda each: (-len(counts[each]), each))
    return best if len(counts[best]) > 1 else None


def falling(points: Iterable[CorePoint]) -> list[str]:
    """Pairs of points of which the one with more cores took longer, the greatest ratio first."""
    found = []
    ordered = sorted(points)
    for fewer, more in combinations(ordered, 2):
        ratio = more.step_s / fewer.step_s
        if fewer.gpu_type == more.gpu_type and fewer.cores < more.cores and ratio > FALLS:
            found.append((ratio, f"{more} took {rounded(ratio, 2)} times as long as {fewer}"))
    return [words for _, words in sorted(found, key=lambda pair: -pair[0])]
