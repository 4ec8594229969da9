"""Which rank has which samples of a batch, and what moves where that changes; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rota.burst.planner.plan import Group

Placement = tuple[tuple[int, ...], ...]  # by rank: the samples that it has, rising


def in_order(counts: Sequence[int]) -> Placement:
    """The samples of a batch of which each rank has the next ``counts[rank]``."""
    found, first = [], 0
    for count in counts:
        found.append(tuple(range(first, first + count)))
        first += count
    return tuple(found)


def even(samples: int, ranks: int) -> list[int]:
    """So many samples cut into ``ranks`` parts that differ by one at most."""
    return [samples * (at + 1) // ranks - samples * at // ranks for at in range(ranks)]


def spread(source: Placement, group: Group) -> Placement:
    """All samples of ``source``, evenly on the ranks of ``group``.

    A rank keeps what it has, up to its part; what is over goes to the ranks with room, in order.
    A group of more ranks than there are samples uses the first ones.
    """
    samples = sum(map(len, source))
    ranks = range(group.first, group.first + min(group.size, samples))
    room = dict(zip(ranks, even(samples, len(ranks)), strict=True)) if samples else {}
    kept = {rank: list(source[rank][: room[rank]]) for rank in ranks}
    taken = {sample for own in kept.values() for sample in own}
    left = [sample for own in source for sample in own if sample not in taken]
    left.sort()
    for rank in ranks:
        lacks = room[rank] - len(kept[rank])
        kept[rank] += left[:lacks]
        del left[:lacks]
    return tuple(tuple(sorted(kept.get(rank, ()))) for rank in range(len(source)))


class Move(NamedTuple):
    """One rank's part in a change of placement; rows are positions in its own samples.

    ``ranks`` are those that send or take, this one among them unless it does neither. ``sent`` and
    ``taken`` are rows by member of ``ranks``: of what it had, and of what it gets. ``kept`` pairs
    rows that stay. ``rows`` is how many samples it then has.
    """

    ranks: tuple[int, ...]
    sent: tuple[tuple[int, ...], ...]
    taken: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, ...], tuple[int, ...]]
    rows: int

    @property
    def stays(self) -> bool:
        """True if this rank has the same samples as before."""
        before, after = self.kept
        nothing_moves = not any(self.sent) and not any(self.taken)
        return nothing_moves and before == after == tuple(range(self.rows))


def move(source: Placement, target: Placement, rank: int) -> Move:
    """What ``rank`` does so that samples placed as ``source`` are placed as ``target``.

    A sample is at one place in ``source``; it may be wanted at several in ``target``.
    """
    holder = {sample: (r, row) for r, own in enumerate(source) for row, sample in enumerate(own)}
    between: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for taker, wanted in enumerate(target):
        for row, sample in enumerate(wanted):
            sender, at = holder[sample]
            between.setdefault((sender, taker), []).append((at, row))
    ranks = tuple(sorted({each for pair in between if pair[0] != pair[1] for each in pair}))
    kept = between.get((rank, rank), [])
    nothing: list[tuple[int, int]] = []
    others = [other if other != rank else -1 for other in ranks]
    return Move(
        ranks,
        tuple(tuple(at for at, _ in between.get((rank, other), nothing)) for other in others),
        tuple(tuple(row for _, row in between.get((other, rank), nothing)) for other in others),
        (tuple(at for at, _ in kept), tuple(row for _, row in kept)),
        len(target[rank]),
    )
