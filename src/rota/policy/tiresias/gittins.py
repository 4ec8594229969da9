"""Tiresias with the Gittins index inside its queues (NSDI 2019, section 3.2: 2D-Gittins)."""

from rota.model.view import View
from rota.policy.base import Setting
from rota.policy.information import HISTORY
from rota.policy.tiresias.distribution import LEARNED, Distribution, parse_distribution
from rota.policy.tiresias.policy import Tiresias
from rota.policy.tiresias.queues import RAN, Mark
from rota.predict.gittins import Gittins

THRESHOLDS = (3250.0, 7200.0)  # of the public Tiresias simulator; with one, little is left to rank


def at_least_one(text: str) -> int:
    """A whole number from 1. Raises ValueError."""
    value = int(text)
    if value < 1:
        raise ValueError("it must be a whole number from 1")
    return value


class TiresiasGittins(Tiresias):
    """Tiresias' queues, each ordered by the Gittins index; the last stays first in, first out.

    The grant that the index is for is the queue's upper threshold. A job that has GPUs keeps its
    place until it reaches that threshold: indexes that rise and fall with progress would have jobs
    preempt each other without end. At the threshold it must have a higher index than those that
    are in the next queue to go before them. Equal indexes leave the order of entry, as in the first
    queue, where those who wait have seldom run.

    Sizes are given, or learned from the jobs that ended by themselves. Until ``min_samples`` have,
    the order is that of plain Tiresias.
    """

    name = "tiresias-gittins"
    information = HISTORY
    SETTINGS = {
        "thresholds": Tiresias.SETTINGS["thresholds"]._replace(default=THRESHOLDS),
        "promote_knob": Tiresias.SETTINGS["promote_knob"],
        "distribution": Setting(
            parse_distribution,
            LEARNED,
            "GPU-seconds of jobs: learned, a file with one a line, or numbers such as 4,8,12.",
        ),
        "min_samples": Setting(
            at_least_one, 10, "Jobs that must have ended before a learned distribution is used."
        ),
    }

    def __init__(
        self,
        thresholds: tuple[float, ...] = THRESHOLDS,
        promote_knob: float = 8.0,
        distribution: Distribution = LEARNED,
        min_samples: int = 10,
    ) -> None:
        super().__init__(thresholds, promote_knob)
        self._given = Gittins(distribution.sizes)
        self.min_samples = min_samples
        self._learned = Gittins(())
        self._learned_from: object = None

    def arrange(self, view: View, marks: dict[int, Mark], queue: int, rows: list[int]) -> list[int]:
        """The rows of one queue in walk order, given in order of entry."""
        if queue == len(self.thresholds) or len(rows) < 2:
            return rows
        gittins = self._given if len(self._given) else self._learn(view)
        if gittins is None:
            return rows
        delta, num_gpus, target = self.thresholds[queue], view.num_gpus, view.target
        stay: list[int] = []
        ranked: list[tuple[float, int, int]] = []
        for place, row in enumerate(rows):
            mark = marks[row]
            if mark.place == RAN and target[row] is not None:
                stay.append(row)
            else:
                # Service counts from the last promotion, as it does for the queues.
                attained = (view.attained_s(row) - mark.base_s) * num_gpus[row]
                ranked.append((-gittins.index(attained, delta), place, row))
        ranked.sort()
        return stay + [row for _, _, row in ranked]

    def _learn(self, view: View) -> Gittins | None:
        """The index on the sizes of ended jobs; None while they are too few.

        Of the number of jobs only the leading five bits count, so that a sample of any size is
        sorted anew a bounded number of times while it doubles.
        """
        completed = view.completed_gpu_s
        number = len(completed)
        if number < self.min_samples:
            return None
        spare = max(0, number.bit_length() - 5)
        number = number >> spare << spare
        if self._learned_from is not completed or len(self._learned) != number:
            self._learned = Gittins(completed[:number])
            self._learned_from = completed
        return self._learned
