"""Changes to the CPU cores that jobs may use."""

from __future__ import annotations

from rota.model.allocation import cores_text
from rota.model.commands import SetCpus
from rota.model.events import CpusSet
from rota.model.state.ledger import Ledger


def aim_at_cpus(ledger: Ledger, cpus: dict[int, int | None]) -> None:
    """Make these the cores that jobs are to have."""
    for row, millicores in cpus.items():
        hold(ledger.target_cpus, row, millicores)
        ledger.settle(row)


def hold(column: dict[int, int], row: int, millicores: int | None) -> None:
    """Write a job's cores into a column, which has no entry for jobs without a limit."""
    if millicores is None:
        column.pop(row, None)
    else:
        column[row] = millicores


def cpus_set(ledger: Ledger, e: CpusSet) -> None:
    row = e.row
    if isinstance(ledger.outstanding[row], SetCpus):
        ledger.outstanding[row] = None
    ledger.pause_clock(row, e.at_s)
    ledger.since_s[row] = e.at_s
    hold(ledger.held_cpus, row, e.millicores)
    ledger.speed[row] = e.speed
    ledger.settle(row)
    if ledger.keeps_stories:
        limit = "any number of CPU cores" if e.millicores is None else cores_text(e.millicores)
        ledger.tell(row, e.at_s, f"may use {limit}")
    ledger.changed.append(row)


def fail_cpus(ledger: Ledger, row: int) -> None:
    """Give up the cores that a job was to have, for those that it has."""
    hold(ledger.target_cpus, row, ledger.held_cpus.get(row))
