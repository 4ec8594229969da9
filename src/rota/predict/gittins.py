"""The Gittins index of a job on a sample of job sizes (Tiresias, NSDI 2019, section 3.2).

Sizes are GPU-seconds: GPUs times run time. A job that has attained ``a`` of them and is granted
``delta`` more ends within the grant with some probability, and uses some part of the grant on
average; the index is the ratio of the two, in 1 / GPU-seconds. Higher is sooner.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import inf


class Gittins:
    """The index on an empirical distribution: a sample of sizes, in GPU-seconds above zero.

    Of the sample's n sizes let m be above ``a``. Those that are at most ``a + delta`` give the
    probability to end, their number over m; the mean of min(size - a, delta) over the m is what
    the grant costs. An index takes a look-up of O(log n) in sums made once.
    """

    def __init__(self, sizes: Iterable[float]) -> None:
        values = sorted(sizes)
        self._sizes = values
        self._sums = [0.0, *accumulate(values)]
        self._points = _total_time_on_test(values)
        self._next = _upper_hull(self._points)
        self._distinct = [value for value, _, _ in self._points]

    def __len__(self) -> int:
        return len(self._sizes)

    def index(self, attained: float, delta: float = inf) -> float:
        """The index of a job that has attained so much and is granted ``delta`` > 0 more.

        An endless grant gives one over the mean of what is left. Zero if no size in the sample is
        above ``attained``.
        """
        done = bisect_right(self._sizes, attained)
        number = len(self._sizes)
        ends = bisect_right(self._sizes, attained + delta) if delta < inf else number
        return self._ratio(attained, delta, done, ends)

    def _ratio(self, attained: float, delta: float, done: int, ends: int) -> float:
        """The index when so many sizes are at most ``attained``, and at most the grant's end."""
        sizes, count = self._sizes, ends - done
        if not count:
            return 0.0
        spent = self._sums[ends] - self._sums[done] - count * attained
        # Sums far larger than their difference leave little of it: hold it to what is certain.
        low, high = sizes[done] - attained, sizes[ends - 1] - attained
        spent = min(max(spent, count * low), count * high)
        if ends < len(sizes):
            spent += (len(sizes) - ends) * delta
        return count / spent

    def best(self, attained: float) -> tuple[float, float]:
        """The largest index over all grants, and the grant (GPU-seconds) that has it.

        (0, infinity) if no size in the sample is above ``attained``. Only grants that end at a
        size of the sample can be best; on the curve of total time on test against number ended,
        the index of such a grant is the slope from where the job stands to the point of that size.
        The steepest slope is a tangent to the curve's upper hull. Takes a walk along that hull,
        which is short, after a look-up of O(log n).
        """
        at = bisect_right(self._distinct, attained)
        if at == len(self._points):
            return 0.0, inf
        done = bisect_right(self._sizes, attained)
        left = len(self._sizes) - done
        stands_at = self._sums[done] + left * attained

        def slope(point: int) -> float:
            _, spent, ended = self._points[point]
            return (ended - done) / (spent - stands_at) if spent > stands_at else inf

        steepest = slope(at)
        while (following := self._next[at]) is not None and slope(following) >= steepest:
            at, steepest = following, slope(following)
        grant = self._distinct[at] - attained
        return self._ratio(attained, grant, done, self._points[at][2]), grant


def _total_time_on_test(values: list[float]) -> list[tuple[float, float, int]]:
    """(size, sum over the sample of min(size of each, it), number at most it), by size.

    ``values`` are sorted.
    """
    points: list[tuple[float, float, int]] = []
    below = 0.0
    for number, value in enumerate(values, 1):
        below += value
        if number == len(values) or values[number] > value:
            points.append((value, below + value * (len(values) - number), number))
    return points


def _upper_hull(points: list[tuple[float, float, int]]) -> list[int | None]:
    """For each point, the next one on the upper hull of it and all that follow it."""
    after: list[int | None] = [None] * len(points)
    for at in range(len(points) - 2, -1, -1):
        _, x, y = points[at]
        candidate = at + 1
        while (beyond := after[candidate]) is not None:
            _, x1, y1 = points[candidate]
            _, x2, y2 = points[beyond]
            if (y1 - y) * (x2 - x) > (y2 - y) * (x1 - x):
                break
            candidate = beyond
        after[at] = candidate
    return after
