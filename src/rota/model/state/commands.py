"""What commands do to the ledger as they are sent, and as they fail."""

from __future__ import annotations

from rota.model.commands import Launch, Migrate, Resize, Retune, Stop, Suspend, may_follow
from rota.model.events import CommandFailed, CommandSent
from rota.model.reason import Reason
from rota.model.state.ledger import (
    HELD,
    MIGRATING,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    SUSPENDED,
    SUSPENDING,
    Ledger,
)
from rota.model.state.lifecycle import STARTS
from rota.model.state.resizing import fail_resize, fail_retune, send_change


def command_sent(ledger: Ledger, e: CommandSent) -> None:
    at_s, command = e
    row, kind, outstanding = command.row, type(command), ledger.outstanding
    if outstanding[row] is not None and not may_follow(outstanding[row], command):
        ledger.refuse(row, f"sent {kind.__name__}")
    if isinstance(command, STARTS):
        allocation = command.allocation
        if ledger.held[row] is not None or not ledger.idle.take(allocation):
            ledger.refuse(row, f"sent {kind.__name__}")
        ledger.held[row] = allocation
        if allocation.num_gpus != ledger.num_gpus[row]:
            ledger.size(row, allocation.num_gpus)
        if kind is Launch:
            ledger.attempt[row] = command.attempt
            ledger.state[row] = STARTING
        elif kind is Migrate:
            ledger.state[row] = MIGRATING
    elif isinstance(command, Resize | Retune):
        send_change(ledger, row, command)
        outstanding[row] = command
        ledger.next_command_id = max(ledger.next_command_id, command.command_id + 1)
        return  # the job goes on meanwhile
    elif kind is Suspend:
        ledger.pause_clock(row, at_s)
        ledger.changed.append(row)
        ledger.state[row] = SUSPENDING
    ledger.changed_s[row] = at_s
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
    if isinstance(command, Resize):
        fail_resize(ledger, row)
        ledger.backoff[row] = e.retry_at_s
    elif isinstance(command, Retune):
        fail_retune(ledger, row)
        ledger.backoff[row] = e.retry_at_s
    elif isinstance(command, Suspend | Stop):
        if isinstance(command, Stop) or ledger.state[row] != STOPPING:
            ledger.backoff[row] = e.retry_at_s  # not again at once
        if ledger.state[row] != STOPPING:
            ledger.since_s[row] = ledger.changed_s[row]
            ledger.enter(row, RUNNING, e.at_s)
    elif isinstance(command, STARTS):
        ledger.release(row)
        ledger.leave_active(row)
        waits = PENDING if isinstance(command, Launch) else SUSPENDED
        if row in ledger.user_suspended:
            ledger.enter(row, HELD if waits == PENDING else SUSPENDED, e.at_s)
        elif ledger.state[row] != STOPPING:
            ledger.enter(row, waits, e.at_s)
            ledger.reason[row] = Reason.WAIT_BACKOFF
            ledger.backoff[row] = e.retry_at_s
        elif isinstance(command, Launch):
            ledger.end(row, e.at_s, ledger.stop_outcome[row], None, "it had not started")
            return
    ledger.settle(row)
    ledger.note_change(row)
