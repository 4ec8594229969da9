"""Finds the most valuable size on a job's scaling curve, and tests whether noise explains it."""

from collections.abc import Sequence
from functools import cached_property

from rota.policy.scaling.condition import Condition, Outlook
from rota.policy.scaling.curve import ScalingCurve, fit_curve
from rota.policy.scaling.observations import Observations
from rota.policy.scaling.planned import PlannedCurve, covers
from rota.policy.scaling.significance import normal_quantile, surely_above_zero

_TIE = 1e-9  # worths closer than this, in units, are equal


class Comparison:
    """The present worth of every size in ``sizes``, and of the measured sizes.

    ``predicted`` are step times by the job's program; they make the curve if they cover all sizes.
    """

    def __init__(
        self,
        condition: Condition,
        sizes: Sequence[int],
        observations: Observations,
        outlook: Outlook,
        confidence: float,
        predicted: Sequence[float | None] = (),
    ) -> None:
        self.condition, self.sizes, self.outlook = condition, sizes, outlook
        self.measured = observations
        self.confidence = confidence
        self.predicted = covers(predicted, sizes)
        self.curve: ScalingCurve | PlannedCurve = (
            PlannedCurve(observations, predicted) if self.predicted else fit_curve(observations)
        )

    @cached_property
    def worths(self) -> dict[int, float]:
        """Worth by size."""
        sizes = sorted({*self.sizes, *self.measured.sizes})
        points = [(size, self.curve.rate(size)) for size in sizes]
        worths = self.condition.worths(points, self.outlook)
        return dict(zip(sizes, worths, strict=True))

    def unit(self, size: int) -> float:
        """The worth that counts as 1 for a job of this size."""
        return self.condition.unit((size, self.curve.rate(size)), self.outlook)

    def best(self, candidates: Sequence[int]) -> int:
        """The candidate of most worth; of equal ones, the smallest."""
        most = max(self.worths[size] for size in candidates)
        near = _TIE * self.unit(candidates[0])
        return next(size for size in sorted(candidates) if self.worths[size] >= most - near)

    def gain(self, old: int, new: int, pause_s: float) -> float:
        """Gain of going from ``old`` to ``new`` after a pause of ``pause_s`` seconds, in units."""
        lost = self.condition.pause((new, self.curve.rate(new)), pause_s, self.outlook)
        return (self.worths[new] - self.worths[old] - lost) / self.unit(old)

    def sure(self, old: int, new: int) -> bool:
        """True if ``new`` is worth more than ``old``, beyond noise.

        Of two measured sizes Welch's test decides if the curve misses a measured size; else the
        fit does, which knows more than two sizes alone.
        """
        difference = self.worths[new] - self.worths[old]
        known = self.measured.sizes
        if not (self.curve.misfit and old in known and new in known):
            return difference > self.margin(old, new)
        parts = []
        for size in (old, new):
            here = self.measured[size]
            error = self._slope(size) * here.error / here.mean
            parts.append((error**2, here.steps))
        return surely_above_zero(difference, parts, self.confidence)

    def margin(self, old: int, new: int) -> float:
        """Error of the difference in worth at the confidence, caused by the curve."""
        parts = [(old, -self._slope(old)), (new, self._slope(new))]
        return normal_quantile(self.confidence) * self.curve.contrast_error(parts)

    def _slope(self, size: int) -> float:
        return self.condition.sensitivity((size, self.curve.rate(size)), self.outlook)
