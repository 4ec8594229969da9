"""First in, first out: jobs run to completion in order of arrival."""

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.stages import place


class Fifo:
    """Strict head of line: a job starts when every job that came before it has started."""

    name = "fifo"

    def decide(self, view: View) -> Plan:
        """Start waiting jobs in order of arrival until one does not fit."""
        trial = view.trial()
        for row in waiting(view):
            if view.num_gpus[row] > view.total_gpus:
                trial.wait(row, Reason.NEVER_FITS)
            elif not place(trial, row):
                break
        return trial.plan()


class FifoBackfill:
    """Order of arrival, but a job that fits never waits behind one that does not."""

    name = "fifo-backfill"

    def decide(self, view: View) -> Plan:
        """Start every waiting job that fits, in order of arrival."""
        trial = view.trial()
        for row in waiting(view):
            if view.num_gpus[row] > view.total_gpus:
                trial.wait(row, Reason.NEVER_FITS)
            else:
                place(trial, row)
        return trial.plan()


def waiting(view: View) -> list[int]:
    """The active jobs without GPUs, in order of arrival."""
    return sorted(row for row in view.active if view.target[row] is None)
