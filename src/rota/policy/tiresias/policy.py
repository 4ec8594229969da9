"""Tiresias' discretised two-dimensional least attained service (NSDI 2019, section 3.2-3.3)."""

from collections.abc import Callable
from itertools import pairwise
from math import inf

from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.base import Policy, Setting, not_negative
from rota.policy.information import NONE
from rota.policy.stages.selection import (
    SPARING,
    Stages,
    break_off,
    finish,
    has_a_say,
    ordered,
    walk,
)
from rota.policy.tiresias.feedback import FeedbackQueues
from rota.policy.tiresias.queues import ENTERED, PREEMPTED, RAN, Mark, Rules, free_positions


def parse_thresholds(text: str) -> tuple[float, ...]:
    """``"600,1800"`` as numbers, rising and above zero; empty text is one queue. ValueError."""
    values = tuple(float(part) for part in text.split(",") if part.strip())
    rising = all(low < high for low, high in pairwise(values))
    if not rising or not all(0 < value < float("inf") for value in values):
        raise ValueError("thresholds must rise and be above zero")
    return values


def parse_within(text: str) -> str:
    """The order inside a queue. ValueError."""
    if text not in ("entry", "first-start", "fifo"):
        raise ValueError("it must be fifo, entry or first-start")
    return text


class Tiresias(Policy):
    """Queues by attained GPU-seconds; new jobs enter the first, and sink at each threshold.

    A job is demoted exactly when it has attained a threshold. One that has waited, since it was
    last promoted, ``promote_knob`` times as long as it ran goes back to the first queue and starts
    from nothing, as soon as it is without GPUs: if it loses them when it has waited so long before,
    at once. A job that never ran stays there anyway. Waiting before the first start counts.
    """

    name = "tiresias"
    information = NONE
    composes = True
    stages: Stages | None = SPARING
    SETTINGS = {
        "thresholds": Setting(
            parse_thresholds, (3600.0,), "Attained GPU-seconds at which jobs sink, comma-separated."
        ),
        "promote_knob": Setting(
            not_negative, 8.0, "Waiting time over run time at which a job is promoted; 0 is off."
        ),
        "within": Setting(
            parse_within,
            "entry",
            "Order inside a queue: entry, first-start (arrival breaks ties), or fifo.",
        ),
    }

    def __init__(
        self,
        thresholds: tuple[float, ...] = (3600.0,),
        promote_knob: float = 8.0,
        within: str = "entry",
    ) -> None:
        self.thresholds = thresholds
        self.promote_knob = promote_knob
        self.within = within
        self._rules = Rules(thresholds, promote_knob)
        self._queues = FeedbackQueues(self._rules)
        # Queues are kept from decision to decision as long as each is in order of entry.
        self._keeps_queues = within == "entry" and type(self).arrange is Tiresias.arrange

    def decide(self, view: View) -> Plan:
        """Move jobs between queues, then walk the queues: each gang that still fits runs."""
        plan = None
        if self._keeps_queues and not has_a_say(self.stages, view):
            plan = self._queues.decide(view)
        if plan is None:
            plan = self._look_at_all(view)
        released = (row for row, place in plan.allocations.items() if place is None)
        return self._look_at_all(view, True) if break_off(self.stages, view, released) else plan

    def order(self, view: View) -> list[int]:
        """The queues, the highest first, each in its order."""
        stored = self._marks(view)
        marks, free = dict(stored), free_positions(stored.values(), view.now_s)
        queues = self._move(view, marks, free)
        return ordered(self.stages, view, self._order(view, marks, queues))

    def _look_at_all(self, view: View, spare_young: bool = False) -> Plan:
        stored = self._marks(view)
        marks, free = dict(stored), free_positions(stored.values(), view.now_s)
        queues = self._move(view, marks, free)
        while True:
            order = self._order(view, marks, queues)
            what_if = view.what_if()
            runs = set(walk(self.stages, what_if, order, spare_young=spare_young))
            due = [row for row in order if row not in runs and self._is_due(view, row, marks[row])]
            if not due:
                break
            # Each has waited long enough before it ran: losing its GPUs now, it is promoted now.
            for row in due:
                queues[marks[row].queue].remove(row)
                self._promote(view, row, marks)
                self._enter(view, row, marks, free)
                queues[0].append(row)
        self._take_places(view, marks, order, runs, free)
        for row, mark in marks.items():
            if stored.get(row) != mark:
                what_if.mark(row, list(mark))
        wake_at_s = self._wake_at_s(view, marks, runs)
        return finish(self.stages, what_if, wake_at_s=wake_at_s, spare_young=spare_young)

    def _marks(self, view: View) -> dict[int, Mark]:
        stored = view.marks
        return {row: Mark(*stored[row]) for row in view.active if stored[row] is not None}

    def _move(self, view: View, marks: dict[int, Mark], free: list[int]) -> list[list[int]]:
        """Let new jobs enter, and others sink or be promoted: each queue's rows by entry.

        ``marks`` gets each one's queue and place; ``free`` are the positions that are left.
        """
        now_s, rules = view.now_s, self._rules
        queues: list[list[int]] = [[] for _ in range(len(self.thresholds) + 1)]
        entering = sorted(view.active.keys() - marks.keys())
        old = sorted(marks, key=self._key(marks))
        for row in entering:
            marks[row] = Mark(0, ENTERED, now_s, free[ENTERED], 0.0, view.submit_s[row])
            free[ENTERED] += 1
        for row in old:
            mark = marks[row]
            queue = mark.queue
            while rules.demote_at_s(view, row, mark.base_s, queue) <= now_s:
                queue += 1
            ran_s = view.service_s[row] - mark.base_s
            if queue != mark.queue:
                marks[row] = mark._replace(queue=queue)
            elif (
                view.target[row] is None and rules.promote_at_s(queue, ran_s, mark.from_s) <= now_s
            ):
                self._promote(view, row, marks)
            else:
                queues[queue].append(row)
                continue
            self._enter(view, row, marks, free)
            entering.append(row)
        for row in entering:
            queues[marks[row].queue].append(row)
        return queues

    def _promote(self, view: View, row: int, marks: dict[int, Mark]) -> None:
        base_s = view.attained_s(row)
        marks[row] = marks[row]._replace(queue=0, base_s=base_s, from_s=view.now_s)

    def _enter(self, view: View, row: int, marks: dict[int, Mark], free: list[int]) -> None:
        """Let a job that has changed its queue stand last in it."""
        if self.within != "first-start":
            position, when_s = free[ENTERED], view.now_s
            marks[row] = marks[row]._replace(place=ENTERED, when_s=when_s, position=position)
        free[ENTERED] += 1

    def _is_due(self, view: View, row: int, mark: Mark) -> bool:
        """True if a job that gets no GPUs now has waited long enough to be promoted."""
        ran_s = view.attained_s(row) - mark.base_s
        return self._rules.promote_at_s(mark.queue, ran_s, mark.from_s) <= view.now_s

    def _order(self, view: View, marks: dict[int, Mark], queues: list[list[int]]) -> list[int]:
        """Every active row in walk order."""
        if self.within == "first-start":
            return sorted(marks, key=self._key(marks))
        arranged = (self.arrange(view, marks, queue, rows) for queue, rows in enumerate(queues))
        return [row for rows in arranged for row in rows]

    def arrange(self, view: View, marks: dict[int, Mark], queue: int, rows: list[int]) -> list[int]:
        """The rows of one queue in walk order, given in order of entry."""
        return rows

    def _key(self, marks: dict[int, Mark]) -> Callable[[int], tuple[float, ...]]:
        if self.within == "first-start":

            def by_first_start(row: int) -> tuple[float, ...]:
                mark = marks[row]
                return (mark.queue, mark.place, mark.when_s if mark.place == RAN else 0.0, row)

            return by_first_start

        return lambda row: (*marks[row].order(), row)

    def _take_places(
        self,
        view: View,
        marks: dict[int, Mark],
        order: list[int],
        runs: set[int],
        free: list[int],
    ) -> None:
        """Remember who began to run, and who was preempted, each in walk order."""
        if self.within == "fifo":
            return  # the first to come stays first, with GPUs or without
        now_s = view.now_s
        stopped: list[int] = []
        for row in order:
            mark = marks[row]
            if row in runs:
                if mark.place != RAN:
                    marks[row] = mark._replace(place=RAN, when_s=now_s, position=free[RAN])
                    free[RAN] += 1
            elif mark.place == RAN and self.within == "entry" and view.target[row] is not None:
                stopped.append(row)
        for position, row in enumerate(stopped, free[PREEMPTED] - len(stopped)):
            marks[row] = marks[row]._replace(place=PREEMPTED, when_s=now_s, position=position)

    def _wake_at_s(self, view: View, marks: dict[int, Mark], runs: set[int]) -> float | None:
        times = []
        for row, mark in marks.items():
            if row in runs:
                at_s = self._rules.demote_at_s(view, row, mark.base_s, mark.queue)
            else:
                # A job that this plan preempts has run until now, whatever its column says.
                ran_s = view.attained_s(row) - mark.base_s
                at_s = self._rules.promote_at_s(mark.queue, ran_s, mark.from_s)
            if view.now_s < at_s < inf:
                times.append(at_s)
        return min(times, default=None)
