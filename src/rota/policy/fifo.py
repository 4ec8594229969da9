"""First in, first out: jobs run to completion in order of arrival."""

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import Trial, View
from rota.policy.information import NONE
from rota.policy.stages import Stages, finish, has_a_say, place, walk
from rota.policy.waiting import Waiting

WAIT_RESOURCES = int(Reason.WAIT_RESOURCES)  # reasons are compared at every decision


class Fifo:
    """Strict head of line: a job starts when every job that came before it has started."""

    name = "fifo"
    information = NONE
    composes = True
    preemptive = False
    stages: Stages | None = None

    def __init__(self) -> None:
        self._waiting = Waiting(by_size=False)

    def decide(self, view: View) -> Plan:
        """Start waiting jobs in order of arrival until one does not fit."""
        waiting = self._waiting
        if has_a_say(self.stages, view):
            trial, rows = view.trial(), sorted(view.active)
            walk(self.stages, trial, rows, keep=rows, strict=True)
            return finish(self.stages, trial)
        waiting.update(view)
        row = waiting.first(view)
        if row is None or (
            view.free_gpus < view.num_gpus[row] <= view.total_gpus
            and view.reason[row] == WAIT_RESOURCES
        ):
            return waiting.sign(view.unchanged())
        trial = view.trial()
        while row is not None:
            if view.num_gpus[row] > view.total_gpus:
                trial.wait(row, Reason.NEVER_FITS)
            elif not place(trial, row):
                break
            waiting.take(view, row)
            row = waiting.first(view)
        return waiting.sign(trial.plan())


class FifoBackfill:
    """Order of arrival, but a job that fits never waits behind one that does not."""

    name = "fifo-backfill"
    information = NONE
    composes = True
    preemptive = False
    stages: Stages | None = None

    def __init__(self) -> None:
        self._waiting = Waiting(by_size=True)

    def decide(self, view: View) -> Plan:
        """Start every waiting job that fits, in order of arrival."""
        trial, waiting = view.trial(), self._waiting
        if has_a_say(self.stages, view):
            rows = sorted(view.active)
            walk(self.stages, trial, rows, keep=rows, strict=False)
            return finish(self.stages, trial)
        waiting.update(view)
        if waiting.bound:  # a job that may fit only where it was: ask each for itself
            return self._try_each(trial)
        free = view.free_gpus
        while (row := waiting.first(view, free)) is not None:
            place(trial, row)
            waiting.take(view, row)
            free -= view.num_gpus[row]
        for row in waiting.new:
            if trial.target(row) is None:
                never = view.num_gpus[row] > view.total_gpus
                trial.wait(row, Reason.NEVER_FITS if never else Reason.WAIT_RESOURCES)
        return waiting.sign(trial.plan())

    def _try_each(self, trial: Trial) -> Plan:
        view = trial.view
        for row in sorted(row for row in view.active if view.target[row] is None):
            if view.num_gpus[row] > view.total_gpus:
                trial.wait(row, Reason.NEVER_FITS)
            else:
                place(trial, row)
        return trial.plan()
