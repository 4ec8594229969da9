"""Changes to the ledger by events of searches. Trials come and end as any job does."""

from __future__ import annotations

from rota.model.events import MetricReported, SweepEnded, SweepSubmitted, TrialStopped
from rota.model.job import JobSpec
from rota.model.state.ledger import NEEDLESS, Ledger


def add_trial(ledger: Ledger, row: int, spec: JobSpec) -> None:
    if spec.trial is None:
        return
    ledger.sweeps.setdefault(spec.trial.sweep.name, []).append(row)
    if not spec.simulated and ledger.curves is None:
        from rota.model.measured.curves import (
            ToldCurves,  # here: simulated jobs have no program
        )

        ledger.curves = ledger.told_curves = ToldCurves()


def search_changed(ledger: Ledger, e: SweepSubmitted | SweepEnded) -> None:
    """Nothing: the event has no job."""


def trial_stopped(ledger: Ledger, e: TrialStopped) -> None:
    ledger.needless[e.row] = e.why
    ledger.tell(e.row, e.at_s, NEEDLESS + e.why)


def metric_reported(ledger: Ledger, e: MetricReported) -> None:
    if ledger.told_curves is not None and ledger.spec[e.row].trial is not None:
        ledger.told_curves.note(e.row, ledger.attempt[e.row], e.reports)
        ledger.changed.append(e.row)  # for the next decision: one for each report is too many
