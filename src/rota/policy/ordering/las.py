"""Least attained service in two dimensions, with a quantum (Tiresias, NSDI 2019, section 3.1)."""

from rota.model.view import View
from rota.policy.base import PER_S
from rota.policy.information import NONE
from rota.policy.ordering.quantum_rounds import Rounds


class LeastAttainedService(Rounds):
    """Least attained GPU-seconds first, without queues or thresholds; ties by arrival, then id.

    Taken to the letter the order changes at every moment: two jobs of equal service would swap
    without end. So it is taken at the end of each quantum, and in between nobody is preempted,
    neither by a peer that has less by then nor by a newcomer, who waits for a quantum at most.
    """

    name = "las"
    information = NONE

    def key(self, view: View, row: int) -> int:
        """Attained service: GPUs times seconds run, in millionths."""
        return round(view.attained_s(row) * view.num_gpus[row] * PER_S)
