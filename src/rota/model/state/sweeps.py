"""What follows from the events of searches: what their trials have told, and which are not needed.

Trials are jobs, and are submitted, stopped and ended as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.model.events import MetricReported, SweepEnded, SweepSubmitted, TrialStopped
from rota.model.job import JobSpec, JobState
from rota.model.state.lifecycle import Confirmations

if TYPE_CHECKING:
    from rota.model.measured.curves import ToldCurves
    from rota.model.measured.reports import Curves

NEEDLESS = "its search needs it no longer: "


class Searching(Confirmations):
    """How the columns change by a search.

    ``sweeps`` has the rows of the trials of each search, by its name; ``curves`` what trials have
    told: a driver's, or of live jobs ``told_curves``, those of the log. ``needless`` says of trials
    that their search stops why it does, by row.
    """

    def __init__(self, *, keep_stories: bool = True) -> None:
        super().__init__(keep_stories=keep_stories)
        self.sweeps: dict[str, list[int]] = {}
        self.curves: Curves | None = None
        self.told_curves: ToldCurves | None = None
        self.needless: dict[int, str] = {}

    def _add_trial(self, row: int, spec: JobSpec) -> None:
        if spec.trial is None:
            return
        self.sweeps.setdefault(spec.trial.sweep.name, []).append(row)
        if not spec.simulated and self.curves is None:
            from rota.model.measured.curves import (
                ToldCurves,  # here: simulated jobs have no program
            )

            self.curves = self.told_curves = ToldCurves()

    def _search_changed(self, e: SweepSubmitted | SweepEnded) -> None:
        """Of no job."""

    def _trial_stopped(self, e: TrialStopped) -> None:
        self.require_open(e.row, "stopped by its search")
        self.needless[e.row] = e.why
        self._tell(e.row, e.at_s, NEEDLESS + e.why)

    def _metric_reported(self, e: MetricReported) -> None:
        if self.told_curves is not None and self.spec[e.row].trial is not None:
            self.told_curves.note(e.row, self.attempt[e.row], e.reports)
            self.changed.append(e.row)  # for the next decision: one for each report is too many

    def _end(
        self, row: int, at_s: float, outcome: JobState, exit_code: int | None, message: str
    ) -> None:
        if outcome == JobState.CANCELLED and row in self.needless:
            message = NEEDLESS + self.needless[row]
        super()._end(row, at_s, outcome, exit_code, message)
