"""Step times that a job's program has predicted, corrected by those that were measured."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, log

PLAN_ERROR = 0.075  # relative standard error: predictions are within 15 % of what is run


def corrected(predicted: Sequence[float | None], measured: Mapping[int, float]) -> dict[int, float]:
    """The time of a step by number of GPUs, wherever one is predicted or measured.

    ``predicted`` has seconds with 1, 2, ... GPUs, None where there are none. A measured time is
    kept. A prediction is multiplied by what was measured over what was predicted: at the nearest
    size that was run, or between two such in proportion on logarithmic scales. With nothing to
    correct them by predictions are kept. ``measured`` may have another unit, such as seconds per
    sample, which all times are in then.
    """
    known = {gpus: seconds for gpus, seconds in enumerate(predicted, 1) if seconds is not None}
    ratios = [
        (gpus, log(measured[gpus] / known[gpus])) for gpus in sorted(measured) if gpus in known
    ]
    times = {gpus: seconds * exp(_ratio(ratios, gpus)) for gpus, seconds in known.items()}
    return {**times, **measured}


def _ratio(ratios: Sequence[tuple[int, float]], gpus: int) -> float:
    """The logarithm of the factor at a number of GPUs."""
    if not ratios:
        return 0.0
    at = bisect_left(ratios, (gpus,))
    if at in (0, len(ratios)):
        return ratios[min(at, len(ratios) - 1)][1]
    (low, at_low), (high, at_high) = ratios[at - 1], ratios[at]
    return at_low + log(gpus / low) / log(high / low) * (at_high - at_low)
