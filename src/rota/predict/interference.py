"""Speeds of jobs that share a GPU or the links of a node, relative to running alone."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple


class Load(NamedTuple):
    """A job's use of a GPU: the model it trains, and the part of time in which it computes.

    ``utilisation`` is from 0 to 1 when the job runs alone; 1 if unknown. ``weight`` is that of a
    flow job, above 0; None for other jobs.
    """

    model: str = ""
    utilisation: float = 1.0
    weight: float | None = None


class Interference:
    """Speeds of jobs on one GPU: measured together, or else from their utilisation.

    ``pairs`` maps (model, model) to the speeds of both beside each other, relative to alone. Jobs
    without a known pair slow down only where their utilisations add up to more than 1: then each
    has the GPU for its part of the sum, so that two jobs that keep it busy run at a half, as if
    they took turns. For three and more jobs the slow-downs of the known pairs are multiplied.

    Flow jobs among themselves take turns on the GPU, operation by operation, and lose nothing else:
    they share its time by weight (:func:`speed_by_weight`), whatever they train.

    ``links`` is the part of its speed, below 1, that a job on several nodes loses while another
    such job is on one of its nodes, over whose links both exchange gradients (Qiao et al.,
    *Pollux*, OSDI 2021, section 5.3).
    """

    def __init__(
        self,
        pairs: Mapping[tuple[str, str], tuple[float, float]] | None = None,
        links: float = 0.0,
    ) -> None:
        self.links = links
        self._pairs = dict(pairs or {})
        self._pairs.update({(b, a): (y, x) for (a, b), (x, y) in self._pairs.items()})

    def speed(self, job: Load, others: Sequence[Load]) -> float:
        """The job's speed beside ``others`` on its GPU; 1 if there are none."""
        if not others:
            return 1.0
        if job.weight is not None and all(other.weight is not None for other in others):
            return speed_by_weight(job, others)
        known = [self._pairs.get((job.model, other.model)) for other in others]
        speeds = [pair[0] for pair in known if pair is not None]
        if len(speeds) == len(others):
            return prod(speeds, start=1.0)
        total = job.utilisation + sum(other.utilisation for other in others)
        return min(1.0, 1.0 / total)


def speed_by_weight(job: Load, others: Sequence[Load]) -> float:
    """The job's speed where all share a GPU's time by their weights, relative to alone.

    Weighted max-min fairness: a job that needs less of the time than its part by weight gets what
    it needs, and the others share the rest by weight. A job without a weight counts with 1.
    """
    needs = [(each.utilisation, each.weight or 1.0) for each in (job, *others)]
    if sum(need for need, _ in needs) <= 1.0:
        return 1.0
    own, weight = needs[0]
    needs.sort(key=lambda each: each[0] / each[1])
    left, level = 1.0, 0.0
    for at, (need, each) in enumerate(needs):
        level = left / sum(weight for _, weight in needs[at:])
        if need > level * each:
            break
        left -= need
    return min(1.0, level * weight / own) if own else 1.0
