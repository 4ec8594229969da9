"""Gandiva's charges: the time that jobs run; on a shared GPU, a part of it."""

from collections.abc import Mapping

from rota.model.view import View
from rota.policy.gandiva.jobs import Notes
from rota.policy.gandiva.owners import Owners


class Charges:
    """The charge of each job, by priority; jobs with the least charge have the next turns."""

    def __init__(self, view: View, notes: Mapping[int, Notes], owners: Owners) -> None:
        self._view = view
        self._notes = notes
        self._owners = owners
        self._settled: set[int] = (
            set()
        )  # trials that are credited until now: they may change packs twice

    def had(self, row: int) -> float:
        """Seconds per priority that a job has run, or is credited with; of a shared GPU a part."""
        notes, view = self._notes[row], self._view
        seconds = view.attained_s(row) / self._weight(row) + notes.credit
        if notes.pack is not None:
            seconds -= self._shared_s(row) / self._weight(row)
        return seconds

    def reweigh(self, row: int, weight: float) -> None:
        """Give the job's turns another weight from now on; its charge so far stays."""
        had = self.had(row)
        self._notes[row].set_weight(weight)
        self._notes[row].credit += had - self.had(row)

    def settle(self, row: int) -> None:
        """A pack has come to its end: what the others had of the GPU is not this job's."""
        if row in self._settled:
            return
        if self._view.spec[row].trial is not None:
            self._settled.add(row)
        self._owners.settle(row)
        self._notes[row].credit -= self._shared_s(row) / self._weight(row)

    def share_out(self) -> None:
        """Divide a pack's GPU time by its jobs' weights from now on.

        So the jobs stay level, and a pack has the turns of all its jobs together: not as many as if
        each of them had the largest of their weights.
        """
        for row, notes in self._notes.items():
            if notes.pack is None:
                continue
            part = self._weight(row) / sum(map(self._weight, notes.pack.rows))
            if part != notes.part:
                had = self.had(row)
                notes.part = part
                notes.credit += had - self.had(row)

    def _weight(self, row: int) -> float:
        return self._notes[row].weight(self._view.priority[row])

    def _shared_s(self, row: int) -> float:
        """Seconds of the job's run time since the pack began in which others had the GPU."""
        notes = self._notes[row]
        if notes.seen is None:
            return 0.0
        return max(0.0, self._view.attained_s(row) - notes.seen.ran_s) * (1 - notes.part)
