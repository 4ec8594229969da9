"""Fits the step-time model of a job, or of all jobs of a kind, to measurements.

Loss, bounds, start and priors are those of the code that was published with Pollux (OSDI 2021;
AdaptDL, branch osdi21-artifact): the root mean square errors of the logarithms of computing and of
whole steps; a cost that was never measured is assumed to be nothing. Gradients are worked out by
hand. Beyond what was published, a fit leaves out points that contradict the rest, and estimates the
error of its predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.model.figure import rounded
from rota.predict.one_thread import one_thread
from rota.predict.step_points import Point, listed, usable
from rota.predict.step_slopes import GAMMA, ORDER, TINY, Places
from rota.predict.step_time import StepTime

if TYPE_CHECKING:
    import numpy as np

    from rota.predict.fit_error import FitError

    Vector = np.ndarray[Any, np.dtype[np.float64]]

START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
MOST_GAMMA = 10.0
GAMMA_WEIGHT = 1e-3
BETA_WEIGHT = 1e-2
BETWEEN_NODES = 1.1  # times as slow as within one, at least, where it was not measured
OUTLIER = 4.0  # times as long or short as predicted
FAR_OFF = 0.2  # loss, about 10 % for each of the two errors
ROUNDS = 2  # of leaving out
SMOOTH = 1e-4  # relative error below which the loss is smooth, far below what steps vary by
MOST_TRIALS = 300  # of the loss; 50 to 150 are usual


class Fit(NamedTuple):
    """A model, the points that it was fitted to, and the end of the search for it."""

    step_time: StepTime
    points: tuple[Point, ...]
    minimum: Minimum

    @property
    def loss(self) -> float:
        """The published loss over the points."""
        return self.minimum.loss

    @property
    def error(self) -> FitError:
        """Error of the fit, computed on request because few callers need it."""
        from rota.predict.fit_error import FitError

        with one_thread():
            return FitError.of(self.minimum.terms, self.minimum.free, self.points)


def fit(points: Iterable[Point]) -> tuple[Fit | None, tuple[str, ...]]:
    """The model, None if no point is usable, and warnings that name what was left out and why.

    Each point counts once. No points make this raise. Up to a quarter of them are left out if, by
    the rest, they are four times too long or too short.
    """
    kept, dropped = usable(points)
    if not kept:
        return None, _warnings(dropped, ())
    with one_thread():
        found, left_out, contradictions = _fitted(tuple(kept))
    return found, _warnings([*dropped, *left_out], contradictions)


@lru_cache(maxsize=1024)  # jobs that are alike measure the same, one after another
def _fitted(points: tuple[Point, ...]) -> tuple[Fit, tuple[str, ...], tuple[str, ...]]:
    """The model of usable points, what was left out, and what still contradicts the rest."""
    kept, left_out, spare = list(points), list[str](), len(points) // 4
    found = _closest(kept)
    outliers = found.outliers()
    for _ in range(ROUNDS):
        sides = [side for side in outliers if 0 < len(side) <= spare]
        if not sides:
            break
        options = ((_without(kept, side), side) for side in sides)
        found, side = min(options, key=lambda option: option[0].loss)
        left_out += [str(outlier) for outlier in side]
        kept, spare = found.points, spare - len(side)
        outliers = found.outliers()
    contradictions = tuple(str(outlier) for side in outliers for outlier in side)
    return Fit(found.step_time(), tuple(kept), found), tuple(left_out), contradictions


def _without(points: list[Point], outliers: list[Outlier]) -> Minimum:
    """The minimum over the other points."""
    out = {id(outlier.point) for outlier in outliers}
    return _closest([point for point in points if id(point) not in out])


def _closest(points: list[Point]) -> Minimum:
    """The minimum from the published start; if that is far off, the better of two starts."""
    objective = Objective(points)
    found = objective.minimum(objective.start)
    if found.loss < FAR_OFF:
        return found
    return min(found, objective.minimum(objective.scaled_start()), key=lambda each: each.loss)


class Objective:
    """The published loss over some points, at least one."""

    def __init__(self, points: list[Point]) -> None:
        import numpy as np

        self.points = points
        self.places = Places([point[:3] for point in points])
        timed = np.array([point.compute_s is not None for point in points])
        self.timed = slice(None) if timed.all() else timed  # a slice copies nothing
        self.log_compute = np.log([p.compute_s for p in points if p.compute_s is not None])
        self.log_step = np.log([point.step_s for point in points])
        self.low, self.high, self.start = self._bounds()

    def _bounds(self) -> tuple[Vector, Vector, Vector]:
        """Least and most of each term, equal where the exploration priors fix it, and the start."""
        import numpy as np

        nodes, gpus, batch = self.places.nodes, self.places.gpus, self.places.batch
        low, high = np.full(7, TINY), np.full(7, np.inf)
        low[GAMMA], high[GAMMA] = 1.0, MOST_GAMMA
        if np.all(batch == batch[0]):
            low[0] = high[0] = self._compute_s().mean() / 2
        unknown = []
        if not np.any(nodes > 1):
            unknown += ["alpha_n", "beta_n"]
        if not np.any((nodes == 1) & (gpus > 1)):
            unknown += ["alpha_r", "beta_r"]
        if not np.any(gpus > 2):
            unknown += ["beta_n", "beta_r"]
        high[[ORDER.index(term) for term in unknown]] = TINY
        return low, high, np.clip(START, low, high)

    def _compute_s(self) -> Vector:
        """Measured seconds of computing, or of steps where computing was never timed."""
        import numpy as np

        return np.exp(self.log_compute if len(self.log_compute) else self.log_step)

    def scaled_start(self) -> Vector:
        """A start of the size of the measurements, with slow exchange between nodes."""
        import numpy as np

        compute_s = self._compute_s().mean()
        computing = [compute_s / 2, compute_s / 2 / self.places.batch.mean()]
        exchange = [2 * compute_s, compute_s / 50, compute_s / 2, compute_s / 20]
        return np.clip([*computing, *exchange, START[GAMMA]], self.low, self.high)

    def value(self, terms: Vector) -> tuple[float, Vector]:
        """The loss, and its gradient."""
        slopes = self.places.slopes(terms)
        loss, slope = _rms(slopes.log_step - self.log_step)
        gradient = slope @ slopes.of_step
        if len(self.log_compute):
            timed, slope = _rms(slopes.log_compute[self.timed] - self.log_compute)
            loss += timed
            gradient += slope @ slopes.of_compute[self.timed]
        numbers = terms.tolist()  # plain floats: single elements of arrays are slow
        overlap = numbers[GAMMA] - 1.0
        loss += GAMMA_WEIGHT * overlap**2
        gradient[GAMMA] += 2 * GAMMA_WEIGHT * overlap
        for alpha, beta in ((2, 3), (4, 5)):
            ratio = numbers[beta] / numbers[alpha]
            loss += BETA_WEIGHT * ratio**2
            gradient[beta] += 2 * BETA_WEIGHT * ratio / numbers[alpha]
            gradient[alpha] -= 2 * BETA_WEIGHT * ratio**2 / numbers[alpha]
        return loss, gradient

    def minimum(self, start: Vector) -> Minimum:
        """The minimum that L-BFGS-B finds from ``start``."""
        from scipy.optimize import minimize

        last: tuple[bytes, Vector] = b"", start

        def loss(terms: Vector) -> float:
            nonlocal last
            value, gradient = self.value(terms)
            last = terms.tobytes(), gradient
            return value

        def slope(terms: Vector) -> Vector:  # SciPy asks for it after the loss in the same place
            if last[0] != terms.tobytes():
                loss(terms)
            return last[1]

        bounds = list(zip(self.low, self.high, strict=True))
        found = minimize(
            loss,
            start,
            jac=slope,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxfun": MOST_TRIALS},
        )
        return Minimum(found.x, self.low < self.high, float(found.fun), self.points)


def _rms(error: Vector) -> tuple[float, Vector]:
    """The root of the mean square, and its gradient. Returns ``SMOOTH`` where every error is 0.

    The root alone has a kink there. A search that meets an exact fit of one part of the loss would
    stop at the kink, at a place that depends on how the processor rounds.
    """
    root = float(error @ error / len(error) + SMOOTH**2) ** 0.5
    return root, error / (len(error) * root)


class Outlier(NamedTuple):
    """A point that took ``ratio`` times as long as a model predicts."""

    point: Point
    ratio: float

    def __str__(self) -> str:
        return f"{self.point}: {rounded(self.ratio, 2)} times as long as the others make likely"


class Minimum(NamedTuple):
    """Terms in the order of ``ORDER``, which of them were free, and the loss over the points."""

    terms: Vector
    free: Any  # [7] of bool
    loss: float
    points: list[Point]

    def step_time(self) -> StepTime:
        """The model, with None for terms neither measured nor implied by measurements."""
        values = [float(term) for term in self.terms]
        found: dict[str, float | None] = dict(zip(ORDER, values, strict=True))
        for name, value, free in zip(ORDER, values, self.free, strict=True):
            if not free and value == TINY:
                found[name] = None
        if all(point.nodes == 1 for point in self.points):
            for outer, inner in (("alpha_n", "alpha_r"), ("beta_n", "beta_r")):
                within_s = found[inner]
                found[outer] = None if within_s is None else BETWEEN_NODES * within_s
        return StepTime(**found)  # type: ignore[arg-type]

    def outliers(self) -> tuple[list[Outlier], list[Outlier]]:
        """The points that took far longer than the model predicts, and far shorter."""
        model = self.step_time()
        longer, shorter = [], []
        for point in self.points:
            ratios = [point.step_s / model.step_s(point.gpus, point.nodes, point.batch)]
            if point.compute_s is not None:
                ratios.append(point.compute_s / model.compute_s(point.batch))
            if max(ratios) > OUTLIER:
                longer.append(Outlier(point, max(ratios)))
            elif min(ratios) < 1 / OUTLIER:
                shorter.append(Outlier(point, min(ratios)))
        return longer, shorter


def _warnings(dropped: Sequence[str], contradictions: Sequence[str]) -> tuple[str, ...]:
    found = []
    if dropped:
        found.append(f"measurements left out: {listed(dropped)}")
    if contradictions:
        found.append(f"measurements contradict each other: {listed(contradictions)}")
    return tuple(found)
