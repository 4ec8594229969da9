"""Smallest and shortest first: orders by what a job asks for, or by what it has left to do.

The baselines of Tiresias' section 3.1 (NSDI 2019). All are preemptive and skip what does not fit.
"""

from rota.model.view import View
from rota.policy.base import PER_S
from rota.policy.information import NONE
from rota.policy.ordering.ranked import Ranked
from rota.policy.stages.selection import Stages


class SmallestFirst(Ranked):
    """SF: the job that asks for fewest GPUs first. Needs no durations."""

    name = "smallest-first"
    information = NONE

    def key(self, view: View, row: int) -> int:
        """The size of the gang."""
        return view.num_gpus[row]


class ShortestRemaining(Ranked):
    """SRTF: least remaining run time first. An oracle: it reads what only a trace knows."""

    name = "srtf"
    needs_duration = True
    stages: Stages | None = None  # it is there to compare with, as it was published

    def key(self, view: View, row: int) -> int:
        """Microseconds that the job has left to run."""
        return round(view.remaining_s(row) * PER_S)


class ShortestRemainingService(Ranked):
    """SRSF: least remaining run time times GPUs first. An oracle as well."""

    name = "srsf"
    needs_duration = True
    stages: Stages | None = None  # it is there to compare with, as it was published

    def key(self, view: View, row: int) -> int:
        """GPU-seconds that the job has left to run, in millionths."""
        return round(view.remaining_s(row) * view.num_gpus[row] * PER_S)
