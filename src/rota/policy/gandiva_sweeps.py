"""Gandiva's sweeps: the trials of a search take turns by what they promise (section 3.3)."""

from collections.abc import Callable, Mapping

from rota.model.view import View
from rota.policy.gandiva_jobs import Notes
from rota.policy.gandiva_packing import Packing
from rota.policy.sweeps import shares


class Sweeps:
    """Which trials of searches are to wait, as others promise more; the others' weights."""

    def __init__(
        self,
        view: View,
        notes: Mapping[int, Notes],
        packing: Packing,
        trials: float,
        goes_on: Callable[[int], bool],
    ) -> None:
        self._view = view
        self._notes = notes
        self._packing = packing
        self._trials = trials
        self._goes_on = goes_on  # whether a job's turn is not over yet
        self.waiting: set[int] = set()

    def weigh(self) -> None:
        """Part each search's weight among its trials; those that are to wait live nowhere."""
        view = self._view
        for rows in view.sweeps.values():
            most = max(1, int(self._trials * view.total_gpus / view.num_gpus[rows[0]]))
            for row, part in shares(view, rows, most).items():
                weight = view.priority[row] * part
                if not part:
                    if not self._goes_on(row):
                        self._send_away(row)
                elif weight != self._notes[row].weight(view.priority[row]):
                    self._packing.reweigh(row, weight)

    def _send_away(self, row: int) -> None:
        self.waiting.add(row)
        if self._notes[row].home:
            self._notes[row].leave()
