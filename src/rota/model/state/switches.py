"""Changes to the ledger by a job's stop or start, from its command to its confirmation.

A simulation that nobody watches brings the ledger there at once: see :mod:`rota.sim.switching`.
"""

from rota.model.allocation import Allocation
from rota.model.job import Suspension
from rota.model.state.ledger import PENDING, RUNNING, SUSPENDED, Ledger

EVENTS_EACH = 2  # a command that is sent, and what confirms it


def stop(ledger: Ledger, row: int, sent_s: float, at_s: float) -> None:
    """Apply a Suspend sent at ``sent_s`` and JobSuspended at ``at_s``, without changed rows."""
    held = ledger.held[row]
    assert held is not None
    ledger.pause_clock(row, sent_s)
    ledger.overhead_s[row] += at_s - sent_s
    ledger.home[row], ledger.held[row] = held, None
    ledger.stored[row] = None
    del ledger.holding[row]
    ledger.idle.give(held)
    ledger.state[row] = SUSPENDED
    ledger.changed_s[row] = at_s
    _sent(ledger, row)


def go_on(
    ledger: Ledger, row: int, target: Allocation, sent_s: float, at_s: float, speed: float
) -> None:
    """Apply a Launch, Resume or Migrate of ``sent_s``, and its confirmation at ``at_s``."""
    home = ledger.home[row]
    if ledger.state[row] == PENDING:
        ledger.attempt[row] += 1
        if ledger.spec[row].suspension == Suspension.PROCESS:
            ledger.stay(row)
    elif home is not None and moves(home, target):
        ledger.migrations[row] += 1
    if ledger.first_start_s[row] >= 0:
        ledger.restarts[row] += 1
    else:
        ledger.first_start_s[row] = at_s
    ledger.overhead_s[row] += at_s - sent_s
    ledger.home[row], ledger.held[row] = None, target
    if home is not None:
        del ledger.stored[row]
    ledger.holding[row] = None
    ledger.idle.take(target)
    ledger.since_s[row] = ledger.changed_s[row] = at_s
    ledger.speed[row] = speed
    ledger.state[row] = RUNNING
    _sent(ledger, row)


def moves(home: Allocation, target: Allocation) -> bool:
    """True if a job whose state lies at ``home`` goes on on other nodes."""
    return home is not target and home.nodes() != target.nodes()


def _sent(ledger: Ledger, row: int) -> None:
    ledger.changed.append(row)
    del ledger.unsettled[row]
    ledger.next_command_id += 1
    ledger.events += EVENTS_EACH
