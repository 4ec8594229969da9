"""Orderings by a number per job, kept so that a decision touches the jobs that can matter."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import Policy
from rota.policy.stages.selection import (
    SPARING,
    Stages,
    break_off,
    finish,
    has_a_say,
    place,
    walk,
)

Key = Callable[[View, int], int]


class Ranked(Policy):
    """A policy whose order is a key, the least first; ties by arrival, then id.

    Keys are whole numbers, so that what is equal on paper is equal, however it was added up. The
    key of a job may change while it runs, not while it waits. :meth:`decide` preempts: at each
    decision the order is walked from its head, and each gang that still fits runs.
    """

    composes = True
    stages: Stages | None = SPARING
    preempted = Reason.PREEMPTED_BY
    waits = Reason.WAIT_RESOURCES
    _index: "Ranking | None" = None
    _plan: Plan | None = None

    def key(self, view: View, row: int) -> int:
        """The job's rank now."""
        raise NotImplementedError("a ranked policy must override key()")

    def rank(self, view: View, row: int) -> tuple[float, ...]:
        """The job's key."""
        return (self.key(view, row),)

    def admit(self, view: View, index: "Ranking") -> None:
        """Called before jobs that began to wait are ranked; a policy may prepare their keys."""

    def decide(self, view: View) -> Plan:
        """Run the first that fit; if one that has just begun would be stopped, none of those."""
        what_if, _ = self.run(view, preempt=True)
        spare = break_off(self.stages, view, what_if.released())
        if spare:
            self._index = None
            what_if = self._walk(view, spare_young=True)
        return self.remember(finish(self.stages, what_if, spare_young=spare))

    def run(self, view: View, *, preempt: bool) -> tuple[WhatIf, bool]:
        """Let jobs run in order, those with GPUs only if they are reached when ``preempt``.

        Returns the what_if, and whether a job waits that the cluster could hold.
        """
        composed = has_a_say(self.stages, view)
        index = Ranking(view, self.key) if composed else self._current(view)
        self.admit(view, index)
        if not composed:
            index.enter(view)
            what_if = view.what_if()
            tell = (what_if, self.preempted, self.waits)
            if index.walk(*tell) if preempt else index.fill(*tell):
                self._index = index
                return what_if, index.someone_waits()
        self._index = None
        what_if = self._walk(view, keep=() if preempt else view.active)
        fits = (row for row in view.active if view.num_gpus[row] <= view.total_gpus)
        return what_if, any(what_if.target(row) is None for row in fits)

    def _walk(self, view: View, **how: Any) -> WhatIf:
        """Look at every job, in order."""
        what_if = view.what_if()
        rows = sorted(view.active, key=lambda row: (self.key(view, row), row))
        walk(self.stages, what_if, rows, preempted=self.preempted, waits=self.waits, **how)
        return what_if

    def remember(self, plan: Plan) -> Plan:
        """Take note that this is the plan after which the index holds."""
        self._plan = plan
        return plan

    def _current(self, view: View) -> "Ranking":
        index, last = self._index, self._plan
        if index is None or last is None or view.plan is not last or not index.follow(view):
            return Ranking(view, self.key)
        return index


