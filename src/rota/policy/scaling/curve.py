"""A scaling curve fitted to a few measured sizes, with its uncertainty.

A step of a fixed global batch on k workers takes ``serial + parallel / k + exchange * (k - 1)``
seconds per sample: what does not shrink with more workers, what is shared among them, and what
each further worker adds to the exchange of gradients. The first two are the published closed form
t_k = tau (a + (1 - a) / k); the third is taken only if the measurements ask for it.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import exp, log, sqrt
from typing import NamedTuple

from rota.errors import InputError
from rota.policy.scaling.observations import Observations

_LEAST_ERROR = 1e-6  # relative; measurements without any noise still differ by rounding
_OWN_NOISE_STEPS = 10  # fewer steps at a size say too little of how much they vary
_MISFIT_DEVIATIONS = 3.0  # standard errors
_LEAST_MISFIT = 0.01  # relative; no formula is nearer to real step times
_EXCHANGE_GAIN = 9.0  # required decrease of chi squared: three standard errors
Terms = tuple[float, float, float]
Vector = list[float]
Matrix = list[Vector]


class ScalingCurve(NamedTuple):
    """Throughput by number of workers. ``terms`` are serial, parallel, exchange (s per sample).

    ``covariance`` is of ``terms``. ``residuals`` are (workers, ln of measured over fitted) at
    every measured size, 0 where they are within noise; ``misfit`` says that one is not, so that
    the curve has another shape than the formula. ``spare`` counts the sizes fitted to beyond one
    for each term: with none, the formula passes through all of them whatever its worth.
    """

    terms: Terms
    covariance: tuple[tuple[float, ...], ...]
    residuals: tuple[tuple[int, float], ...]
    misfit: bool
    spare: int

    def rate(self, workers: int) -> float:
        """Samples per second. Passes through every measured size that the formula misses."""
        fitted = 1.0 / _seconds(self.terms, workers)
        return fitted * exp(self._residual(workers)) if self.misfit else fitted

    def direction(self, workers: int) -> Vector:
        """Derivatives of ln(rate) by the terms."""
        seconds = _seconds(self.terms, workers)
        return [-part / seconds for part in _parts(workers)]

    def error(self, direction: Sequence[float]) -> float:
        """Standard error of the sum of terms with these weights."""
        rows = zip(direction, self.covariance, strict=True)
        return sqrt(max(0.0, sum(d * _dot(row, direction) for d, row in rows)))

    def contrast_error(self, parts: Sequence[tuple[int, float]]) -> float:
        """Standard error of the sum of ln(rate) at these sizes, each times its weight."""
        directions = ([weight * d for d in self.direction(size)] for size, weight in parts)
        return self.error([sum(each) for each in zip(*directions, strict=True)])

    def _residual(self, workers: int) -> float:
        if workers <= self.residuals[0][0]:
            return self.residuals[0][1]
        for (low, at_low), (high, at_high) in pairwise(self.residuals):
            if workers <= high:
                part = log(workers / low) / log(high / low)
                return at_low + part * (at_high - at_low)
        return self.residuals[-1][1]


def fit_curve(observations: Observations) -> ScalingCurve:
    """The curve that fits the measured throughput; with one size, perfect scaling.

    A measured size misfits if it is three standard errors off. One worker exchanges
    nothing: if the curve misses a size, and two others are known, the size of a single worker is
    left out of the fit and kept as it was measured. Raises InputError if nothing has been measured.
    """
    sizes = observations.sizes
    if not sizes:
        raise InputError("scaling curve: no step has been counted yet")
    errors = relative_errors(observations)
    known = [(size, 1.0 / observations[size].mean, errors[size]) for size in sizes]
    curve = _fit(known, known)
    if curve.misfit and sizes[0] == 1 and len(sizes) > 2:
        return _fit(known[1:], known)
    return curve


def relative_errors(observations: Observations) -> dict[int, float]:
    """Standard error of each size's mean over that mean; few steps borrow the others' noise."""
    known = [observations[size] for size in observations.sizes]
    freedom = sum(each.steps - 1 for each in known)
    pooled = sum(each.squares / each.mean**2 for each in known) / max(freedom, 1)
    errors = {}
    for size, each in zip(observations.sizes, known, strict=True):
        enough = each.steps >= _OWN_NOISE_STEPS
        noise = each.variance / each.mean**2 if enough else pooled
        errors[size] = max(_LEAST_ERROR, sqrt(noise / each.steps))
    return errors


# Workers, seconds per sample, relative standard error.
_Known = list[tuple[int, float, float]]


def _fit(used: _Known, every: _Known) -> ScalingCurve:
    columns: tuple[int, ...] = (0, 1) if len(used) > 1 else (1,)
    chi, terms = _least_squares(used, columns)
    if len(used) > 2:
        with_exchange = _least_squares(used, (0, 1, 2))
        if chi - with_exchange[0] > _EXCHANGE_GAIN:
            columns, terms = (0, 1, 2), with_exchange[1]
    residuals, misfit = [], False
    for size, seconds, error in every:
        off = log(_seconds(terms, size) / seconds)
        beyond = abs(off) > max(_MISFIT_DEVIATIONS * error, _LEAST_MISFIT)
        misfit = misfit or beyond
        residuals.append((size, off if beyond else 0.0))
    spare = len(used) - len(columns)
    return ScalingCurve(terms, _covariance(used, columns), tuple(residuals), misfit, spare)


def _least_squares(known: _Known, columns: Sequence[int]) -> tuple[float, Terms]:
    """Chi squared and terms of the best fit whose terms are not negative.

    The best such fit is the ordinary one over some of the columns, of which there are few.
    """
    best: tuple[float, Terms] | None = None
    for number in range(len(columns), 0, -1):
        for chosen in combinations(columns, number):
            terms = [0.0, 0.0, 0.0]
            solved = _solve(*_normal_equations(known, chosen))
            if solved is None or min(solved) < 0.0:
                continue
            for column, value in zip(chosen, solved, strict=True):
                terms[column] = value
            if terms[0] + terms[1] <= _LEAST_ERROR * terms[2]:  # one worker would take no time
                continue
            chi = sum(
                ((_seconds(terms, size) - seconds) / (seconds * error)) ** 2
                for size, seconds, error in known
            )
            if best is None or chi < best[0]:
                best = chi, (terms[0], terms[1], terms[2])
    assert best is not None, "a single column with positive times always fits"
    return best


def _normal_equations(known: _Known, columns: Sequence[int]) -> tuple[Matrix, Vector]:
    matrix = [[0.0] * len(columns) for _ in columns]
    right = [0.0] * len(columns)
    for size, seconds, error in known:
        row = [_parts(size)[column] / (seconds * error) for column in columns]
        for i, one in enumerate(row):
            right[i] += one / error
            for j, other in enumerate(row):
                matrix[i][j] += one * other
    return matrix, right


def _covariance(known: _Known, columns: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    matrix, _ = _normal_equations(known, columns)
    full = [[0.0, 0.0, 0.0] for _ in range(3)]
    for i, column in enumerate(columns):
        unit = [float(i == j) for j in range(len(columns))]
        inverse = _solve([list(row) for row in matrix], unit) or [0.0] * len(columns)
        for other, value in zip(columns, inverse, strict=True):
            full[column][other] = value
    return tuple(map(tuple, full))


def _solve(matrix: Matrix, right: Vector) -> Vector | None:
    """The solution of a symmetric positive system of at most three rows; None if singular."""
    # In plain Python: for so few sizes a fit by NumPy takes 1.6 times as long, and simulations of
    # elastic jobs spend most of their time in fits.
    scale = [sqrt(matrix[i][i]) for i in range(len(right))]
    if min(scale) <= 0.0:
        return None
    rows = [
        [*(value / (scale[i] * scale[j]) for j, value in enumerate(row)), right[i] / scale[i]]
        for i, row in enumerate(matrix)
    ]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            return None
        for r in range(len(rows)):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[-1] / row[i] / scale[i] for i, row in enumerate(rows)]


def _parts(workers: int) -> tuple[float, float, float]:
    return 1.0, 1.0 / workers, workers - 1.0


def _seconds(terms: Sequence[float], workers: int) -> float:
    return _dot(terms, _parts(workers))


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
