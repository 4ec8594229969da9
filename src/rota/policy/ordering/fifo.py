"""First in, first out: jobs run to completion in order of arrival."""

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import Policy
from rota.policy.information import NONE
from rota.policy.ordering.waiting import Waiting
from rota.policy.stages.selection import finish, has_a_say, place, walk

WAIT_RESOURCES = int(Reason.WAIT_RESOURCES)  # reasons are compared at every decision


class Fifo(Policy):
    """Strict head of line: a job starts when every job that came before it has started."""

    name = "fifo"
    information = NONE
    composes = True
    preemptive = False

    def __init__(self) -> None:
        self._waiting = Waiting(by_size=False)

    def decide(self, view: View) -> Plan:
        """Start waiting jobs in order of arrival until one does not fit."""
        waiting = self._waiting
        if has_a_say(self.stages, view):
            what_if, rows = view.what_if(), sorted(view.active)
            walk(self.stages, what_if, rows, keep=rows, strict=True)
            return finish(self.stages, what_if)
        waiting.update(view)
        row, misjudged = waiting.first(view), waiting.misjudged(view)
        if row is None or (
            view.free_gpus < view.num_gpus[row] <= view.total_gpus
            and view.reason[row] == WAIT_RESOURCES
            and not misjudged
        ):
            return waiting.sign(view.unchanged())
        what_if = view.what_if()
        for other in misjudged:
            what_if.wait(other, Reason.WAIT_PRIORITY)
        while row is not None:
            if view.num_gpus[row] > view.total_gpus:
                what_if.wait(row, Reason.NEVER_FITS)
            elif not place(what_if, row):
                break
            waiting.take(view, row)
            row = waiting.first(view)
        return waiting.sign(what_if.plan())


class FifoBackfill(Policy):
    """Order of arrival, but a job that fits never waits behind one that does not."""

    name = "fifo-backfill"
    information = NONE
    composes = True
    preemptive = False

    def __init__(self) -> None:
        self._waiting = Waiting(by_size=True)

    def decide(self, view: View) -> Plan:
        """Start every waiting job that fits, in order of arrival."""
        what_if, waiting = view.what_if(), self._waiting
        if has_a_say(self.stages, view):
            rows = sorted(view.active)
            walk(self.stages, what_if, rows, keep=rows, strict=False)
            return finish(self.stages, what_if)
        waiting.update(view)
        if waiting.bound:  # a job that may fit only where it was: ask each for itself
            return self._try_each(what_if)
        free = view.free_gpus
        while (row := waiting.first(view, free)) is not None:
            place(what_if, row)
            waiting.take(view, row)
            free -= view.num_gpus[row]
        for row in waiting.new:
            if what_if.target(row) is None:
                never = view.num_gpus[row] > view.total_gpus
                what_if.wait(row, Reason.NEVER_FITS if never else Reason.WAIT_RESOURCES)
        return waiting.sign(what_if.plan())

    def _try_each(self, what_if: WhatIf) -> Plan:
        view = what_if.view
        for row in sorted(row for row in view.active if view.target[row] is None):
            if view.num_gpus[row] > view.total_gpus:
                what_if.wait(row, Reason.NEVER_FITS)
            else:
                place(what_if, row)
        return what_if.plan()