class Ranking:
    """The active jobs by key: those that wait in a heap per size of gang, the others in a set.

    A gang that does not fit now does not fit later in the same walk, and neither does any other
    of its size: a walk looks at the heads of the heaps and at the jobs that have GPUs. Entries of
    heaps that no longer hold are skipped when they come up.
    """

    def __init__(self, view: View, key: Key) -> None:
        self._key = key
        self._total = view.total_gpus
        self._heaps: dict[int, list[tuple[int, int]]] = {}
        self._queued: dict[int, int] = {}  # key of each row that waits, as in its heap
        self._holders: dict[int, None] = {}
        self._released: list[int] = []  # by the last plan: ranked by what they did until then
        # Rows that are not ranked yet, or whose reason to wait may have to be told.
        self.touched: dict[int, None] = dict.fromkeys(view.active)
        for row in view.active:
            if view.target[row] is not None:
                self._holders[row] = None

    def follow(self, view: View) -> bool:
        """Take in what changed since the last decision. False: too much did, build a new one."""
        if view.total_gpus != self._total:
            return False
        both = (*view.changed, *self._released)
        self.touched = {row: None for row in both if row in view.active}
        self._released = []
        for row in view.changed:
            self._queued.pop(row, None)
            self._holders.pop(row, None)
            if row in view.active and view.target[row] is not None:
                self._holders[row] = None
        return True

    def enter(self, view: View) -> None:
        """Rank the jobs that began to wait."""
        for row in self.touched:
            if view.target[row] is None:
                self._queue(view, row)

    def least(self, view: View, rows: Iterable[int]) -> int | None:
        """The first row of all that the cluster could hold, ``rows`` among those not ranked yet."""
        heads = (self._head(view, size) for size in self._heaps)
        ranks = [head for head in heads if head is not None]
        ranks += [(self._key(view, row), row) for row in self._holders if row not in self.touched]
        ranks += [(self._key(view, row), row) for row in rows if view.num_gpus[row] <= self._total]
        return min(ranks)[1] if ranks else None

    def walk(self, what_if: WhatIf, preempted_by: Reason, waits: Reason) -> bool:
        """Walk the order from its head: start and preempt. False if a start can't be placed."""
        view, num_gpus = what_if.view, what_if.view.num_gpus
        heads = self._heads(view, self._total)
        free = self._total
        starts: list[int] = []
        preempted: list[int] = []
        key = self._key
        holders = self._holders if heads else ()  # without heads, the holders fit together
        for rank, row in sorted([(key(view, row), row) for row in holders]):
            while heads and heads[0] < (rank, row, 0):
                free -= self._take(view, heads, free, starts)
            if not heads and not starts:
                break
            if num_gpus[row] <= free:
                free -= num_gpus[row]
            else:
                preempted.append(row)
        while heads:
            free -= self._take(view, heads, free, starts)
        for row in preempted:
            what_if.release(row, preempted_by)
            del self._holders[row]
        self._released = preempted
        return self._place(what_if, starts, waits)

    def fill(self, what_if: WhatIf, preempted_by: Reason, waits: Reason) -> bool:
        """Start who fits into the free GPUs, in order. False if a start can't be placed."""
        free, starts = what_if.free.count, list[int]()
        heads = self._heads(what_if.view, free)
        while heads:
            free -= self._take(what_if.view, heads, free, starts)
        return self._place(what_if, starts, waits)

    def someone_waits(self) -> bool:
        """True if a job waits that the cluster could hold."""
        return bool(self._released or self._queued)

    def _heads(self, view: View, free: int) -> list[tuple[int, int, int]]:
        """A heap of the first of each size of gang that fits: (key, row, size)."""
        heads = []
        for size in self._heaps:
            if size <= free:
                head = self._head(view, size)
                if head is not None:
                    heads.append((*head, size))
        heapify(heads)
        return heads

    def _take(
        self, view: View, heads: list[tuple[int, int, int]], free: int, starts: list[int]
    ) -> int:
        """Start the first of ``heads`` if it fits, and put the next of its size there; its GPUs."""
        _, row, size = heappop(heads)
        if size > free:
            return 0
        starts.append(row)
        del self._queued[row]
        if 2 * size <= free:
            head = self._head(view, size)
            if head is not None:
                heappush(heads, (*head, size))
        return size

    def _head(self, view: View, size: int) -> tuple[int, int] | None:
        heap = self._heaps[size]
        while heap:
            rank, row = heap[0]
            if self._queued.get(row) == rank:
                # A job may run on for a moment after it lost its GPUs.
                if self._key(view, row) == rank:
                    return heap[0]
                self._queue(view, row)
            heappop(heap)
        return None

    def _queue(self, view: View, row: int) -> None:
        rank, size = self._key(view, row), view.num_gpus[row]
        if self._queued.get(row) != rank and size <= self._total:
            self._queued[row] = rank
            heappush(self._heaps.setdefault(size, []), (rank, row))

    def _place(self, what_if: WhatIf, starts: Sequence[int], waits: Reason) -> bool:
        view = what_if.view
        for row in sorted(starts, key=view.must_stay, reverse=True):
            if not place(what_if, row):
                return False
            self._holders[row] = None
        for row in self.touched:
            if view.target[row] is None and what_if.target(row) is None:
                never = view.num_gpus[row] > self._total
                what_if.wait(row, Reason.NEVER_FITS if never else waits)
        return True
