"""EASY backfilling: GPUs set aside for the first that does not fit, and who may pass it.

Lifka, *The ANL/IBM SP Scheduling System*, JSSPP 1995; Mu'alem and Feitelson, *Utilization,
Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling*,
IEEE TPDS 12(6), 2001, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.notes import Reserved
from rota.model.view import View, WhatIf
from rota.policy.placement import Placement, by_size
from rota.policy.placement.consolidate import consolidate
from rota.policy.placement.nodesets import lowest_gpus


class Backfill:
    """The reservation of the first job of a walk that does not fit, and the jobs that may pass it.

    ``end_s`` says of a row when the job ends at the latest, if it starts or goes on now.
    """

    def __init__(self, end_s: Callable[[int], float]) -> None:
        self.end_s = end_s
        self.reservation: Reservation | None = None

    def reserve(self, what_if: WhatIf, row: int, placement: Placement) -> None:
        """Set GPUs aside for a job; not for one that has no room though all that run have ended."""
        reservation = Reservation(what_if, row, self.end_s, placement)
        if reservation.place is not None:
            self.reservation = reservation

    def note(self) -> Reserved | None:
        """The reservation as a note for people."""
        return None if self.reservation is None else self.reservation.note()


class Reservation:
    """GPUs for the job of ``row`` from ``at_s`` on, if jobs end by when ``end_s`` says.

    ``place`` has the GPUs; None if there is no room for it though all that run have ended.
    ``at_s`` is infinite where it waits for a job that may run for ever. ``placement`` says where
    jobs go, as :func:`one_node` makes it.
    """

    def __init__(
        self, what_if: WhatIf, row: int, end_s: Callable[[int], float], placement: Placement
    ) -> None:
        view = what_if.view
        self.row, self.at_s = row, inf
        self.place: Allocation | None = None
        self._view, self._end_s, self._placement = view, end_s, placement
        self._later = what_if.free.copy()  # the GPUs that are free at at_s
        self._awaited: list[tuple[int, Allocation]] = []  # the jobs that have ended by then
        running = ((r, what_if.target(r)) for r in view.active)
        ends = sorted((end_s(r), r, held) for r, held in running if held is not None)
        for place_in_line, (at_s, other, held) in enumerate(ends, 1):
            self._later.give(held)
            self._awaited.append((other, held))
            together = place_in_line < len(ends) and ends[place_in_line][0] == at_s < inf
            if not together and self._finds_place():
                self.at_s = at_s
                break

    def beside(self, what_if: WhatIf, row: int, place: Allocation) -> Allocation | None:
        """GPUs for the job of ``row`` that don't let the first one start later; None: it waits.

        These are ``place`` if it ends before, or if the first one has room without them; or others
        that the first one leaves.
        """
        if self._end_s(row) <= self.at_s < inf or self._leaves_room(place):
            return place
        assert self.place is not None
        others = what_if.free.copy()
        for node, mask in self.place.parts:
            others.set_mask(node, others.masks[node] & ~mask)
        elsewhere = where(self._view, others, row, self._placement)
        return elsewhere if elsewhere is not None and self._leaves_room(elsewhere) else None

    def note(self) -> Reserved:
        """The reservation as a note for people: the jobs to wait for are those on its GPUs."""
        assert self.place is not None
        masks = dict(self.place.parts)
        awaited = (
            row
            for row, held in self._awaited
            if any(mask & masks.get(node, 0) for node, mask in held.parts)
        )
        return Reserved(self.row, self.at_s if self.at_s < inf else None, tuple(awaited))

    def _finds_place(self) -> bool:
        self.place = where(self._view, self._later, self.row, self._placement)
        return self.place is not None

    def _leaves_room(self, place: Allocation) -> bool:
        """True, and they are taken, if the first one has room at ``at_s`` without these GPUs."""
        before = self.place
        if not self._later.take(place):
            return False
        if self._finds_place():
            return True
        self._later.give(place)
        self.place = before
        return False


def one_node(placement: Placement | None) -> Placement:
    """``placement``, or as few nodes as can be, with gangs on one node where they have to be.

    So it is on live clusters; there a job that can't leave its node stays on it.
    """
    anywhere = placement or by_size(consolidate)

    def place(view: View, free: FreeGpus, row: int) -> Allocation | None:
        home = view.home[row]
        if home is not None and view.is_live and view.stays_on_node(row):
            if len(home.parts) > 1:
                return home if free.fits(home) else None
            node, num_gpus = home.nodes()[0], view.num_gpus[row]
            if free.masks[node].bit_count() < num_gpus:
                return None
            return Allocation(((node, lowest_gpus(free.masks[node], num_gpus)),))
        found = anywhere(view, free, row)
        if found is None or len(found.parts) == 1 or not view.one_node_gangs(row):
            return found
        found = consolidate(free, view.num_gpus[row])
        return found if found is not None and len(found.parts) == 1 else None

    return place


def where(view: View, free: FreeGpus, row: int, placement: Placement) -> Allocation | None:
    """The GPUs that the job gets of free ones: those it was suspended on, else as placed."""
    home = view.home[row]
    if home is not None:
        if free.fits(home):
            return home
        if view.must_stay(row):
            return None
    return placement(view, free, row) if view.num_gpus[row] <= free.count else None
