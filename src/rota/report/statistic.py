"""Averages, percentiles and confidence intervals."""

from collections.abc import Sequence
from math import ceil, fsum, sqrt
from typing import NamedTuple

CONFIDENCE = 0.95
FEWEST_DRAWN = 3  # runs; of two, the interval is 12.7 standard errors wide on either side


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean, or None of nothing."""
    return fsum(values) / len(values) if values else None


def median(rising: Sequence[float]) -> float | None:
    """The middle value, or the mean of the two middle ones; None of nothing."""
    if not rising:
        return None
    middle = len(rising) // 2
    return rising[middle] if len(rising) % 2 else (rising[middle - 1] + rising[middle]) / 2


def percentile(rising: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least ``percent`` % of the values do not exceed; None of nothing.

    This is the nearest rank, ``ceil(percent / 100 * n)``, counted from 1.
    """
    if not rising:
        return None
    return rising[max(1, ceil(percent * len(rising) / 100)) - 1]


class Interval(NamedTuple):
    """A mean over ``runs`` runs, and half the width of its confidence interval.

    ``half_width`` is None where there are fewer than two runs.
    """

    mean: float
    half_width: float | None
    runs: int


def interval(values: Sequence[float | None]) -> Interval | None:
    """The mean of the known values, with its 95 % interval by Student's t; None without any.

    The half width is ``t(0.975, n - 1) * s / sqrt(n)``, where s is the sample's standard deviation.
    """
    known = [value for value in values if value is not None]
    centre, count = mean(known), len(known)
    if centre is None:
        return None
    if count < 2:
        return Interval(centre, None, count)
    deviation = sqrt(fsum((value - centre) ** 2 for value in known) / (count - 1))
    return Interval(centre, student_t(count - 1) * deviation / sqrt(count), count)


def student_t(freedom: int) -> float:
    """The quantile of Student's t that bounds a two-sided 95 % interval."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
