"""Equal turns: each job the same run time, gangs whole or not at all."""

from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import PER_S
from rota.policy.information import NONE
from rota.policy.ordering.quantum_rounds import Rounds
from rota.policy.ordering.ranked import Ranking


class RoundRobin(Rounds):
    """Jobs take turns of a quantum; those that have run least come first.

    Turns are balanced by the run time that was measured, not by counting them: who lost time to a
    slow start has it back in a later round. A job that arrives, or comes back from its owner,
    starts level with the least served: its mark is the run time that it is credited with.
    """

    name = "round-robin"
    information = NONE
    preempted = Reason.SLICE_WAITING_TURN
    waits = Reason.SLICE_WAITING_TURN
    per_unit = PER_S  # steps in which keys tell apart what jobs have had

    def __init__(self, quantum_s: float = 60.0) -> None:
        super().__init__(quantum_s)
        self._credit: dict[int, float] = {}  # given in this decision

    def ran(self, view: View, row: int) -> float:
        """Seconds that the job has run: its use of what is shared out."""
        return view.attained_s(row)

    def had(self, view: View, row: int) -> float:
        """The job's use, with its credit."""
        credit = self._credit.get(row)
        if credit is None:
            credit = view.marks[row] or 0.0
        return self.ran(view, row) + credit

    def key(self, view: View, row: int) -> int:
        """The job's use, with its credit, in whole steps."""
        return round(self.had(view, row) * self.per_unit)

    def admit(self, view: View, index: Ranking) -> None:
        """Credit newcomers with what the least served of the others has had."""
        self._credit = {}
        new = [
            row
            for row in index.touched
            if view.marks[row] is None or view.reason[row] == Reason.WAIT_PRIORITY
        ]
        if not new:
            return
        least = index.least(view, index.touched.keys() - set(new))
        level = 0.0 if least is None else self.had(view, least)
        for row in new:
            self._credit[row] = max(self.had(view, row), level) - self.ran(view, row)

    def run(self, view: View, *, preempt: bool) -> tuple[WhatIf, bool]:
        """Let jobs run in order, and note the credits."""
        what_if, someone_waits = super().run(view, preempt=preempt)
        for row, credit in self._credit.items():
            what_if.mark(row, credit)
        return what_if, someone_waits
