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

    def __len__(self) -> int:
        return len(self._sizes)

    def index(self, attained: float, delta: float = inf) -> float:
        """The index of a job that has attained ``attained`` and is granted ``delta`` > 0 more.

        An endless grant gives one over the mean of the remaining size. Zero if no size in the
        sample is above ``attained``.
        """
        sizes, number = self._sizes, len(self._sizes)
        done = bisect_right(sizes, attained)
        ends = bisect_right(sizes, attained + delta) if delta < inf else number
        count = ends - done
        if not count:
            return 0.0
        spent = self._sums[ends] - self._sums[done] - count * attained
        # Sums far larger than their difference leave little of it: hold it to what is certain.
        low, high = sizes[done] - attained, sizes[ends - 1] - attained
        spent = min(max(spent, count * low), count * high)
        if ends < number:
            spent += (number - ends) * delta
        return count / spent
