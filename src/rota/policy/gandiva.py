"""Gandiva's time-slicing: weighted round robin over gangs (OSDI 2018, section 3.1)."""

from rota.model.view import View
from rota.policy.base import PER_S, Setting, turn_s
from rota.policy.round_robin import RoundRobin
from rota.policy.stages import Stages

LARGEST_PRIORITY = 100


class Gandiva(RoundRobin):
    """Jobs take turns of a quantum; over time each gets run time in proportion to its priority.

    At the end of each round the jobs with the least run time per priority come first (ties by
    arrival, then id), each gang whole or not at all. Within a round nobody is preempted: GPUs that
    become free go to whoever is next. A job that arrives, or comes back after its owner suspended
    it, starts level with the least served one, so that it neither waits for a full round of history
    nor shuts the others out: its mark is the run time per priority that it is credited with.
    """

    name = "gandiva"
    weighs_priority = True
    stages: Stages | None = Stages(priority=False)
    per_unit = PER_S * LARGEST_PRIORITY  # a microsecond of anybody's run time is a step at least
    SETTINGS = {"quantum_s": Setting(turn_s, 60.0, "Seconds that a job's turn lasts.")}

    def ran(self, view: View, row: int) -> float:
        """Seconds run per priority."""
        return view.attained_s(row) / view.priority[row]
