"""Gandiva's time-slicing: weighted round robin over gangs (OSDI 2018, section 3.1)."""

from math import inf

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import Trial, View
from rota.policy.base import Setting, positive
from rota.policy.stages import Stages, finish, has_a_say, own_mark, place, walk


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
    composes = True
    weighs_priority = True
    stages: Stages | None = Stages(priority=False)
    SETTINGS = {"quantum_s": Setting(positive, 60.0, "Seconds that a job's turn lasts.")}

    def __init__(self, quantum_s: float = 60.0) -> None:
        self.quantum_s = quantum_s

    def decide(self, view: View) -> Plan:
        """Rotate when the round is over, else fill what is free."""
        trial, total = view.trial(), view.total_gpus
        order = self._order(view, trial)
        round_s = own_mark(self.stages, view)
        turn = Reason.SLICE_WAITING_TURN
        rotate = round_s is None or view.now_s >= round_s + self.quantum_s
        if rotate:
            round_s = view.now_s
        if rotate or has_a_say(self.stages, view):
            keep = () if rotate else order
            walk(self.stages, trial, order, keep=keep, preempted=turn, waits=turn)
        else:
            _fill(trial, [row for row in order if view.target[row] is None])
        waits = any(trial.target(row) is None and view.num_gpus[row] <= total for row in order)
        wake_at_s = round_s + self.quantum_s if waits else None
        return finish(self.stages, trial, wake_at_s=wake_at_s, policy_mark=round_s)

    def _order(self, view: View, trial: Trial) -> list[int]:
        """Active rows, the least served per priority first; newcomers start level with them."""
        now_s, total, marks, num_gpus = view.now_s, view.total_gpus, view.marks, view.num_gpus
        service_s, since_s, priority = view.service_s, view.since_s, view.priority
        level, coming = inf, list[tuple[int, float, float | None]]()
        served: list[tuple[float, int]] = []
        for row in view.active:
            since = since_s[row]
            ran = (service_s[row] + (now_s - since if since >= 0 else 0.0)) / priority[row]
            credit = marks[row]
            if credit is None or view.reason[row] == Reason.WAIT_PRIORITY:
                coming.append((row, ran, credit))
                continue
            had = credit + ran
            served.append((had, row))
            if had < level and num_gpus[row] <= total:
                level = had
        if level == inf:
            level = 0.0
        for row, ran, credit in coming:
            had = level if credit is None else max(level, credit + ran)
            trial.mark(row, had - ran)
            served.append((had, row))
        served.sort()
        return [row for _, row in served]


def _fill(trial: Trial, waiting: list[int]) -> None:
    """Give what is free to those that wait, in order; nobody is preempted."""
    view = trial.view
    num_gpus, reason, turn = view.num_gpus, view.reason, Reason.SLICE_WAITING_TURN
    free = trial.free_gpus
    for row in waiting:
        if num_gpus[row] <= free and place(trial, row):
            free -= num_gpus[row]
        elif num_gpus[row] > view.total_gpus:
            trial.wait(row, Reason.NEVER_FITS)
        elif reason[row] != turn and num_gpus[row] > free:
            trial.wait(row, turn)
