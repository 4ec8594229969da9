"""Sentences on why a job has the CPU cores that it has."""

from __future__ import annotations

from collections.abc import Iterable

from rota.model.figure import rounded
from rota.model.naming import jobs_text
from rota.model.view import View
from rota.policy.cpus.apportion import CORE, CoreClaim, worth
from rota.policy.cpus.trials import Trial

NOTABLE = 0.01  # relative: a smaller gain is none


def why(
    view: View,
    claims: dict[int, dict[int, CoreClaim]],
    held: dict[int, dict[int, int]],
    quanta: dict[int, int],
    trial: tuple[int, Trial] | None,
) -> dict[int, str]:
    """The sentence of each job with claims, by row; of a gang that on its last node."""
    told: dict[int, str] = {}
    for node, jobs in claims.items():
        quantum = quanta[node]
        now = {row: _worth(claim, held[node][row], quantum) for row, claim in jobs.items()}
        loss = {
            row: now[row] - _worth(claim, max(1, held[node][row] - CORE), quantum)
            for row, claim in jobs.items()
        }
        for row, claim in jobs.items():
            if not claim.speeds:
                told[row] = "how its speed grows with CPU cores is not known yet"
                continue
            gain = _worth(claim, held[node][row] + CORE, quantum) - now[row]
            if gain < NOTABLE * now[row]:
                told[row] = "more CPU cores would not make it faster"
                continue
            told[row] = f"one core more would make it {100 * gain / now[row]:.0f} % faster"
            told[row] += _others(view, [each for each in jobs if each != row and loss[each] > gain])
    if trial is not None:
        row, tried = trial
        cores, lasts = f"{tried.millicores / 1000:g} CPU cores", f"{rounded(tried.lasts_s)} s"
        told[row] = f"is tried with {cores} for {lasts}"
    return told


def _worth(claim: CoreClaim, held: int, quantum: int) -> float:
    """The part of the sum of relative speeds; 0 if nothing is known of the job."""
    return worth([claim], [held], quantum=quantum)


def _others(view: View, rows: Iterable[int]) -> str:
    ids = [view.spec[row].job_id for row in rows]
    return f"; cores are worth more to {jobs_text(ids)}" if ids else ""
