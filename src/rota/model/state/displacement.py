"""Jobs that took the GPUs of others, derived from each decision: logs of before tell it as well."""

from __future__ import annotations

from rota.model.allocation import Allocation
from rota.model.naming import MOST_NAMED
from rota.model.state.ledger import Ledger


def note_displaced(ledger: Ledger, allocations: dict[int, Allocation | None]) -> None:
    """Note of the jobs that lose GPUs by this plan which jobs get these; before it is applied."""
    displaced, target = ledger.displaced, ledger.target
    losers: list[tuple[int, Allocation]] = []
    takers: dict[int, list[tuple[int, int]]] = {}  # by node: rows, and the GPUs that they get anew
    for row, after in allocations.items():
        before = target[row]
        if before is not None and loss(before, after):
            losers.append((row, before))
        elif after is not None:
            displaced.pop(row, None)
        gained = after if before is None or after is None else after.without(before)
        for node, mask in gained.parts if gained is not None else ():
            takers.setdefault(node, []).append((row, mask))
    for row, before in losers:
        after = allocations[row]
        lost = before if after is None else before.without(after)
        by = (
            other
            for node, mask in (lost.parts if lost is not None else ())
            for other, theirs in takers.get(node, ())
            if theirs & mask and (before.background or not _is_background(allocations[other]))
        )
        displaced[row] = tuple(dict.fromkeys(by))


def _is_background(place: Allocation | None) -> bool:
    return place is not None and place.background


def loss(before: Allocation, after: Allocation | None) -> str:
    """In one word how a job loses GPUs from one plan to the next; empty if it does not."""
    if after is None:
        return "suspended"
    if after.num_gpus < before.num_gpus:
        return "shrunk"
    return "moved" if before.without(after) is not None else ""


def in_favour(ledger: Ledger, row: int) -> str:
    """`` in favour of job 7 (train) of alice``, of a job whose GPUs others get; else empty."""
    by = ledger.displaced.get(row)
    return f" in favour of {takers_text(ledger, by)}" if by else ""


def takers_text(ledger: Ledger, rows: tuple[int, ...]) -> str:
    """These jobs by id, name and user; of many the first ones."""
    named = [_job_text(ledger, row) for row in rows[:MOST_NAMED]]
    more = len(rows) - len(named)
    if more:
        named.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def _job_text(ledger: Ledger, row: int) -> str:
    spec = ledger.spec[row]
    name = f" ({spec.name})" if spec.name and spec.name != spec.job_id else ""
    return f"job {spec.job_id}{name}" + (f" of {spec.user}" if spec.user else "")
