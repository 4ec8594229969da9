"""Metrics reported by the trials of live searches, from the event log."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from rota.model.sweep import Report


class ToldCurves:
    """Every report that counts, by row and in order of steps.

    Training that goes back, to a checkpoint or because a rank was lost, reports steps again. The
    new reports then replace those at or after that step. If a program counts no steps, only another
    attempt is known to start over.

    ``notes`` is how often something was noted.
    """

    def __init__(self) -> None:
        self.notes = 0
        self._told: dict[int, list[Report]] = {}
        self._noted: dict[int, list[int]] = {}  # for each report, ``notes`` at its time
        self._values: dict[int, list[float]] = {}
        self._heard: dict[int, tuple[int, int]] = {}  # attempt, number of reports that it has made

    def copy(self) -> "ToldCurves":
        """An independent copy of the curves."""
        twin = ToldCurves()
        twin.notes, twin._heard = self.notes, dict(self._heard)
        twin._told = {row: list(told) for row, told in self._told.items()}
        twin._noted = {row: list(noted) for row, noted in self._noted.items()}
        return twin

    def note(self, row: int, attempt: int, reports: Iterable[Report]) -> None:
        """Add the reports of a job's attempt since the last call."""
        self.notes += 1
        told, noted = self._told.setdefault(row, []), self._noted.setdefault(row, [])
        for report in reports:
            count = self.heard(row, attempt)
            again = not count or (report.first and report.step > 0)
            while told and (
                told[-1].step > report.step or (again and told[-1].step == report.step)
            ):
                told.pop()
                noted.pop()
            told.append(report)
            noted.append(self.notes)
            self._heard[row] = attempt, count + 1
        self._values.pop(row, None)

    def heard(self, row: int, attempt: int) -> int:
        """Number of noted reports of this attempt, including those that no longer count."""
        known, count = self._heard.get(row, (attempt, 0))
        return count if known == attempt else 0

    def reports(self, row: int) -> Sequence[Report]:
        """The reports of a job; not to be changed."""
        return self._told.get(row, ())

    def known(self, row: int, notes: int) -> int:
        """Number of a job's first reports that are unchanged since there were ``notes`` notes."""
        return bisect_right(self._noted.get(row, ()), notes)

    def curve(self, row: int, now_s: float) -> Sequence[float]:
        """The values of the reports, without those that are no number; not to be changed."""
        values = self._values.get(row)
        if values is None:
            told = [report.value for report in self.reports(row)]
            values = self._values[row] = [value for value in told if value is not None]
        return values
