"""Changes to the ledger by a decision."""

from __future__ import annotations

from typing import Any

from rota.model.events import DecisionTaken, PolicyFailed
from rota.model.fallback import WITHOUT_MEMORY
from rota.model.state.cpus import aim_at_cpus
from rota.model.state.displacement import note_displaced
from rota.model.state.ledger import Ledger


def decision_taken(ledger: Ledger, e: DecisionTaken) -> None:
    _, seq, policy, allocations, reasons, marks, mark, wake_at_s, notes, cpus, stages, _, by = e
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
        ledger.policy = policy
        _forget_all(ledger)
        ledger.notes.forget()
    if by or ledger.fallback.by:
        ledger.fallback = ledger.fallback.after(by)
        if by == WITHOUT_MEMORY:
            _forget_all(ledger)
    if marks:
        for row, each in marks.items():
            ledger.marks[row] = each
    if notes is not None:
        for row, warning in ledger.notes.note(e.at_s, notes):
            ledger.tell(row, e.at_s, f"warning: {warning}")
    if mark is not None:
        ledger.policy_mark = mark
    if cpus:
        aim_at_cpus(ledger, cpus)
    if stages:
        _remember(ledger, stages)
    ledger.wake_at_s = ledger.policy_wake_at_s = wake_at_s
    if e.fill_wake_at_s is not None and (wake_at_s is None or e.fill_wake_at_s < wake_at_s):
        ledger.wake_at_s = e.fill_wake_at_s
    ledger.decision_seq = seq
    ledger.decision_needed = ledger.policy_needed = False
    ledger.plan = None
    ledger.changed.clear()


def policy_failed(ledger: Ledger, e: PolicyFailed) -> None:
    """Keep the error; the decision that follows names the fallback."""
    ledger.fallback = ledger.fallback._replace(error=e.error)


def _forget_all(ledger: Ledger) -> None:
    """The policy and its stages remember nothing."""
    ledger.policy_mark = None
    ledger.marks = [None] * len(ledger.marks)
    ledger.stage_marks.clear()


def _remember(ledger: Ledger, stage_marks: dict[str, dict[str, Any]]) -> None:
    """Note what stages want to remember; a value of None ends an entry."""
    for stage, changes in stage_marks.items():
        marks = ledger.stage_marks.setdefault(stage, {})
        for key, value in changes.items():
            if value is None:
                marks.pop(key, None)
            else:
                marks[key] = value
