"""Smallest and shortest first: orders by what a job asks for, or by what it has left to do.

The baselines of Tiresias' section 3.1 (NSDI 2019). All are preemptive and skip what does not fit.
"""

from rota.model.view import View
from rota.policy.ranked import Ranked


class SmallestFirst(Ranked):
    """SF: the job that asks for fewest GPUs first. Needs no durations."""

    name = "smallest-first"

    def key(self, view: View, row: int) -> float:
        """The size of the gang."""
        return view.num_gpus[row]


class ShortestRemaining(Ranked):
    """SRTF: least remaining run time first. An oracle: it reads what only a trace knows."""

    name = "srtf"
    needs_duration = True

    def key(self, view: View, row: int) -> float:
        """Seconds that the job has left to run."""
        return view.remaining_s(row)


class ShortestRemainingService(Ranked):
    """SRSF: least remaining run time times GPUs first. An oracle as well."""

    name = "srsf"
    needs_duration = True

    def key(self, view: View, row: int) -> float:
        """GPU-seconds that the job has left to run."""
        return view.remaining_s(row) * view.num_gpus[row]
