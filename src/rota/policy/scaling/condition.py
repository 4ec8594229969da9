"""The two conditions under which more workers are worth it (Or et al., MLSys 2020).

Each condition also has a *worth*: a number for every size that rises from one size to the next
exactly if the condition passes between them. The published search only asks the condition of
neighbours; with the worth one can say which of all sizes is best, and by how much.
"""

from collections.abc import Sequence
from math import inf, log
from typing import NamedTuple, Protocol

from rota.errors import InputError
from rota.policy.scaling.utility import Utility

# A number of workers, and samples per second with them.
Point = tuple[int, float]
DEFAULT_THRESHOLD = 0.1  # as published
_LEAST_STEP = 1e-300  # stands for a rise that always passes: a threshold far below zero


class Outlook(NamedTuple):
    """A job's progress.

    ``elapsed_s`` is since its start; ``remaining_samples`` is infinite if unknown;
    ``initial_jct_s`` is when it would complete at its first size, in seconds from its start.
    """

    elapsed_s: float = 0.0
    remaining_samples: float = inf
    initial_jct_s: float = inf


UNKNOWN = Outlook()  # a job of which nothing but its throughput is known


class Condition(Protocol):
    """Decides if a job should grow from one size to a larger one."""

    def passes(self, old: Point, new: Point, outlook: Outlook) -> bool:
        """True if ``new``, with more workers, is worth having instead of ``old``."""
        ...

    def worths(self, points: Sequence[Point], outlook: Outlook) -> list[float]:
        """The worth of each of these sizes, which ascend."""
        ...

    def sensitivity(self, point: Point, outlook: Outlook) -> float:
        """Change of a size's worth per relative change of its throughput."""
        ...

    def pause(self, point: Point, pause_s: float, outlook: Outlook) -> float:
        """The worth that a pause of so many seconds at this size takes away."""
        ...

    def unit(self, point: Point, outlook: Outlook) -> float:
        """The worth that counts as 1 where gains are compared: the job's remaining cost, say."""
        ...


class ThroughputScaling:
    """Grow while throughput still scales: MLSys 2020's condition for jobs without a utility.

    From k to k' workers, s = ((R' - R) / (k' - k)) / (R / k) must be above ``threshold``: 1 is
    perfect scaling, 0 a useless worker. The worth is ln R - sum ln(1 + threshold * (k' - k) / k)
    over the steps from the smallest size, without unit; a difference of 0.01 is 1 % of throughput.
    """

    def __init__(self, threshold: float = DEFAULT_THRESHOLD) -> None:
        """Raises InputError if the threshold is no finite number."""
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise InputError(f"threshold: {threshold!r} must be a number such as 0.1")
        if not -inf < threshold < inf:
            raise InputError(f"threshold: {threshold!r} must be a number such as 0.1")
        self.threshold = float(threshold)

    def passes(self, old: Point, new: Point, outlook: Outlook) -> bool:
        (old_size, old_rate), (new_size, new_rate) = old, new
        slope = (new_rate - old_rate) / (new_size - old_size)
        return slope / (old_rate / old_size) > self.threshold

    def worths(self, points: Sequence[Point], outlook: Outlook) -> list[float]:
        asked, before, found = 0.0, points[0][0], []
        for size, rate in points:
            asked += log(max(1.0 + self.threshold * (size - before) / before, _LEAST_STEP))
            found.append(log(rate) - asked)
            before = size
        return found

    def sensitivity(self, point: Point, outlook: Outlook) -> float:
        return 1.0

    def pause(self, point: Point, pause_s: float, outlook: Outlook) -> float:
        return pause_s * point[1] / outlook.remaining_samples

    def unit(self, point: Point, outlook: Outlook) -> float:
        return 1.0


class UtilityOverCost:
    """Grow while the value of an earlier end outweighs the price of the workers (MLSys 2020).

    U(JCT') - U(JCT) must be above C' - C, where C is the cost of what remains: what has been paid
    cancels. The worth is U - C, in the currency of the price.
    """

    def __init__(self, utility: Utility, price_per_gpu_hour: float) -> None:
        """Raises InputError if the price is no number, or below zero."""
        price = price_per_gpu_hour
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < inf:
            raise InputError(f"price_per_gpu_hour: {price!r} must be zero or a number above it")
        self.utility = utility
        self.price_per_gpu_hour = float(price)

    def passes(self, old: Point, new: Point, outlook: Outlook) -> bool:
        utility = self.utility.begun(outlook.initial_jct_s)
        (_, old_left_s, old_cost), (_, new_left_s, new_cost) = (
            self._rest(point, outlook) for point in (old, new)
        )
        gained = utility.at(outlook.elapsed_s + new_left_s)
        gained -= utility.at(outlook.elapsed_s + old_left_s)
        return gained > new_cost - old_cost

    def worths(self, points: Sequence[Point], outlook: Outlook) -> list[float]:
        utility = self.utility.begun(outlook.initial_jct_s)
        rests = (self._rest(point, outlook) for point in points)
        return [utility.at(outlook.elapsed_s + left_s) - cost for _, left_s, cost in rests]

    def sensitivity(self, point: Point, outlook: Outlook) -> float:
        size, rate = point
        step = 1e-3
        low, high = (
            self.worths([(size, rate * factor)], outlook)[0] for factor in (1 - step, 1 + step)
        )
        return (high - low) / (2 * step)

    def pause(self, point: Point, pause_s: float, outlook: Outlook) -> float:
        utility = self.utility.begun(outlook.initial_jct_s)
        size, left_s, _ = self._rest(point, outlook)
        end_s = outlook.elapsed_s + left_s
        return utility.at(end_s) - utility.at(end_s + pause_s) + self._cost(size, pause_s)

    def unit(self, point: Point, outlook: Outlook) -> float:
        cost = self._rest(point, outlook)[2]
        return max(cost, abs(self.worths([point], outlook)[0]), 1e-12)

    def _rest(self, point: Point, outlook: Outlook) -> tuple[int, float, float]:
        if outlook.remaining_samples == inf:
            raise InputError(
                "utility: how many samples remain is not known, so neither is when the job would "
                "complete; report the total, or scale by a threshold of throughput"
            )
        size, rate = point
        left_s = outlook.remaining_samples / rate
        return size, left_s, self._cost(size, left_s)

    def _cost(self, size: int, seconds: float) -> float:
        return size * seconds * self.price_per_gpu_hour / 3600
