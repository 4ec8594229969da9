"""Tests if a measured difference is more than noise."""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt


@lru_cache(maxsize=16)
def normal_quantile(confidence: float) -> float:
    """The point below which a standard normal value lies with this probability."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(confidence)


def surely_above_zero(
    difference: float, parts: Sequence[tuple[float, int]], confidence: float
) -> bool:
    """Welch's test, one-sided: a difference of independent means is above zero.

    ``parts`` are (variance of the mean, number of values) of each mean (Welch, *Biometrika* 34,
    1947). Without any variance, every difference above zero is sure.
    """
    from scipy.special import stdtr

    total = sum(variance for variance, _ in parts)
    if total <= 0:
        return difference > 0
    freedom = total**2 / sum(v**2 / max(count - 1, 1) for v, count in parts if v > 0)
    return bool(stdtr(freedom, difference / sqrt(total)) > confidence)
