"""The GPUs of their homes that jobs get in their turns under Gandiva."""

from collections import Counter
from collections.abc import Collection, Iterable

from rota.model.allocation import Allocation, of_parts
from rota.model.reason import Reason
from rota.model.view import WhatIf
from rota.policy.gandiva.packing import Packing
from rota.policy.gandiva.turn import Part, Turn
from rota.policy.placement.nodesets import lowest_gpus


class Seats(Part):
    """Gives jobs GPUs for their turn: those they had before, if these are free."""

    def __init__(self, turn: Turn, packing: Packing) -> None:
        super().__init__(turn)
        self._packing = packing
        self._claims: dict[int, int] = {}

    def place(self, chosen: dict[int, None], behind: Collection[int], what_if: WhatIf) -> None:
        """Give those chosen GPUs of their homes; others lose theirs first.

        A job that finds none is no longer chosen, unless it can go on with its present GPUs.
        ``behind`` are trials that are to wait.
        """
        view = self._view
        seats = self._seats(chosen)
        for row in self._lodged:
            target = view.target[row]
            stays = row in chosen and target is not None and self._may_stay(row, target, seats)
            if target is not None and not stays:
                undone = row in self._packing.undone
                turn = Reason.PACK_UNDONE if undone else Reason.SLICE_WAITING_TURN
                what_if.release(row, Reason.TRIAL_BEHIND if row in behind else turn)
        # Who can only go on where it was comes first, then who is in a pack that has GPUs.
        waiting = [row for row in chosen if what_if.target(row) is None]
        waiting.sort(
            key=lambda row: (not view.must_stay(row), not self._packing.gpus_of(row, what_if))
        )
        self._claims = self._claimed(waiting)
        for row in waiting:
            allocation = self.allocation(row, what_if)
            if allocation is None or not what_if.free.fits(allocation):
                allocation = self._as_before(row, what_if)
            if allocation is None:
                del chosen[row]
            else:
                what_if.give(row, allocation)
        self._claims.clear()

    def _as_before(self, row: int, what_if: WhatIf) -> Allocation | None:
        """The present GPUs of a job that was to change its size in place, if they are free."""
        target = self._view.target[row]
        if target is None or not self._resizes_here(row):
            return None
        return target if what_if.free.fits(target) else None

    def _claimed(self, waiting: Iterable[int]) -> dict[int, int]:
        """By node, the GPUs of elastic jobs that change their sizes there.

        A job that resizes as it runs must keep one of its GPUs.
        """
        claims: dict[int, int] = {}
        for row in waiting:
            if self._resizes_here(row) and (target := self._view.target[row]) is not None:
                for node, mask in target.parts:
                    claims[node] = claims.get(node, 0) | mask
        return claims

    def _resizes_here(self, row: int) -> bool:
        """True if an elastic job is on its home's nodes, and is to have another size there."""
        target, notes = self._view.target[row], self._notes[row]
        if target is None or self._view.spec[row].elastic is None or notes.pack is not None:
            return False
        return target.nodes() == tuple(node for node, _ in notes.home)

    def _seats(self, chosen: dict[int, None]) -> dict[tuple[int, ...], Allocation]:
        """The GPU that each pack keeps, of which it has most jobs there already.

        Jobs that change packs may still be on one GPU with those whom they have left.
        """
        there: Counter[tuple[tuple[int, ...], Allocation]] = Counter()
        for row in chosen:
            target = self._view.target[row]
            if target is not None and target.shared and self._packing.is_packed(row):
                there[self._packing.unit(row), target] += 1
        seats: dict[tuple[int, ...], Allocation] = {}
        taken: set[Allocation] = set()
        for (unit, gpu), _ in sorted(there.items(), key=lambda item: (-item[1], item[0][0])):
            if unit not in seats and gpu not in taken:
                seats[unit] = gpu
                taken.add(gpu)
        return seats

    def _may_stay(
        self, row: int, target: Allocation, seats: dict[tuple[int, ...], Allocation]
    ) -> bool:
        """True if the GPUs that a job has are those that it should have."""
        if self._packing.is_packed(row) and seats.get(self._packing.unit(row)) != target:
            return False
        home = self._notes[row].home
        counts = tuple((node, mask.bit_count()) for node, mask in target.parts)
        return counts == home and target.shared == self._packing.is_packed(row)

    def allocation(self, row: int, what_if: WhatIf) -> Allocation | None:
        """GPUs of the job's home: those that it had, or its pack has, else the lowest free."""
        home, packed = self._notes[row].home, self._packing.is_packed(row)
        if packed:
            gpus = self._packing.gpus_of(row, what_if)
            if gpus:
                return of_parts([(home[0][0], gpus)], shared=True)
        for known in self._known(row):
            counts = tuple((node, mask.bit_count()) for node, mask in known.parts)
            # The first of a pack needs a GPU that is free: one that others share is another pack's.
            if counts == home and what_if.free.fits(known.with_sharing(False)):
                return known.with_sharing(packed)
        if self._view.must_stay(row):
            return None
        parts = []
        for node, gpus in home:
            free = what_if.free.masks[node]
            before = self._before(row, node)
            kept = lowest_gpus(before & free, min(gpus, (before & free).bit_count()))
            more = gpus - kept.bit_count()
            free &= ~kept
            if free.bit_count() < more:
                return None
            others = self._claims.get(node, 0)
            first = lowest_gpus(free & ~others, min(more, (free & ~others).bit_count()))
            rest = lowest_gpus(free & ~first, more - first.bit_count())
            parts.append((node, kept | first | rest))
        return of_parts(parts, shared=packed) if parts else None

    def _known(self, row: int) -> Iterable[Allocation]:
        for known in (self._view.target[row], self._view.home[row]):
            if known is not None:
                yield known

    def _before(self, row: int, node: int) -> int:
        """GPUs of a node that the job has or had last: a larger or smaller gang keeps some."""
        return next((m for k in self._known(row) for n, m in k.parts if n == node), 0)
