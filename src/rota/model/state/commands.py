"""Changes to the ledger when commands are sent, and when they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rota.model.commands import (
    RULES,
    Launch,
    Migrate,
    Park,
    Resize,
    Resume,
    Retune,
    SetCpus,
    Stop,
    Suspend,
)
from rota.model.events import CommandFailed, CommandSent
from rota.model.reason import Reason
from rota.model.state.cpus import fail_cpus
from rota.model.state.ledger import (
    HELD,
    PENDING,
    RUNNING,
    STOPPING,
    SUSPENDED,
    Ledger,
)
from rota.model.state.resizing import fail_resize, fail_retune, send_resize


def command_sent(ledger: Ledger, e: CommandSent) -> None:
    at_s, command = e
    row, kind, outstanding = command.row, type(command), ledger.outstanding
    sent_to, becoming, overtakes, send = _SENT[kind]
    before = outstanding[row]
    if ledger.state[row] != sent_to or (before is not None and type(before) not in overtakes):
        ledger.refuse(row, RULES[kind].refusal or f"sent {kind.__name__}")
    send(ledger, row, command, at_s)
    ledger.state[row] = becoming
    outstanding[row] = command
    if command.command_id >= ledger.next_command_id:
        ledger.next_command_id = command.command_id + 1


def command_failed(ledger: Ledger, e: CommandFailed) -> None:
    row = e.row
    command = ledger.outstanding[row]
    if command is None or command.command_id != e.command_id:
        ledger.refuse(row, f"failed command {e.command_id}")
    ledger.outstanding[row] = None
    ledger.tell(row, e.at_s, f"{type(command).__name__.lower()} failed: {e.error}")
    FAILED[type(command)](ledger, e)
    ledger.settle(row)
    ledger.note_change(row)


def _start_sent(ledger: Ledger, row: int, command: Launch | Resume | Migrate, at_s: float) -> None:
    allocation = command.allocation
    idle = ledger.idle_background if allocation.background else ledger.idle
    if ledger.held[row] is not None or not idle.take(allocation):
        ledger.refuse(row, f"sent {type(command).__name__}")
    ledger.held[row] = allocation
    ledger.holding[row] = None
    if command.millicores is not None:
        ledger.held_cpus[row] = command.millicores
    if ledger.parked_in_vain:
        ledger.forget_parking(row)
    if allocation.num_gpus != ledger.num_gpus[row]:
        ledger.size(row, allocation.num_gpus)
    if type(command) is Launch:
        ledger.attempt[row] = command.attempt
    ledger.changed_s[row] = at_s


def _suspend_sent(ledger: Ledger, row: int, command: Suspend, at_s: float) -> None:
    ledger.pause_clock(row, at_s)
    ledger.changed.append(row)
    ledger.changed_s[row] = at_s


def _park_sent(ledger: Ledger, row: int, command: Park, at_s: float) -> None:
    if ledger.held[row] is not None:
        ledger.refuse(row, "sent Park")
    ledger.parking[row] = command.allocation
    ledger.unsettled[row] = None
    ledger.changed.append(row)


def _change_sent(ledger: Ledger, row: int, command: Retune | SetCpus, at_s: float) -> None:
    """The job continues meanwhile."""


def _stop_sent(ledger: Ledger, row: int, command: Stop, at_s: float) -> None:
    ledger.pause_clock(row, at_s)
    ledger.changed_s[row] = at_s


def _launch_failed(ledger: Ledger, e: CommandFailed) -> None:
    if ledger.state[e.row] != STOPPING:
        _start_failed(ledger, e, PENDING, HELD)
    else:
        ledger.end(e.row, e.at_s, ledger.stop_outcome[e.row], None, "it had not started")


def _resume_failed(ledger: Ledger, e: CommandFailed) -> None:
    _start_failed(ledger, e, SUSPENDED, SUSPENDED)


def _start_failed(ledger: Ledger, e: CommandFailed, waits: int, held_back: int) -> None:
    """The job waits again, or is held back if its owner wants that."""
    row = e.row
    ledger.release(row)
    ledger.leave_active(row)
    if row in ledger.held_back:
        ledger.enter(row, held_back, e.at_s)
    elif ledger.state[row] != STOPPING:
        ledger.enter(row, waits, e.at_s)
        ledger.reason[row] = Reason.WAIT_BACKOFF
        _back_off(ledger, e)


def _park_failed(ledger: Ledger, e: CommandFailed) -> None:
    """The state is where it was; another node comes first when it is tried again."""
    row = e.row
    (node,) = ledger.parking.pop(row).nodes()
    counts = ledger.parked_in_vain.setdefault(row, {})
    counts[node] = counts.get(node, 0) + 1
    if ledger.state[row] != STOPPING:
        _back_off(ledger, e)
        ledger.enter(row, SUSPENDED, e.at_s)


def _suspend_failed(ledger: Ledger, e: CommandFailed) -> None:
    if ledger.state[e.row] != STOPPING:
        _back_off(ledger, e)
        ledger.since_s[e.row] = ledger.changed_s[e.row]
        ledger.enter(e.row, RUNNING, e.at_s)


def _resize_failed(ledger: Ledger, e: CommandFailed) -> None:
    fail_resize(ledger, e.row)
    _back_off(ledger, e)


def _retune_failed(ledger: Ledger, e: CommandFailed) -> None:
    fail_retune(ledger, e.row)
    _back_off(ledger, e)


def _set_cpus_failed(ledger: Ledger, e: CommandFailed) -> None:
    fail_cpus(ledger, e.row)
    _back_off(ledger, e)


def _back_off(ledger: Ledger, e: CommandFailed) -> None:
    ledger.backoff[e.row] = e.retry_at_s  # not again at once


SENT: dict[type, Callable[[Ledger, int, Any, float], None]] = {
    Launch: _start_sent,
    Suspend: _suspend_sent,
    Resume: _start_sent,
    Migrate: _start_sent,
    Park: _park_sent,
    Resize: send_resize,
    Retune: _change_sent,
    SetCpus: _change_sent,
    Stop: _stop_sent,
}
FAILED: dict[type, Callable[[Ledger, CommandFailed], None]] = {
    Launch: _launch_failed,
    Suspend: _suspend_failed,
    Resume: _resume_failed,
    Migrate: _resume_failed,
    Park: _park_failed,
    Resize: _resize_failed,
    Retune: _retune_failed,
    SetCpus: _set_cpus_failed,
    Stop: _back_off,
}

# As plain tuples and integers, which are faster to unpack and to compare.
_SENT = {
    kind: (int(rule.sent_to), int(rule.becoming), rule.overtakes, SENT[kind])
    for kind, rule in RULES.items()
}
