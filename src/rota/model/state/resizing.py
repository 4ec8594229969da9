"""Changes to running jobs without a suspension: other sizes, and other batches."""

from __future__ import annotations

from rota.model.allocation import Allocation, gpus_text
from rota.model.commands import Resize, Retune
from rota.model.events import BatchRefused, JobResized, JobRetuned
from rota.model.state.displacement import in_favour
from rota.model.state.ledger import Ledger, Refusal


def can_resize(ledger: Ledger, row: int, held: Allocation, target: Allocation) -> bool:
    """True if a running job can get from ``held`` to ``target`` without a suspension.

    The job must be elastic, and keep at least one of its GPUs. Its first node stays the first:
    there is the agent that has its gang.
    """
    if not ledger.resizable[row] or ledger.since_s[row] < 0:
        return False
    may = ledger.spec[row].spans_nodes or held.nodes() == target.nodes()
    return may and held.nodes()[0] == target.nodes()[0] and held.without(target) != held


def send_resize(ledger: Ledger, row: int, command: Resize, at_s: float) -> None:
    """The job continues meanwhile, and has the coming GPUs already."""
    held = ledger.held[row]
    assert held is not None
    more = command.allocation.without(held)
    if more is not None and not ledger.idle.take(more):
        ledger.refuse(row, "resized")
    ledger.resizing[row] = held
    ledger.held[row] = held.joined(command.allocation)


def job_resized(ledger: Ledger, e: JobResized) -> None:
    row, held = e.row, ledger.held[e.row]
    assert held is not None
    if isinstance(ledger.outstanding[row], Resize):
        ledger.outstanding[row] = None
    ledger.resizing.pop(row, None)
    left = held.without(e.allocation)
    if left is not None:
        ledger.idle.give(left)
    same = left is None and held.batch == e.allocation.batch
    ledger.held[row] = held if same else e.allocation
    ledger.pause_clock(row, e.at_s)
    ledger.since_s[row] = e.at_s
    ledger.lag_s[row] += e.paused_s
    ledger.restarts[row] += 1
    before = ledger.num_gpus[row]
    ledger.size(row, e.allocation.num_gpus)
    ledger.speed[row] = e.speed
    ledger.settle(row)
    line = _resize_line(e, before)
    if not e.cause and e.allocation.num_gpus < before:
        line += in_favour(ledger, row)
    ledger.tell(row, e.at_s, line)
    ledger.note_change(row)


def job_retuned(ledger: Ledger, e: JobRetuned) -> None:
    row, held = e.row, ledger.held[e.row]
    assert held is not None
    if isinstance(ledger.outstanding[row], Retune):
        ledger.outstanding[row] = None
    ledger.pause_clock(row, e.at_s)
    ledger.since_s[row] = e.at_s
    target = ledger.target[row]
    now = held.with_batch(e.batch)
    ledger.held[row] = target if target is not None and now == target else now
    ledger.speed[row] = e.speed
    ledger.settle(row)
    if ledger.keeps_stories:
        ledger.tell(row, e.at_s, _retune_line(e))
    ledger.changed.append(row)


def fail_retune(ledger: Ledger, row: int) -> None:
    """Give up a target that is the same GPUs with another batch."""
    held, target = ledger.held[row], ledger.target[row]
    if held is not None and target is not None and held.parts == target.parts:
        ledger.target[row] = target.with_batch(held.batch)


def fail_resize(ledger: Ledger, row: int) -> None:
    """Give back the GPUs taken for the resize, and give up a larger target."""
    before, held, target = ledger.resizing.pop(row), ledger.held[row], ledger.target[row]
    assert held is not None
    more = held.without(before)
    if more is not None:
        ledger.idle.give(more)
    ledger.held[row] = before
    if target is not None and before.without(target) is None:
        more = target.without(before)
        if more is not None:
            ledger.assumed.give(more)
        ledger.target[row] = before


def batch_refused(ledger: Ledger, e: BatchRefused) -> None:
    row, held = e.row, ledger.held[e.row]
    if held is None:
        ledger.refuse(row, "told of a batch")
    gpu_type, samples = ledger.nodes[held.parts[0][0]].gpu_type, e.batch[0]
    if e.of_a_gpu:
        known = ledger.refused.setdefault(row, {}).get(gpu_type)
        if known is None or samples < known.samples:
            ledger.refused[row][gpu_type] = Refusal(samples, e.error)
    command, target = ledger.outstanding[row], ledger.target[row]
    if isinstance(command, Retune) and command.batch == e.batch:
        ledger.outstanding[row] = None
        fail_retune(ledger, row)
    elif held.batch == e.batch:  # the batch came with its GPUs; the present one is unknown
        ledger.held[row] = held.with_batch(None)
        if target is not None and target.batch == e.batch:
            ledger.target[row] = target.with_batch(None)
    ledger.settle(row)
    ledger.tell(row, e.at_s, f"{_batch_text(e.batch)} refused: {e.error}")
    ledger.note_change(row)


def _retune_line(e: JobRetuned) -> str:
    if e.batch is None:
        return "retuned to its own batch"
    return f"retuned to {_batch_text(e.batch)}"


def _batch_text(batch: tuple[int, int]) -> str:
    size, accumulations = batch
    return f"{size} samples a GPU" + f", {accumulations + 1} times" * (accumulations > 0)


def _resize_line(e: JobResized, before: int) -> str:
    after = e.allocation.num_gpus
    if not e.cause:
        return f"resized to {gpus_text(after)}"
    return e.cause if after == before else f"{e.cause}; the others go on with {gpus_text(after)}"
