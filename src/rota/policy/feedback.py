"""Feedback queues kept from decision to decision: work in proportion to what has changed."""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import Trial, View
from rota.policy.queues import ENTERED, PREEMPTED, RAN, Mark, Queue, Rules, Standing
from rota.policy.stages import place


class FeedbackQueues:
    """The queues of Tiresias, ``within=entry``, as they were after the last decision.

    Valid while the view shows the plan that :meth:`decide` returned last, on as many GPUs; else
    built anew from the marks of the active rows. Service that moves is told by ``view.changed``, so
    that when a job will sink or be promoted is known ahead and kept in a heap; it is looked up at
    every decision only for jobs that are between two states (``_unsteady``): with GPUs, but not
    running yet, or running still, but without GPUs.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._plan: Plan | None = None
        self._total_gpus = self._now_s = -1.0
        self._clear()

    def _clear(self) -> None:
        self._standing: dict[int, Standing] = {}
        self._queues = [Queue() for _ in range(len(self._rules.thresholds) + 1)]
        self._row_of: dict[int, int] = {}  # serial -> row
        self._first_serial, self._last_serial = 0, 0
        self._moves: list[tuple[float, int]] = []  # heap of (moves_at_s, row)
        self._unsteady: set[int] = set()
        self._released: list[int] = []  # by the last decision

    def decide(self, view: View) -> Plan | None:
        """The plan; or None, in states too rare for an index, where every job must be looked at.

        These are: a second decision at one instant, a cluster that has grown or shrunk, a job that
        lost its GPUs or came back, a job that can go on only where it was.
        """
        plan, self._plan = self._plan, None
        instant, self._now_s = self._now_s, view.now_s
        total_gpus, self._total_gpus = self._total_gpus, view.total_gpus
        if plan is None or plan is not view.plan or total_gpus != view.total_gpus:
            look = self._build(view)
        elif instant == view.now_s:
            return None
        else:
            look = {*view.changed, *self._unsteady}
        if look is None:
            return None
        turn = _Turn(view)
        if not self._look(turn, look):
            return None
        self._move(turn)
        free = view.total_gpus
        entering: dict[int, list[int]] = {}
        for row in turn.entering:
            entering.setdefault(self._standing[row].queue, []).append(row)
        for number, queue in enumerate(self._queues):
            left = free - queue.used_gpus
            if number in entering or left < 0 or left >= queue.least_gpus:
                free = self._walk(turn, queue, entering.get(number, ()), free)
            else:  # all that run there go on, and nobody who waits there fits
                free = left
        return self._finish(turn)

    # -- what has happened since the last decision ----------------------------------------------

    def _build(self, view: View) -> set[int] | None:
        """Take everybody's place from the marks; the rows to look at, None if that is not enough.

        None unless exactly those that RAN in their queue have GPUs, all since earlier decisions.
        """
        self._clear()
        marks, target = view.marks, view.target
        placed = [(Mark(*marks[row]), row) for row in view.active if marks[row] is not None]
        placed.sort(key=lambda pair: (pair[0].order(), pair[1]))
        for mark, row in placed:
            if (mark.place == RAN) != (target[row] is not None) or mark.when_s == view.now_s:
                return None
            standing = Standing(mark.queue, mark.base_s, mark.from_s)
            self._standing[row] = standing
            if mark.place == RAN:
                self._run(view, row, standing)
            else:
                self._wait(view, row, standing)
        return set(view.active)

    def _look(self, turn: "_Turn", rows: set[int]) -> bool:
        """Note what became of ``rows``; False if a place in the middle of a queue was taken."""
        view, standings = turn.view, self._standing
        active, target, marks, now_s = view.active, view.target, view.marks, view.now_s
        for row in rows:
            standing = standings.get(row)
            if row not in active:
                if standing is not None:
                    self._leave(view, row, standing)
                    del standings[row]
                    self._unsteady.discard(row)
            elif standing is None:
                if marks[row] is not None:
                    return False
                turn.new.append(row)
            elif standing.runs != (target[row] is not None):
                return False
            else:
                if not standing.runs:
                    turn.waits.append(row)
                if self._set_clock(view, row, standing) <= now_s:
                    turn.moving.append(row)
        if self._released:
            turn.waits.extend(row for row in self._released if row in standings)
            self._released = []
        return True

    def _move(self, turn: "_Turn") -> None:
        """New jobs enter the first queue; others sink, or are promoted, in order of their places.

        Each entry is in order of (rows that are new, queue, place within it).
        """
        view, now_s, heap, standings = turn.view, turn.view.now_s, self._moves, self._standing
        for row in sorted(turn.new):
            standings[row] = Standing(0, 0.0, view.submit_s[row])
            turn.entering.append(row)
        while heap and heap[0][0] <= now_s:
            moves_at_s, row = heappop(heap)
            standing = standings.get(row)
            if standing is not None and standing.moves_at_s == moves_at_s:
                turn.moving.append(row)
        if not turn.moving:
            return
        for row in sorted(set(turn.moving), key=self._place):
            standing = standings[row]
            queue, base_s = standing.queue, standing.base_s
            while self._rules.demote_at_s(view, row, base_s, queue) <= now_s:
                queue += 1
            self._leave(view, row, standing)
            standing.moves_at_s = inf
            if queue == standing.queue:
                queue = 0
                standing.base_s, standing.from_s = view.service_s[row], now_s
            standing.queue = queue
            turn.entering.append(row)

    def _place(self, row: int) -> tuple[int, bool, int]:
        standing = self._standing[row]
        return (standing.queue, not standing.runs, standing.serial)

    # -- the walk ------------------------------------------------------------------------------

    def _walk(self, turn: "_Turn", queue: Queue, entering: Sequence[int], free: int) -> int:
        """Give out ``free`` GPUs in one queue; how many are left for those below it.

        First those that run in it, then those that wait, then those that enter it now.
        """
        view, standings = turn.view, self._standing
        num_gpus, victims = view.num_gpus, list[int]()
        if queue.used_gpus <= free:
            free -= queue.used_gpus
        else:
            free, victims = self._preempt(view, queue, free)
        while free >= queue.least_gpus:
            row = self._first_that_fits(queue, free)
            if row is None:
                break
            standing = standings[row]
            self._leave(view, row, standing)
            self._run(view, row, standing)
            free -= num_gpus[row]
            turn.runs.append(row)
            turn.starts.append(row)
            turn.picked.append(row)
        if victims:
            for row in reversed(victims):
                self._wait(view, row, standings[row], first=True)
            turn.preempted += victims
            turn.released += victims
        for row in entering:
            standing = standings[row]
            had_gpus = view.target[row] is not None
            if num_gpus[row] <= free:
                free -= num_gpus[row]
                self._run(view, row, standing)
                turn.runs.append(row)
                if not had_gpus:
                    turn.starts.append(row)
            else:
                self._wait(view, row, standing)
                (turn.released if had_gpus else turn.waits).append(row)
        return free

    def _preempt(self, view: View, queue: Queue, free: int) -> tuple[int, list[int]]:
        """Who of those that run in the queue must stop, in order, so that the others fit.

        Going from the end, only as many are looked at as hold what is missing: all before them fit.
        """
        running, row_of, num_gpus = queue.running, self._row_of, view.num_gpus
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
                self._leave(view, row, self._standing[row])
                victims.append(row)
        return free, victims

    def _first_that_fits(self, queue: Queue, free: int) -> int | None:
        row_of, best = self._row_of, None
        queue.least_gpus = inf
        for num_gpus, line in queue.waiting.items():
            while line and line[0] not in row_of:
                line.popleft()
            if line:
                if num_gpus < queue.least_gpus:
                    queue.least_gpus = num_gpus
                if num_gpus <= free and (best is None or line[0] < best):
                    best = line[0]
        return None if best is None else row_of[best]

    # -- places --------------------------------------------------------------------------------

    def _run(self, view: View, row: int, standing: Standing) -> None:
        """Let the job stand last among those that run in its queue."""
        queue = self._queues[standing.queue]
        self._last_serial += 1
        standing.serial, standing.runs = self._last_serial, True
        self._row_of[standing.serial] = row
        queue.used_gpus += view.num_gpus[row]
        queue.num_running += 1
        queue.running.append(standing.serial)
        if len(queue.running) > 2 * queue.num_running + 64:
            queue.running = [serial for serial in queue.running if serial in self._row_of]

    def _wait(self, view: View, row: int, standing: Standing, *, first: bool = False) -> None:
        """Let the job stand last, or first, among those that wait in its queue."""
        line = self._queues[standing.queue].line(view.num_gpus[row])
        standing.runs = False
        if first:
            self._first_serial -= 1
            standing.serial = self._first_serial
            line.appendleft(standing.serial)
        else:
            self._last_serial += 1
            standing.serial = self._last_serial
            line.append(standing.serial)
        self._row_of[standing.serial] = row

    def _leave(self, view: View, row: int, standing: Standing) -> None:
        """Take the job out of its place."""
        del self._row_of[standing.serial]
        if standing.runs:
            queue = self._queues[standing.queue]
            queue.used_gpus -= view.num_gpus[row]
            queue.num_running -= 1

    # -- clocks --------------------------------------------------------------------------------

    def _set_clock(self, view: View, row: int, standing: Standing) -> float:
        """When the job changes its queue next; in the heap from now on, if that is fixed."""
        moves_at_s = self._rules.demote_at_s(view, row, standing.base_s, standing.queue)
        if not standing.runs and moves_at_s > view.now_s:
            ran_s = view.service_s[row] - standing.base_s
            moves_at_s = self._rules.promote_at_s(standing.queue, ran_s, standing.from_s)
        if standing.runs != (view.since_s[row] >= 0):
            self._unsteady.add(row)
            standing.moves_at_s = inf
        else:
            self._unsteady.discard(row)
            if moves_at_s != standing.moves_at_s:
                standing.moves_at_s = moves_at_s
                if moves_at_s < inf:
                    heappush(self._moves, (moves_at_s, row))
        return moves_at_s

    def _wake_at_s(self, view: View) -> float | None:
        """When the next job changes its queue, if all that starts now starts at once."""
        rules, standings, heap, now_s = self._rules, self._standing, self._moves, view.now_s
        first_s, passed = inf, list[tuple[float, int]]()
        while heap:
            moves_at_s, row = heap[0]
            standing = standings.get(row)
            if standing is None or standing.moves_at_s != moves_at_s:
                heappop(heap)
            elif moves_at_s <= now_s:
                passed.append(heappop(heap))
            else:
                first_s = moves_at_s
                break
        for entry in passed:
            heappush(heap, entry)
        for row in self._unsteady:
            standing = standings[row]
            if standing.runs:
                at_s = rules.demote_at_s(view, row, standing.base_s, standing.queue)
            else:
                # A job that this plan preempts has run until now, whatever its column says.
                ran_s = view.attained_s(row) - standing.base_s
                at_s = rules.promote_at_s(standing.queue, ran_s, standing.from_s)
            if now_s < at_s < first_s:
                first_s = at_s
        return first_s if first_s < inf else None

    # -- the plan ------------------------------------------------------------------------------

    def _finish(self, turn: "_Turn") -> Plan | None:
        """Write the turn down as a plan."""
        view, trial, standings, now_s = (
            turn.view,
            turn.view.trial(),
            self._standing,
            turn.view.now_s,
        )
        for row in turn.starts:
            if view.home[row] is not None and view.must_stay(row):
                return None
        for row in turn.released:
            trial.release(row, Reason.PREEMPTED_BY)
        for row in turn.starts:
            place(trial, row)
        for row in turn.waits:
            if not standings[row].runs:
                never = view.num_gpus[row] > view.total_gpus
                trial.wait(row, Reason.NEVER_FITS if never else Reason.WAIT_RESOURCES)
        for position, row in enumerate(turn.entering):
            if not standings[row].runs:
                _remember(trial, row, standings[row], ENTERED, now_s, position)
        for position, row in enumerate(turn.preempted):
            _remember(trial, row, standings[row], PREEMPTED, now_s, position)
        for position, row in enumerate(turn.runs):
            _remember(trial, row, standings[row], RAN, now_s, position)
        for rows in (turn.preempted, turn.entering, turn.picked):
            for row in rows:
                self._set_clock(view, row, standings[row])
        self._released = turn.released
        self._plan = trial.plan(wake_at_s=self._wake_at_s(view))
        return self._plan


class _Turn:
    """What one decision comes to, each list in walk order."""

    __slots__ = (
        "entering",
        "moving",
        "new",
        "picked",
        "preempted",
        "released",
        "runs",
        "starts",
        "view",
        "waits",
    )

    def __init__(self, view: View) -> None:
        self.view = view
        self.new: list[int] = []
        self.moving: list[int] = []
        self.entering: list[int] = []  # a queue
        self.runs: list[int] = []  # begin to run in their queue, though some had GPUs in another
        self.starts: list[int] = []  # get GPUs
        self.picked: list[int] = []  # of these, those that waited in their queue
        self.released: list[int] = []  # lose GPUs
        self.preempted: list[int] = []  # lose GPUs without having changed their queue
        self.waits: list[int] = []  # may have to be told why they wait


def _remember(
    trial: Trial, row: int, standing: Standing, place: int, now_s: float, position: int
) -> None:
    mark: list[Any] = [standing.queue, place, now_s, position, standing.base_s, standing.from_s]
    trial.mark(row, mark)
