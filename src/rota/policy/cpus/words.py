"""Sentences on why a job has the CPU cores that it has."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

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
        gains = {row: _gain(claim, held[node][row], quanta[node]) for row, claim in jobs.items()}
        for row, claim in jobs.items():
            now, gain, _ = gains[row]
            if not claim.speeds:
                told[row] = "how its speed grows with CPU cores is not known yet"
            elif gain < NOTABLE * now:
                told[row] = "more CPU cores would not make it faster"
            else:
                others = [each for each in jobs if each != row and gains[each].loss > gain]
                told[row] = f"one core more would make it {100 * gain / now:.0f} % faster"
                told[row] += _others(view, others)
    if trial is not None:
        row, tried = trial
        cores, lasts = f"{tried.millicores / 1000:g} CPU cores", f"{rounded(tried.lasts_s)} s"
        told[row] = f"is tried with {cores} for {lasts}"
    return told


class Gain(NamedTuple):
    """A job's part of the sum of relative speeds, what one core more adds, what one less takes.

    All are 0 if nothing is known of the job.
    """

    now: float
    gain: float
    loss: float


@lru_cache(maxsize=8192)  # few claims change from one decision to the next
def _gain(claim: CoreClaim, held: int, quantum: int) -> Gain:
    counts = max(1, held - CORE), held, held + CORE
    less, now, more = (worth([claim], [cores], quantum=quantum) for cores in counts)
    return Gain(now, more - now, now - less)


def _others(view: View, rows: Iterable[int]) -> str:
    ids = [view.spec[row].job_id for row in rows]
    return f"; cores are worth more to {jobs_text(ids)}" if ids else ""
