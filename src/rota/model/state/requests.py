"""Changes to the ledger by users' requests: submissions, suspensions, stops."""

from __future__ import annotations

from functools import partial

from rota.model.events import (
    JobCleaned,
    JobSubmitted,
    ResumeRequested,
    RetryDue,
    StopRequested,
    SuspendRequested,
)
from rota.model.reason import Reason
from rota.model.state.ledger import FIRST_FINAL, HELD, PENDING, STOPPING, Ledger
from rota.model.state.lifecycle import STARTS
from rota.model.state.sweeps import add_trial


def job_submitted(ledger: Ledger, e: JobSubmitted) -> None:
    at_s, spec = e
    if not spec.simulated and ledger.profiles is None:
        _observe_live_jobs(ledger)
    row = ledger.append(spec)
    ledger.begin_story(at_s)
    if spec.depends_on:
        _await_others(ledger, row, at_s)
    background = spec.share is not None and spec.is_background
    if row not in ledger.waits_for:
        (ledger.background if background else ledger.active)[row] = None
    if background:
        ledger.has_background_jobs = True
    else:
        ledger.policy_needed = True
        ledger.priorities.add(spec.priority)
        if spec.gpu_types:
            ledger.has_typed_jobs = True
    add_trial(ledger, row, spec)
    ledger.changed.append(row)
    ledger.decision_needed = True


def _await_others(ledger: Ledger, row: int, at_s: float) -> None:
    """The job is out of the policies' sight until the jobs that it depends on have ended."""
    ledger.waits_for[row] = {}
    for job_id, when in ledger.spec[row].depends_on:
        other = ledger.row_of(job_id)
        if other is None or other >= row:
            ledger.refuse(row, f"made to depend on job {job_id}, which did not come before it,")
        ledger.waits_for[row].setdefault(other, []).append(when)
        if ledger.state[other] < FIRST_FINAL:
            ledger.dependents.setdefault(other, []).append(row)
    ledger.reason[row] = Reason.WAIT_DEPENDENCY
    ledger.look_at_dependencies(row, at_s)


def _observe_live_jobs(ledger: Ledger) -> None:
    """Record live jobs' reports from now on: their profiles, and their training."""
    from rota.model.measured.adaptation import Adaptations  # here: simulations need neither
    from rota.model.measured.profiles import Profiles

    ledger.profiles, adaptations = Profiles(), Adaptations()
    ledger.observers += [
        partial(ledger.profiles.note, ledger),
        partial(adaptations.note, ledger),
    ]
    if ledger.reports is None:
        ledger.reports = adaptations


def suspend_requested(ledger: Ledger, e: SuspendRequested) -> None:
    row = e.row
    if row in ledger.held_back and (e.by_itself or row not in ledger.idle_jobs):
        return
    ledger.held_back[row] = e.user
    ledger.backoff.pop(row, None)
    if e.by_itself:
        ledger.idle_jobs.add(row)
        ledger.reason[row] = Reason.IDLE
    else:
        ledger.idle_jobs.discard(row)
        ledger.reason[row] = Reason.HELD_BY_USER
    if ledger.state[row] == PENDING and ledger.outstanding[row] is None:
        ledger.enter(row, HELD, e.at_s)
    by = f"suspended by {e.user or 'its owner'}"
    ledger.tell(row, e.at_s, "it called no operation for a while" if e.by_itself else by)
    ledger.leave_active(row)


def resume_requested(ledger: Ledger, e: ResumeRequested) -> None:
    row = e.row
    if row not in ledger.held_back or (e.by_itself and row not in ledger.idle_jobs):
        return
    del ledger.held_back[row]
    ledger.idle_jobs.discard(row)
    if ledger.state[row] == HELD:
        ledger.enter(row, PENDING, e.at_s)
    by = f"resumed by {e.user or 'its owner'}"
    ledger.tell(row, e.at_s, "it called an operation again" if e.by_itself else by)
    if row in ledger.waits_for:
        ledger.reason[row] = Reason.WAIT_DEPENDENCY
        ledger.note_change(row)
    else:
        ledger.enter_open(row)


def stop_requested(ledger: Ledger, e: StopRequested) -> None:
    row = e.row
    if ledger.state[row] == STOPPING:
        return
    had_processes = ledger.has_processes(row)
    by = f" by {e.user}" if e.user else ""
    ledger.tell(row, e.at_s, f"asked to stop{by} ({e.outcome.name})")
    ledger.leave_active(row)
    ledger.backoff.pop(row, None)
    ledger.held_back.pop(row, None)
    ledger.idle_jobs.discard(row)
    if not had_processes:
        ledger.end(row, e.at_s, e.outcome, None, "it had not started")
        return
    ledger.pause_clock(row, e.at_s)
    ledger.stop_outcome[row] = e.outcome
    if isinstance(ledger.outstanding[row], STARTS):
        ledger.state[row] = STOPPING  # it may have started since the command
    else:
        ledger.enter(row, STOPPING, e.at_s)
    ledger.settle(row)


def job_cleaned(ledger: Ledger, e: JobCleaned) -> None:
    before = ledger.cleaned.get(e.row)
    kept = e.keeps_checkpoints and (before is None or before.keeps_checkpoints)
    ledger.cleaned[e.row] = e._replace(keeps_checkpoints=kept)
    what = "its output was removed" if kept else "its output and checkpoints were removed"
    ledger.tell(e.row, e.at_s, f"{what} by {e.user}" if e.user else what)


def retry_due(ledger: Ledger, e: RetryDue) -> None:
    if ledger.backoff.pop(e.row, None) is None:
        ledger.refuse(e.row, "told to retry")
    stays_out = e.row in ledger.held_back or ledger.state[e.row] == STOPPING
    if ledger.is_open(e.row) or stays_out:
        ledger.note_change(e.row)
    else:
        ledger.enter_open(e.row)
