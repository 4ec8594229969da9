"""The published search for a size: step by step over observed sizes (MLSys 2020).

It fits no curve and averages nothing across sizes: only sizes at which the job has run are
compared. So it is hard to fool, and takes a resize for each size on its way.
"""

from itertools import pairwise

from rota.errors import InputError
from rota.policy.scaling.condition import Condition, Outlook, ThroughputScaling
from rota.policy.scaling.scaler import Choice, Memory, Observed, begin, checked_sizes
from rota.policy.scaling.sizes import above, below

PASSES_TO_STOP_SHRINKING = 3
STEPS_FOR_STAYING = 100
STEPS_BETWEEN_RESTARTS = 10


class ProbeScaler:
    """Or et al.'s search, rule by rule as in the authors' public code.

    1. One size known: take the next larger one, at the largest the next smaller one.
    2. Every step between neighbouring known sizes passes: grow on from the largest known.
    3. Not all of the first three steps pass: shrink on from the smallest known.
    4. Else take the last size before the first failure; but if the size after it has fewer than
       100 steps behind it, gather them there first.

    ``sizes`` are those allowed; :func:`sizes_every` gives the published ones. Its memory is when
    the job would complete at its first size, from which a :class:`StepUtility` gets its last point.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        condition: Condition | None = None,
        *,
        min_steps: int = STEPS_BETWEEN_RESTARTS,
        passes: int = PASSES_TO_STOP_SHRINKING,
        steps_for_staying: int = STEPS_FOR_STAYING,
    ) -> None:
        """Raises InputError if there are no sizes, or a number of steps is below 1."""
        if min(min_steps, passes) < 1 or steps_for_staying < 0:
            raise InputError(
                f"min_steps {min_steps}, passes {passes}, steps_for_staying {steps_for_staying}: "
                "give at least 1, 1 and 0"
            )
        self.sizes = checked_sizes(sizes)
        self.condition = condition or ThroughputScaling()
        self.min_steps = min_steps
        self.passes = passes
        self.steps_for_staying = steps_for_staying

    def choose(self, job: Observed, memory: Memory | None = None) -> Choice:
        """The size to go to, or the present one to stay."""
        marks = dict(memory or {})
        if job.observations.steps < self.min_steps or job.remaining_samples <= 0:
            return Choice(
                job.workers, marks, "too few steps since the last resize, or none to come"
            )
        if len(job.observations.sizes) == 1:
            marks.pop("initial_jct_s", None)
        outlook = begin(job, marks)
        if len(job.observations.sizes) == 1:
            grows = job.workers < self.sizes[-1]
            step = above if grows else below
            return Choice(step(self.sizes, job.workers), marks, "a second size to compare with")
        size, why = self._search(job, outlook)
        return Choice(max(size, self.sizes[0]), marks, why)

    def _search(self, job: Observed, outlook: Outlook) -> tuple[int, str]:
        observations = job.observations
        known = observations.sizes
        points = [(size, observations[size].mean) for size in known]
        passed = [self.condition.passes(old, new, outlook) for old, new in pairwise(points)]
        if all(passed) and known[-1] < self.sizes[-1]:
            return above(self.sizes, known[-1]), "every step so far was worth it"
        first = passed[: self.passes]
        if first != [True] * self.passes and known[0] > self.sizes[0]:
            return below(self.sizes, known[0]), "the first steps are not all worth it"
        stop = passed.index(False) if False in passed else len(known) - 1
        if stop + 1 < len(known):
            beyond = known[stop + 1]
            if observations[beyond].steps < self.steps_for_staying:
                return beyond, "more steps are needed to reject this size"
        return known[stop], "the last size that was worth it"
