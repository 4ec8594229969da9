"""Feedback queues kept from decision to decision: work in proportion to what has changed."""

from heapq import heappop, heappush
from math import inf

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.stages.selection import place
from rota.policy.tiresias.positions import QueuePositions
from rota.policy.tiresias.queues import (
    ENTERED,
    PREEMPTED,
    RAN,
    Decision,
    Mark,
    Queue,
    Rules,
    Standing,
    Taken,
)

PREEMPTED_BY, NEVER_FITS = Reason.PREEMPTED_BY, Reason.NEVER_FITS
WAIT_RESOURCES = Reason.WAIT_RESOURCES


class FeedbackQueues(QueuePositions):
    """The queues of Tiresias, ``within=entry``, as they were after the last decision.

    Valid while the view shows the plan that :meth:`decide` returned last, on as many GPUs; else
    built anew from the marks of the active rows. Service that moves is told by ``view.changed``, so
    that when a job will sink or be promoted is known ahead and kept in a heap; it is looked up at
    every decision only for jobs that are between two states (``_unsteady``): with GPUs, but not
    running yet, or running still, but without GPUs.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(len(rules.thresholds) + 1)
        self._rules = rules
        self._plan: Plan | None = None
        self._total_gpus = self._now_s = -1.0
        self._taken: Taken | None = None  # noted from the second decision at one instant on
        self._first: Decision | None = None
        self._moves: list[tuple[float, int]] = []  # heap of (moves_at_s, row)
        self._unsteady: set[int] = set()
        self._released: list[int] = []  # by the last decision

    def _clear(self) -> None:
        super()._clear()
        self._moves, self._unsteady, self._released = [], set(), []

    def decide(self, view: View) -> Plan | None:
        """The plan; or None, in states too rare for an index, where every job must be looked at.

        These are: a cluster that has grown or shrunk, a job that lost its GPUs or came back, a job
        that can go on only where it was.
        """
        plan, self._plan = self._plan, None
        now_s, free = view.now_s, view.total_gpus
        if now_s != self._now_s:
            self._now_s, self._taken = now_s, None
        elif self._taken is None and self._first is not None:
            self._taken = self._first.taken()
        if plan is None or plan is not view.plan or free != self._total_gpus:
            self._total_gpus = free
            look = self._build(view)
            if look is None:
                return None
        else:
            look = {*view.changed, *self._unsteady}
        decision = Decision(view)
        if not self._look(decision, look):
            return None
        self._move(decision)
        while True:
            left = free
            for queue in self._queues:
                rest = left - queue.used_gpus
                if rest < 0 or rest >= queue.least_gpus or queue.entering:
                    left = self._walk(decision, queue, left)
                else:  # all that run there go on, and nobody who waits there fits
                    left = rest
            if not self._rules.promote_knob or not (due := self._due(decision)):
                break
            self._take_back(decision, due)
        self._first = decision
        self._plan = plan = self._write(decision)
        return plan

    # -- what has happened since the last decision ----------------------------------------------

    def _build(self, view: View) -> set[int] | None:
        """Take everybody's place from the marks; the rows to look at, None if that is not enough.

        None unless exactly those that RAN in their queue have GPUs.
        """
        self._clear()
        marks, target, now_s = view.marks, view.target, view.now_s
        placed = [(Mark(*marks[row]), row) for row in view.active if marks[row] is not None]
        placed.sort(key=lambda pair: (pair[0].order(), pair[1]))
        self._taken = Taken(placed, now_s)
        for mark, row in placed:
            if (mark.place == RAN) != (target[row] is not None):
                return None
            standing = Standing(mark.queue, mark.base_s, mark.from_s)
            self._standing[row] = standing
            if mark.place == RAN:
                self._run(view, row, standing)
            else:
                self._wait(view, row, standing)
        return set(view.active)

    def _look(self, decision: Decision, rows: set[int]) -> bool:
        """Note what became of ``rows``; False if a place in the middle of a queue was taken."""
        view, standings, unsteady = decision.view, self._standing, self._unsteady
        active, target, now_s = view.active, view.target, view.now_s
        for row in rows:
            standing = standings.get(row)
            if row not in active:
                if standing is not None:
                    self._leave(view, row, standing)
                    del standings[row]
                    unsteady.discard(row)
            elif standing is None:
                if view.marks[row] is not None:
                    return False
                decision.new.append(row)
            elif standing.runs != (target[row] is not None):
                return False
            else:
                if standing.runs and view.since_s[row] == standing.starts_s:
                    unsteady.discard(row)  # as expected when it got its GPUs
                    at_s = self._moves_at(row, standing, standing.sinks_at_s)
                else:
                    at_s = self._set_clock(view, row, standing)
                    if not standing.runs:
                        decision.waits.append(row)
                if at_s <= now_s:
                    decision.moving.append(row)
        if self._released:
            decision.waits.extend(row for row in self._released if row in standings)
            self._released = []
        return True

    def _move(self, decision: Decision) -> None:
        """New jobs enter the first queue; others sink, or are promoted, in order of their places.

        Each entry is in order of (rows that are new, queue, place within it).
        """
        view, now_s, heap, standings = (
            decision.view,
            decision.view.now_s,
            self._moves,
            self._standing,
        )
        if decision.new:
            decision.entering = new = sorted(decision.new)
            self._queues[0].entering = new[:]
            for row in new:
                standings[row] = Standing(0, 0.0, view.submit_s[row])
        while heap and heap[0][0] <= now_s:
            moves_at_s, row = heappop(heap)
            standing = standings.get(row)
            if standing is not None and standing.moves_at_s == moves_at_s:
                decision.moving.append(row)
        if not decision.moving:
            return
        for row in sorted(set(decision.moving), key=self._place):
            standing = standings[row]
            queue, base_s = standing.queue, standing.base_s
            while self._rules.demote_at_s(view, row, base_s, queue) <= now_s:
                queue += 1
            self._leave(view, row, standing)
            standing.moves_at_s = inf
            if queue == standing.queue:
                queue = 0
                standing.base_s, standing.from_s = view.attained_s(row), now_s
            standing.queue = queue
            decision.entering.append(row)
            self._queues[queue].entering.append(row)

    def _place(self, row: int) -> tuple[int, bool, int]:
        standing = self._standing[row]
        return (standing.queue, not standing.runs, standing.serial)

    # -- the walk ------------------------------------------------------------------------------

    def _walk(self, decision: Decision, queue: Queue, free: int) -> int:
        """Give out ``free`` GPUs in one queue; how many are left for those below it.

        First those that run in it, then those that wait, then those that enter it now.
        """
        view, standings = decision.view, self._standing
        num_gpus = view.num_gpus
        victims: list[int] = []
        if queue.used_gpus <= free:
            free -= queue.used_gpus
        else:
            free, victims = self._preempt(decision, queue, free)
        while free >= queue.least_gpus:
            row = self._first_that_fits(queue, free)
            if row is None:
                break
            standing = standings[row]
            decision.left.append((row, standing.serial, False))
            self._leave(view, row, standing)
            self._run(view, row, standing)
            free -= num_gpus[row]
            decision.runs.append(row)
            decision.starts.append(row)
            decision.picked.append(row)
        if victims:
            for row in reversed(victims):
                self._wait(view, row, standings[row], first=True)
            decision.preempted += victims
            decision.released += victims
        entering, queue.entering = queue.entering, []
        for row in entering:
            standing = standings[row]
            had_gpus = view.target[row] is not None
            if num_gpus[row] <= free:
                free -= num_gpus[row]
                self._run(view, row, standing)
                decision.runs.append(row)
                if not had_gpus:
                    decision.starts.append(row)
            else:
                self._wait(view, row, standing)
                (decision.released if had_gpus else decision.waits).append(row)
        return free

    def _preempt(self, decision: Decision, queue: Queue, free: int) -> tuple[int, list[int]]:
        """The running jobs of the queue that must stop, in order, so that the others fit.

        Looks from the end, only at as many jobs as hold what is missing: all before them fit.
        """
        view, row_of, running = decision.view, self._row_of, queue.running
        num_gpus = view.num_gpus
        tail: list[int] = []
        tail_gpus, missing = 0, queue.used_gpus - free
        while tail_gpus < missing:
            serial = running.pop()
            if serial in row_of:
                tail.append(serial)
                tail_gpus += num_gpus[row_of[serial]]
        free -= queue.used_gpus - tail_gpus
        victims: list[int] = []
        for serial in reversed(tail):
            row = row_of[serial]
            if num_gpus[row] <= free:
                free -= num_gpus[row]
                running.append(serial)
            else:
                decision.left.append((row, serial, True))
                self._leave(view, row, self._standing[row])
                victims.append(row)
        return free, victims

    def _due(self, decision: Decision) -> list[int]:
        """The jobs that get no GPUs, but have waited long enough to be promoted, in walk order.

        Those that lose them now: who has waited until here was promoted when that was due, unless
        the job sinks as well.
        """
        view, rules, standings = decision.view, self._rules, self._standing
        due: set[int] = set()
        for row in [*decision.released, *decision.entering]:
            standing = standings[row]
            if not standing.runs:
                ran_s = view.attained_s(row) - standing.base_s
                if rules.promote_at_s(standing.queue, ran_s, standing.from_s) <= view.now_s:
                    due.add(row)
        return sorted(due, key=self._place) if due else []

    def _take_back(self, decision: Decision, due: list[int]) -> None:
        """Undo the walk of all queues but the first, and promote the jobs that are ``due`` there.

        They stand last in the first queue, so that nothing changes for the others in it.
        """
        view, standings, queues = decision.view, self._standing, self._queues
        entering = [row for row in decision.entering if standings[row].queue]
        for row in entering:
            self._leave(view, row, standings[row])
        self._return(view, [left for left in decision.left if standings[left[0]].queue])
        for rows in (
            decision.runs,
            decision.starts,
            decision.picked,
            decision.released,
            decision.preempted,
        ):
            rows[:] = [row for row in rows if not standings[row].queue]
        decision.left = [left for left in decision.left if not standings[left[0]].queue]
        for row in due:
            standing = standings[row]
            if row not in entering:
                self._leave(view, row, standing)
            standing.queue, standing.moves_at_s = 0, inf
            standing.base_s, standing.from_s = view.attained_s(row), view.now_s
            queues[0].entering.append(row)
        for row in entering:
            if standings[row].queue:
                queues[standings[row].queue].entering.append(row)
        decision.entering += due

    # -- clocks --------------------------------------------------------------------------------

    def _set_clock(self, view: View, row: int, standing: Standing) -> float:
        """Time of the job's next change of queue; put on the heap if it is fixed."""
        rules, runs = self._rules, standing.runs
        at_s = rules.demote_at_s(view, row, standing.base_s, standing.queue)
        if runs:
            standing.sinks_at_s = at_s
        elif at_s > view.now_s:
            ran_s = view.service_s[row] - standing.base_s
            at_s = rules.promote_at_s(standing.queue, ran_s, standing.from_s)
        if runs != (view.since_s[row] >= 0):
            self._unsteady.add(row)
            standing.starts_s, standing.moves_at_s = view.now_s, inf
            return at_s
        self._unsteady.discard(row)
        return self._moves_at(row, standing, at_s)

    def _moves_at(self, row: int, standing: Standing, at_s: float) -> float:
        """Note that the job changes its queue at ``at_s``, and at no other time."""
        if at_s != standing.moves_at_s:
            standing.moves_at_s = at_s
            if at_s < inf:
                heappush(self._moves, (at_s, row))
        return at_s

    def _wake_at_s(self, view: View) -> float | None:
        """Time of the next change of queue, if all jobs that start now start at once.

        None if no job has GPUs: time alone brings no room.
        """
        if not any(queue.used_gpus for queue in self._queues):
            return None
        standings, heap, now_s = self._standing, self._moves, view.now_s
        first_s = inf
        while heap:
            moves_at_s, row = heap[0]
            standing = standings.get(row)
            if standing is not None and standing.moves_at_s == moves_at_s:
                first_s = moves_at_s
                break
            heappop(heap)
        for row in self._unsteady:
            standing = standings[row]
            if standing.runs:
                at_s = standing.sinks_at_s
            else:
                # A job that this plan preempts has run until now, whatever its column says.
                ran_s = view.attained_s(row) - standing.base_s
                at_s = self._rules.promote_at_s(standing.queue, ran_s, standing.from_s)
            if now_s < at_s < first_s:
                first_s = at_s
        return first_s if first_s < inf else None

    # -- the plan ------------------------------------------------------------------------------

    def _write(self, decision: Decision) -> Plan | None:
        """Write the decision down as a plan."""
        view, standings = decision.view, self._standing
        self._released = decision.released
        if not (decision.entering or decision.runs or decision.released or decision.waits):
            return view.unchanged(wake_at_s=self._wake_at_s(view))
        what_if = view.what_if()
        for row in decision.starts:
            if view.home[row] is not None and view.must_stay(row):
                return None
        for row in decision.released:
            what_if.release(row, PREEMPTED_BY)
        for row in decision.starts:
            place(what_if, row)
        for row in decision.waits:
            if not standings[row].runs:
                never = view.num_gpus[row] > view.total_gpus
                what_if.wait(row, NEVER_FITS if never else WAIT_RESOURCES)
        if decision.entering:
            self._remember(what_if, ENTERED, decision.entering, 0, False)
        if decision.preempted:
            self._remember(what_if, PREEMPTED, decision.preempted, -len(decision.preempted), False)
        if decision.runs:
            self._remember(what_if, RAN, decision.runs, 0, True)
        for row in [*decision.preempted, *decision.entering, *decision.picked]:
            self._set_clock(view, row, standings[row])
        return what_if.plan(wake_at_s=self._wake_at_s(view))

    def _remember(
        self, what_if: WhatIf, place: int, rows: list[int], first: int, runs: bool
    ) -> None:
        """Mark those of ``rows`` that run, or that do not, with positions from ``first`` on."""
        now_s = self._now_s
        if self._taken is not None:
            first = self._taken.take(what_if.view, place, rows)
        for position, row in enumerate(rows, first):
            standing = self._standing[row]
            if standing.runs == runs:
                base_s, from_s = standing.base_s, standing.from_s
                what_if.mark(row, [standing.queue, place, now_s, position, base_s, from_s])
