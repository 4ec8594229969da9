"""A scaling curve that a job's program has predicted, corrected by what was measured."""

from collections.abc import Sequence
from math import sqrt

from rota.policy.scaling.curve import relative_errors
from rota.policy.scaling.observations import Observations
from rota.predict.planned_steps import PLAN_ERROR, corrected


class PlannedCurve:
    """Throughput by number of workers: measured, or else predicted (:func:`corrected`).

    ``predicted`` are seconds of a step with 1, 2, ... workers. Without a measurement rates are in
    steps per second, else in what was measured. ``misfit`` says, as of a fitted curve, that
    measured sizes are to be compared by what was measured there, which here is always so.
    """

    misfit = True
    spare = 0

    def __init__(self, observations: Observations, predicted: Sequence[float | None]) -> None:
        measured = {size: 1.0 / observations[size].mean for size in observations.sizes}
        self._seconds = corrected(predicted, measured)
        self._errors = relative_errors(observations)

    def rate(self, workers: int) -> float:
        """Samples, or steps, per second. Raises KeyError for a size of which nothing is known."""
        return 1.0 / self._seconds[workers]

    def contrast_error(self, parts: Sequence[tuple[int, float]]) -> float:
        """Standard error of the sum of ln(rate) at these sizes, each times its weight."""
        errors = (weight * self._errors.get(size, PLAN_ERROR) for size, weight in parts)
        return sqrt(sum(error**2 for error in errors))


def covers(predicted: Sequence[float | None], sizes: Sequence[int]) -> bool:
    """True if a step is predicted at each of these sizes."""
    return all(size <= len(predicted) and predicted[size - 1] is not None for size in sizes)
