"""Changes to the ledger by a decision."""

from __future__ import annotations

from rota.model.events import DecisionTaken
from rota.model.state.displacement import note_displaced
from rota.model.state.ledger import Ledger


def decision_taken(ledger: Ledger, e: DecisionTaken) -> None:
    _, seq, policy, allocations, reasons, marks, policy_mark, wake_at_s, notes = e
    if allocations:
        if ledger.keeps_stories:
            note_displaced(ledger, allocations)
        ledger.assume(allocations)
    if reasons:
        for row, code in reasons.items():
            ledger.reason[row] = code
    if ledger.keeps_stories and (allocations or reasons):
        ledger.tell_sharing(e.at_s, reasons)
    if policy != ledger.policy:
        ledger.policy, ledger.policy_mark = policy, None
        ledger.marks = [None] * len(ledger.marks)
        ledger.notes.forget()
    if marks:
        for row, mark in marks.items():
            ledger.marks[row] = mark
    if notes is not None:
        for row, warning in ledger.notes.note(e.at_s, notes):
            ledger.tell(row, e.at_s, f"warning: {warning}")
    if policy_mark is not None:
        ledger.policy_mark = policy_mark
    ledger.wake_at_s = wake_at_s
    ledger.decision_seq = seq
    ledger.decision_needed = False
    ledger.plan = None
    ledger.changed.clear()
