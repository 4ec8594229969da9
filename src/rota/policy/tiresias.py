"""Tiresias' discretised two-dimensional least attained service (NSDI 2019, section 3.2-3.3)."""

from collections.abc import Callable
from itertools import pairwise
from math import inf

from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.base import Setting, not_negative
from rota.policy.feedback import FeedbackQueues
from rota.policy.queues import ENTERED, PREEMPTED, RAN, Mark, Rules
from rota.policy.stages import Stages, finish, has_a_say, walk


def parse_thresholds(text: str) -> tuple[float, ...]:
    """``"600,1800"`` as numbers, rising and above zero; empty text is one queue. ValueError."""
    values = tuple(float(part) for part in text.split(",") if part.strip())
    rising = all(low < high for low, high in pairwise(values))
    if not rising or not all(0 < value < float("inf") for value in values):
        raise ValueError("thresholds must rise and be above zero")
    return values


def parse_within(text: str) -> str:
    """The order inside a queue. ValueError."""
    if text not in ("entry", "first-start"):
        raise ValueError("it must be entry or first-start")
    return text


class Tiresias:
    """Queues by attained GPU-seconds; new jobs enter the first, and sink at each threshold.

    A job is demoted exactly when it has attained a threshold. One that has waited, since it was
    last promoted, ``promote_knob`` times as long as it ran goes back to the first queue and starts
    from nothing; a job that never ran stays there anyway. Waiting before the first start counts.
    """

    name = "tiresias"
    composes = True
    stages: Stages | None = None
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
            "Order inside a queue: entry, or first-start (arrival breaks ties).",
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
        return self._look_at_all(view) if plan is None else plan

    def _look_at_all(self, view: View) -> Plan:
        marks = self._marks(view)
        before = dict(marks)
        order = self._order(view, marks)
        trial = view.trial()
        runs = walk(self.stages, trial, order)
        self._take_places(view, marks, order, set(runs))
        for row, mark in marks.items():
            if before.get(row) != mark:
                trial.mark(row, list(mark))
        return finish(self.stages, trial, wake_at_s=self._wake_at_s(view, marks, set(runs)))

    def _marks(self, view: View) -> dict[int, Mark]:
        stored = view.marks
        return {row: Mark(*stored[row]) for row in view.active if stored[row] is not None}

    def _order(self, view: View, marks: dict[int, Mark]) -> list[int]:
        """Every active row in walk order; ``marks`` gets each one's queue and entry into it."""
        now_s, last, rules = view.now_s, len(self.thresholds), self._rules
        queues: list[list[int]] = [[] for _ in range(last + 1)]
        entering: list[tuple[int, int]] = []
        for row in sorted(view.active.keys() - marks.keys()):
            marks[row] = Mark(0, ENTERED, now_s, len(entering), 0.0, view.submit_s[row])
            entering.append((0, row))
        for row in sorted(marks.keys() - {row for _, row in entering}, key=self._key(marks)):
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
                queue = 0
                marks[row] = mark._replace(queue=0, base_s=view.service_s[row], from_s=now_s)
            else:
                queues[queue].append(row)
                continue
            if self.within == "entry":
                marks[row] = marks[row]._replace(
                    place=ENTERED, when_s=now_s, position=len(entering)
                )
            entering.append((queue, row))
        for queue, row in entering:
            queues[queue].append(row)
        queues = [self.arrange(view, marks, i, rows) for i, rows in enumerate(queues)]
        if self.within == "first-start":
            return sorted(marks, key=self._key(marks))
        return [row for queue_rows in queues for row in queue_rows]

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
        self, view: View, marks: dict[int, Mark], order: list[int], runs: set[int]
    ) -> None:
        """Remember who began to run, and who was preempted, each in walk order."""
        now_s, taken = view.now_s, [0, 0, 0]
        for mark in marks.values():  # by an earlier decision at this instant
            if mark.when_s == now_s:
                taken[mark.place] = max(taken[mark.place], mark.position + 1)
        for row in order:
            mark = marks[row]
            if row in runs:
                if mark.place != RAN:
                    marks[row] = mark._replace(place=RAN, when_s=now_s, position=taken[RAN])
                    taken[RAN] += 1
            elif mark.place == RAN and self.within == "entry" and view.target[row] is not None:
                marks[row] = mark._replace(place=PREEMPTED, when_s=now_s, position=taken[PREEMPTED])
                taken[PREEMPTED] += 1

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
