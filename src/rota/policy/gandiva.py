"""Gandiva's time-slicing: weighted round robin over gangs (OSDI 2018, section 3.1)."""

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.base import Setting, positive
from rota.policy.stages import place, run_first_that_fit


class Gandiva:
    """Jobs take turns of a quantum; over time each gets run time in proportion to its priority.

    At the end of each round the jobs with the least run time per priority come first (ties by
    arrival, then id), each gang whole or not at all. Within a round nobody is preempted: GPUs that
    become free go to whoever is next. A job that arrives, or comes back after its owner suspended
    it, starts level with the least served one, so that it neither waits for a full round of history
    nor shuts the others out.

    A job's mark is the run time per priority that it is credited with at arrival; the policy's
    mark is the time at which the round began.
    """

    name = "gandiva"
    SETTINGS = {"quantum_s": Setting(positive, 60.0, "Seconds that a job's turn lasts.")}

    def __init__(self, quantum_s: float = 60.0) -> None:
        self.quantum_s = quantum_s

    def decide(self, view: View) -> Plan:
        """Rotate when the round is over, else fill what is free."""
        trial, total = view.trial(), view.total_gpus
        credit = {row: view.marks[row] for row in view.active if view.marks[row] is not None}
        returning = {row for row in credit if view.reason[row] == Reason.WAIT_PRIORITY}
        ran = {row: view.attained_s(row) / view.priority[row] for row in view.active}
        served = {row: credit[row] + ran[row] for row in credit}
        level = min(
            (served[row] for row in credit.keys() - returning if view.num_gpus[row] <= total),
            default=0.0,
        )
        for row in (view.active.keys() - credit.keys()) | returning:
            served[row] = max(level, served.get(row, level))
            trial.mark(row, served[row] - ran[row])
        order = sorted(served, key=lambda row: (served[row], row))

        round_s = view.policy_mark
        if round_s is None or view.now_s >= round_s + self.quantum_s:
            round_s = view.now_s
            turn = Reason.SLICE_WAITING_TURN
            run_first_that_fit(trial, order, preempted=turn, waits=turn)
        else:
            for row in order:
                if trial.target(row) is None and not place(trial, row):
                    never = view.num_gpus[row] > total
                    trial.wait(row, Reason.NEVER_FITS if never else Reason.SLICE_WAITING_TURN)
        waits = any(trial.target(row) is None and view.num_gpus[row] <= total for row in order)
        return trial.plan(
            wake_at_s=round_s + self.quantum_s if waits else None, policy_mark=round_s
        )
