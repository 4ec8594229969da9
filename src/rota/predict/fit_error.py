"""Errors of the predictions of a fitted step-time model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.predict.step_points import Point
from rota.predict.step_slopes import GAMMA, TINY, Places

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

LEAST = 0.05  # relative: the model itself is no better
# What each term may be off before anything is measured, in units of the time of computing.
SPREAD = (0.5, 0.5, 2.0, 0.05, 0.5, 0.05, 1.0)
EXCHANGE = range(2, 6)


class FitError(NamedTuple):
    """The relative standard error of predicted step times.

    That of the measurements, by which they differ from the model and 5 % at least, and that of the
    terms, which is their covariance at the minimum (Gauss-Newton, with a wide normal prior on each
    term) carried to where the prediction is. A term that no measurement tells of keeps its prior,
    so that the error grows with the distance from what was measured.
    """

    terms: Array
    spread: Array  # [7] prior standard deviations
    covariance: Array  # [7, 7] in units of the spread
    residual: float

    @classmethod
    def of(cls, terms: Array, free: Array, points: Sequence[Point]) -> FitError:
        """The error of ``terms`` fitted to ``points``; ``free`` terms were not fixed beforehand."""
        import numpy as np

        places = Places([point[:3] for point in points])
        slopes = places.slopes(terms)
        timed = np.array([point.compute_s is not None for point in points])
        steps = np.log([point.step_s for point in points])
        computing = np.log([p.compute_s for p in points if p.compute_s is not None])
        off = np.concatenate([slopes.log_step - steps, slopes.log_compute[timed] - computing])
        degrees = max(len(off) - int(free.sum()), 1)
        residual = max(float(off @ off / degrees) ** 0.5, LEAST)

        compute_s = float(np.exp(slopes.log_compute.mean()))
        spread = np.array(SPREAD)
        spread[:GAMMA] *= compute_s
        spread[1] /= np.exp(np.log(places.batch).mean())
        known = cls(terms, spread, np.eye(7), residual)
        rows = [known._changes(places), slopes.of_compute[timed] * spread]
        told = np.concatenate(rows) / residual
        return known._replace(covariance=np.linalg.inv(np.eye(7) + told.T @ told))

    def relative(self, places: Sequence[tuple[int, int, float]]) -> list[float]:
        """Relative error of a step on each of (nodes, GPUs, batch per GPU); 0.1 is 10 %."""
        changes = self._changes(Places(places))
        variance = ((changes @ self.covariance) * changes).sum(axis=1) + self.residual**2
        return [float(each) for each in variance**0.5]

    def _changes(self, places: Places) -> Array:
        """[n, 7]: the change of log step time when a term changes by its spread.

        Exchange that costs nothing is hidden by computing while it is short: its slope is 0. The
        change at its greatest possible length is taken instead.
        """
        slopes = places.slopes(self.terms)
        changes = slopes.of_step * self.spread
        for at in EXCHANGE:
            if self.terms[at] <= TINY:
                longer = self.terms.copy()
                longer[at] += self.spread[at]
                changes[:, at] = places.slopes(longer).log_step - slopes.log_step
        return changes
