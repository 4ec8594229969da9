"""Whether a measured difference is more than noise."""

from collections.abc import Sequence
from functools import lru_cache
from math import inf, sqrt


@lru_cache(maxsize=16)
def normal_quantile(confidence: float) -> float:
    """The point below which a standard normal value lies with this probability."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(confidence)


def student_quantile(confidence: float, freedom: float) -> float:
    """The same of Student's t, by its expansion in 1 / degrees of freedom.

    Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.7.5. Within 1 % at 95 %
    confidence and 4 degrees of freedom or more; below 3 it is too small, so 3 is the least.
    """
    z, freedom = normal_quantile(confidence), max(freedom, 3.0)
    if freedom == inf:
        return z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def surely_above_zero(
    difference: float, parts: Sequence[tuple[float, int]], confidence: float
) -> bool:
    """Welch's test, one-sided: a difference of independent means is above zero.

    ``parts`` are (variance of the mean, number of values) of each mean (Welch, *Biometrika* 34,
    1947). Without any variance, every difference above zero is sure.
    """
    total = sum(variance for variance, _ in parts)
    if total <= 0:
        return difference > 0
    freedom = total**2 / sum(v**2 / max(count - 1, 1) for v, count in parts if v > 0)
    return difference > student_quantile(confidence, freedom) * sqrt(total)
