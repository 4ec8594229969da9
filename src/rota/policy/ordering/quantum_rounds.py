"""Orderings that would change at every moment, taken at the end of each quantum instead."""

from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.base import Setting, to_instant, turn_s
from rota.policy.ordering.ranked import Ranked
from rota.policy.stages.selection import Stages, finish, own_mark


class Rounds(Ranked):
    """A ranked policy that preempts when a quantum is over, and only then.

    Within a quantum GPUs that become free go to the first in order that fits. A quantum begins
    with the decision that orders; while nobody waits none is needed, and the next to arrive has
    the order taken at once. The policy's mark is the time at which the quantum began.
    """

    stages: Stages | None = None  # a quantum is a minimum run time
    SETTINGS = {"quantum_s": Setting(turn_s, 60.0, "Seconds that a turn lasts.")}

    def __init__(self, quantum_s: float = 60.0) -> None:
        self.quantum_s = self.turn_s = quantum_s

    def decide(self, view: View) -> Plan:
        """Order anew when the quantum is over, else fill what is free."""
        began_s = own_mark(self.stages, view)
        over = began_s is None or view.now_s >= to_instant(began_s + self.quantum_s)
        if over:
            began_s = view.now_s
        what_if, someone_waits = self.run(view, preempt=over)
        wake_at_s = to_instant(began_s + self.quantum_s) if someone_waits else None
        plan = finish(self.stages, what_if, wake_at_s=wake_at_s, policy_mark=began_s)
        return self.remember(plan)
