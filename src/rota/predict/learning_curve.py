"""Predicts how far a training may still get, from its learning curve so far.

A curve is a metric at each of its reports; more is better here. Lengths are compared by doublings:
if a training rose by some gain from half its reports so far to all of them, it is assumed to rise
by ``CARRY`` times that when its length doubles again, give or take ``SPREAD`` of it, until other
trainings that have continued from there provide better numbers. Curves of training look alike at
all lengths, so neither the metric's scale nor the length of training has to be known. A curve's
promise is the best chance per report that it passes a goal, over all numbers of reports to give it.
In this order, independent searches reach their first success soonest: it is an index of Gittins'
kind (J. R. Statist. Soc. B 41, 1979).
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from math import erfc, inf, sqrt
from statistics import fmean, median
from typing import NamedTuple

CARRY, SPREAD = 0.6, 0.5
OPINION = 2.0  # trainings that must have gone on from somewhere until they count as much as CARRY
DOUBLINGS = 4  # how far ahead predictions reach, from a curve's length
BETTER = 0.03  # part of the spread of all values that counts as an improvement
LEAST_NOISE = 0.01  # part of that spread: curves that happen to be smooth are not certain
UNSEEN_REPORTS = 8.0
NOISE_REPORTS = 1000  # last reports of each curve that tell how noisy values are; more cost time
SCALE = 1.4826 / sqrt(6)  # from the median of second differences to the noise of one value


class Promise(NamedTuple):
    """``rate``: the best chance per report to pass the goal; ``chance``: that it ever does."""

    rate: float
    chance: float


class Shape:
    """Features of one curve, which has at least one value; they change only with the curve.

    ``levels`` are the curve's after 1, 2, 4, ... reports, ``bends`` the sizes of its last second
    differences, sorted.
    """

    __slots__ = ("before", "bends", "first", "least", "level", "levels", "most", "reports")

    def __init__(self, curve: Sequence[float]) -> None:
        self.reports = len(curve)
        self.first, self.least, self.most = curve[0], min(curve), max(curve)
        self.level = _level(curve, self.reports)
        self.before = _level(curve, self.reports // 2) if self.reports > 1 else None
        powers = range(self.reports.bit_length())
        self.levels = [_level(curve, 1 << power) for power in powers]
        last = curve[-NOISE_REPORTS:]
        neighbours = zip(last, last[1:], last[2:], strict=False)
        self.bends = sorted([abs(a - 2 * b + c) for a, b, c in neighbours])


class Outlook:
    """Prospects of trainings of one kind; ``shapes`` has those that have reported so far.

    ``goal`` is a little more than the best of all of them, or the ``target`` if that is less.
    """

    def __init__(self, shapes: Iterable[Shape], target: float = inf) -> None:
        self._shapes = list(shapes)
        values = [value for shape in self._shapes for value in (shape.least, shape.most)]
        spread = max(values) - min(values) if values else 0.0
        self._noise = max(_noise(self._shapes), LEAST_NOISE * spread)
        self._base = min((shape.first for shape in self._shapes), default=0.0)
        self._carries: dict[int, tuple[float, float]] = {}
        best = max(values, default=-inf)
        self.goal = min(best + max(self._noise, BETTER * spread), target)

    def promise(self, shape: Shape, whole: int | None = None) -> Promise:
        """Promise of a training that makes ``whole`` reports, if that number is known.

        A training that has made them all has no promise.
        """
        reports = shape.reports
        most = reports << DOUBLINGS if whole is None else whole
        level, gain = shape.level, self._gain(shape.before, shape.level)
        variance, cost, rate, chance = self._noise**2, 0, 0.0, 0.0
        for _ in range(DOUBLINGS):
            more = min(reports, most - reports)
            if more <= 0:
                break
            part = more / reports
            carry, spread = self._further(reports)
            gain *= carry
            level += gain * part
            variance += (max(SPREAD * gain, spread) + self._noise) ** 2 * part
            cost += more
            reports += more
            chance = max(chance, _beyond(self.goal - level, variance))
            rate = max(rate, chance / cost)
        return Promise(rate, chance)

    def unseen(self, promises: Sequence[Promise]) -> Promise:
        """Promise of a training without reports, from the promises of the others."""
        chance = (0.5 + sum(each.chance for each in promises)) / (1 + len(promises))
        return Promise(chance / (1.5 + UNSEEN_REPORTS * chance), chance)

    def _gain(self, before: float | None, level: float) -> float:
        """Rise of a curve from ``before`` to ``level``, over the second half of its reports.

        None: before its first report, the curve was where the worst began.
        """
        return max(0.0, level - (self._base if before is None else before))

    def _further(self, reports: int) -> tuple[float, float]:
        """The gain of a doubling over the gain of the doubling before, as it was with others.

        The second number is the standard deviation of theirs from it.
        """
        power = reports.bit_length() - 1
        if power not in self._carries:
            further = [shape.levels for shape in self._shapes if len(shape.levels) > power + 1]
            gains = [
                (
                    self._gain(levels[power - 1] if power else None, levels[power]),
                    self._gain(levels[power], levels[power + 1]),
                )
                for levels in further
            ]
            squares = sum(before * before for before, _ in gains)
            opinion = OPINION * squares / len(gains) if squares > 0 else 1.0
            both = sum(before * after for before, after in gains)
            carry = (both + opinion * CARRY) / (squares + opinion)
            off = sum((after - carry * before) ** 2 for before, after in gains)
            self._carries[power] = carry, sqrt(off / max(len(gains) - 1, OPINION))
        return self._carries[power]


def _level(curve: Sequence[float], reports: int) -> float:
    """The mean of the last few of a curve's first ``reports`` values."""
    return fmean(curve[reports - min(3, reports // 4 + 1) : reports])


def _noise(shapes: Sequence[Shape]) -> float:
    """The standard deviation of a value from its curve, from neighbours on all curves."""
    bends = list(chain.from_iterable(shape.bends for shape in shapes))
    return median(bends) * SCALE if bends else 0.0


def _beyond(distance: float, variance: float) -> float:
    """The chance that a normal value is above its mean by ``distance``."""
    if variance <= 0:
        return float(distance < 0)
    return 0.5 * erfc(distance / sqrt(2 * variance))
