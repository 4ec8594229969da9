"""Rota's search for a size: fit the scaling curve from a few sizes, and jump.

The published search (:class:`ProbeScaler`) resizes once per size on its way. Two sizes already
give the published closed form, and a third says whether it holds, so that here a handful of
resizes do, whatever the distance.
"""

from math import log, sqrt

from rota.errors import InputError
from rota.policy.scaling.comparison import Comparison
from rota.policy.scaling.condition import Condition, ThroughputScaling
from rota.policy.scaling.curve import relative_errors
from rota.policy.scaling.scaler import Choice, Memory, Observed, begin, checked_sizes
from rota.policy.scaling.sizes import above, below

MAX_RESIZES = 4
_REACH = 4  # a jump ends at most at so many times the largest size tried
_GAP = 1.5  # sizes nearer than this factor to the best need no verifying
_GUIDES = 2  # the first sizes only tell where to look: few steps are enough
_DOUBT = 0.02  # a possible gain above this, in the condition's unit, is worth a look
_COARSE = 1.2  # neighbours farther than this factor are tried even if the curve fits
_SEARCH_SHARE = 0.1  # largest part of the remaining time for the pauses of a search


class FitScaler:
    """Tries two sizes, fits, jumps to the best, and stays unless a gain is sure.

    The best size is the one of most worth under the condition on the fitted curve, the smaller of
    two equal ones. If a measured size does not lie on the curve, the curve is bent through what
    was measured, and a neighbour of the best is tried. ``max_resizes`` bounds the search; after
    it the job moves only for a gain that is sure at ``confidence``, larger than what a pause of
    ``pause_s`` seconds costs, and larger than ``least_gain`` of the condition's unit.

    A job whose program predicts its steps at all sizes goes to the best one at once, and on from
    there as long as predictions, corrected by what was measured, promise more.

    The first two sizes only tell where to look, and are left after ``min_steps``. Later ones are
    kept until the relative standard error of their throughput is ``precision`` or they are surely
    worse than a known size, for ``most_steps`` at most. Its memory is when the job would complete
    at its first size, and the size at which the search ended.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        condition: Condition | None = None,
        *,
        pause_s: float = 0.0,
        confidence: float = 0.95,
        precision: float = 0.01,
        min_steps: int = 10,
        most_steps: int = 100,
        least_gain: float = 0.01,
        max_resizes: int = MAX_RESIZES,
    ) -> None:
        """Raises InputError if a number is out of its range."""
        self.sizes = checked_sizes(sizes)
        self.condition = condition or ThroughputScaling()
        self.pause_s = _within("pause_s", pause_s, 0.0, 1e9)
        self.confidence = _within("confidence", confidence, 0.5, 0.999999)
        self.precision = _within("precision", precision, 0.0, 1.0)
        self.min_steps = int(_within("min_steps", min_steps, 2, most_steps))
        self.most_steps = most_steps
        self.least_gain = _within("least_gain", least_gain, 0.0, 1.0)
        self.max_resizes = int(_within("max_resizes", max_resizes, 1, 1000))

    def choose(self, job: Observed, memory: Memory | None = None) -> Choice:
        """The size to go to, or the present one to stay."""
        marks = dict(memory or {})
        waiting = Choice(job.workers, marks, "its throughput here is not known well enough yet")
        if job.observations.steps < self.min_steps or job.remaining_samples <= 0:
            return waiting
        outlook = begin(job, marks)
        told = (job.observations, outlook, self.confidence, job.predicted)
        look = Comparison(self.condition, self.sizes, *told)
        if not self._known_well(job, look):
            return waiting
        if "settled" not in marks and self._search_pays(job):
            size, why = self._next_to_try(job, look)
            if size is not None:
                return Choice(size, marks, why)
        size, why = self._settle(job, look, again="settled" in marks)
        return Choice(size, {**marks, "settled": size}, why)

    def _known_well(self, job: Observed, look: Comparison) -> bool:
        """True if the present size has had its steps, or is surely worse than a known one."""
        if len(look.measured.sizes) <= _GUIDES:
            return True
        error = relative_errors(job.observations)[job.workers]
        if error <= self.precision or job.observations.steps >= self.most_steps:
            return True
        best = look.best(look.measured.sizes)
        return best != job.workers and look.sure(job.workers, best)

    def _search_pays(self, job: Observed) -> bool:
        rate = job.observations[job.workers].mean
        return self.max_resizes * self.pause_s * rate <= _SEARCH_SHARE * job.remaining_samples

    def _next_to_try(self, job: Observed, look: Comparison) -> tuple[int | None, str]:
        """A size to try, and why; None if the decision needs none, or if no resize is left.

        One resize is kept for going back to the best.
        """
        known = job.observations.sizes
        if look.predicted:
            size = look.best(self.sizes)
            tries = size not in known and len(known) < self.max_resizes
            tries = tries and self._worth_trying(look, look.best(known), size)
            return (size if tries else None), "the best size by its program's plan, not tried yet"
        if len(known) == 1:
            size = self._second(job.workers)
            return (size if size != job.workers else None), "a second size, to fit a curve"
        misfit = look.curve.misfit
        if len(known) >= self.max_resizes * (2 if misfit else 1):
            return None, ""
        best = look.best(self._reachable(look))
        if best not in known:
            there = look.best(known) if misfit else job.workers
            if len(known) == 2 or self._worth_trying(look, there, best):
                return best, "the best size on the curve, not tried yet"
        if misfit or not look.curve.spare:
            return self._beside(look, look.best(known)), "beside the best size, to verify it"
        near = self._neighbour(look, look.best(known))
        if near is not None:
            return near, "the best size's neighbour, to verify it"
        return self._in_doubt(look, job.workers), "a size that may be better for all that is known"

    def _second(self, workers: int) -> int:
        """About twice the present size, or half if that is farther away in proportion."""
        larger = [size for size in self.sizes if workers < size <= 2 * workers]
        smaller = [size for size in self.sizes if workers / 2 <= size < workers]
        up = larger[-1] if larger else above(self.sizes, workers)
        down = smaller[0] if smaller else below(self.sizes, workers)
        return up if up * down >= workers**2 else down

    def _beside(self, look: Comparison, best: int) -> int | None:
        """The better of the two sizes midway between the best and the known sizes beside it.

        None if all such sizes are known.
        """
        known = look.measured.sizes
        lower = max((size for size in known if size < best), default=self.sizes[0] - 1)
        upper = min((size for size in known if size > best), default=self.sizes[-1] + 1)
        gaps = ((max(lower, 1), lower, best), (upper, best, upper))
        found = []
        for end, low, high in gaps:
            between = [size for size in self.sizes if low < size < high]
            if between and max(best / end, end / best) > _GAP:
                middle = sqrt(best * end)
                found.append(min(between, key=lambda size: abs(log(size / middle))))
        return look.best(found) if found else None

    def _neighbour(self, look: Comparison, best: int) -> int | None:
        """The better of the best size's unknown neighbours.

        None if they are so near that their throughput could not change the decision.
        """
        sides = (below(self.sizes, best), above(self.sizes, best))
        far = [size for size in sides if not best / _COARSE <= size <= best * _COARSE]
        found = [size for size in far if size not in look.measured.sizes]
        return look.best(found) if found else None

    def _in_doubt(self, look: Comparison, here: int) -> int | None:
        """The size that could be better by most, if the possible gain is too large to ignore."""
        could = {
            size: self._gain(look, here, size) + look.margin(here, size) / look.unit(here)
            for size in self._reachable(look)
            if size not in look.measured.sizes
        }
        size = max(could, key=could.__getitem__, default=here)
        return size if could.get(size, 0.0) > _DOUBT else None

    def _settle(self, job: Observed, look: Comparison, *, again: bool) -> tuple[int, str]:
        """The best size; once settled, or while noise could explain the gain, the present one.

        If the curve misses a measured size, or nothing verifies it, only measured sizes are
        trusted.
        """
        known = [size for size in job.observations.sizes if size in self.sizes]
        trusted = look.curve.spare > 0 and not look.curve.misfit
        best = look.best(self._reachable(look) if trusted or not known else known)
        worth_it = self._worth_moving if again else self._worth_trying
        if job.workers not in self.sizes or worth_it(look, job.workers, best):
            return best, "the best size"
        return job.workers, "no other size is surely better"

    def _worth_trying(self, look: Comparison, old: int, new: int) -> bool:
        """True if the change promises a gain: a sure one, or one worth finding out about."""
        gain = self._gain(look, old, new)
        return gain > self.least_gain or (gain > 0.0 and look.sure(old, new))

    def _worth_moving(self, look: Comparison, old: int, new: int) -> bool:
        return self._gain(look, old, new) > self.least_gain and look.sure(old, new)

    def _gain(self, look: Comparison, old: int, new: int) -> float:
        return look.gain(old, new, self.pause_s) if new != old else 0.0

    def _reachable(self, look: Comparison) -> list[int]:
        most = _REACH * look.measured.sizes[-1]
        return [size for size in self.sizes if size <= most] or [self.sizes[0]]


def _within(name: str, value: float, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InputError(f"{name}: {value!r} must be a number from {least:g} to {most:g}")
    return value
