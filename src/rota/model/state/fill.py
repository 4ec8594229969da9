"""Changes to the ledger by measurements of background jobs."""

from __future__ import annotations

from rota.model.events import FillMeasured
from rota.model.state.ledger import FIRST_FINAL, Ledger


def fill_measured(ledger: Ledger, e: FillMeasured) -> None:
    """Keep it as the last one of its job; a job that has ended meanwhile needs none."""
    if not ledger.spec[e.row].is_background or e.beside >= len(ledger.spec):
        ledger.refuse(e.row, "measured as a background job")
    if ledger.state[e.row] < FIRST_FINAL:
        ledger.fill_measured[e.row] = e
        ledger.note_change(e.row)
