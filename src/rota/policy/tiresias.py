"""Tiresias' discretised two-dimensional least attained service (NSDI 2019, section 3.2-3.3)."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.base import Setting, not_negative
from rota.policy.stages import run_first_that_fit

RAN, PREEMPTED, ENTERED = 0, 1, 2
ROUNDING_S = 1e-6  # a job that stopped so close to its threshold has reached it


class Mark(NamedTuple):
    """What is remembered of a job: its place in its queue, and where its last promotion was.

    ``place`` says how ``when_s`` and ``position`` order it: jobs that RAN in the queue stand first,
    in the order in which they began to; then PREEMPTED ones, the latest decision first; then those
    that only ENTERED it. ``base_s`` is the run time at the last promotion, ``from_s`` its time.
    """

    queue: int
    place: int
    when_s: float
    position: int
    base_s: float
    from_s: float


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

    def decide(self, view: View) -> Plan:
        """Move jobs between queues, then walk the queues: each gang that still fits runs."""
        marks = self._marks(view)
        before = dict(marks)
        order = self._order(view, marks)
        trial = view.trial()
        runs = run_first_that_fit(trial, order)
        self._take_places(view, marks, order, set(runs))
        for row, mark in marks.items():
            if before.get(row) != mark:
                trial.mark(row, list(mark))
        return trial.plan(wake_at_s=self._wake_at_s(view, marks, set(runs)))

    def _marks(self, view: View) -> dict[int, Mark]:
        stored = view.marks
        return {row: Mark(*stored[row]) for row in view.active if stored[row] is not None}

    def _order(self, view: View, marks: dict[int, Mark]) -> list[int]:
        """Every active row in walk order; ``marks`` gets each one's queue and entry into it."""
        now_s, last = view.now_s, len(self.thresholds)
        queues: list[list[int]] = [[] for _ in range(last + 1)]
        entering: list[tuple[int, int]] = []
        for row in sorted(view.active.keys() - marks.keys()):
            marks[row] = Mark(0, ENTERED, now_s, len(entering), 0.0, view.submit_s[row])
            entering.append((0, row))
        for row in sorted(marks.keys() - {row for _, row in entering}, key=self._key(marks)):
            mark = marks[row]
            queue = mark.queue
            while queue < last and self._demote_at_s(view, row, mark, queue) <= now_s:
                queue += 1
            if queue != mark.queue:
                marks[row] = mark._replace(queue=queue)
            elif view.target[row] is None and self._promote_at_s(view, row, mark) <= now_s:
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

        def by_entry(row: int) -> tuple[float, ...]:
            queue, place, when_s, position, _, _ = marks[row]
            return (queue, place, -when_s if place == PREEMPTED else when_s, position)

        return by_entry

    def _take_places(
        self, view: View, marks: dict[int, Mark], order: list[int], runs: set[int]
    ) -> None:
        for position, row in enumerate(order):
            mark = marks[row]
            if row in runs:
                if mark.place != RAN:
                    marks[row] = mark._replace(place=RAN, when_s=view.now_s, position=position)
            elif mark.place == RAN and self.within == "entry" and view.target[row] is not None:
                marks[row] = mark._replace(place=PREEMPTED, when_s=view.now_s, position=position)

    def _demote_at_s(self, view: View, row: int, mark: Mark, queue: int) -> float:
        """When the job reaches its queue's threshold, or -inf if it has."""
        left_s = self.thresholds[queue] / view.num_gpus[row] + mark.base_s - view.service_s[row]
        if view.since_s[row] >= 0:
            return view.since_s[row] + left_s
        return view.now_s + left_s if left_s > ROUNDING_S else float("-inf")

    def _promote_at_s(self, view: View, row: int, mark: Mark) -> float:
        ran_s = view.service_s[row] - mark.base_s
        if not self.promote_knob or not mark.queue or ran_s <= 0:
            return float("inf")
        return mark.from_s + ran_s * (1 + self.promote_knob)

    def _wake_at_s(self, view: View, marks: dict[int, Mark], runs: set[int]) -> float | None:
        times = [
            self._demote_at_s(view, row, marks[row], marks[row].queue)
            for row in runs
            if marks[row].queue < len(self.thresholds)
        ]
        for row in marks.keys() - runs:
            # A job that this plan preempts has run until now, whatever its column says.
            ran_s = view.attained_s(row) - marks[row].base_s
            if self.promote_knob and marks[row].queue and ran_s > 0:
                times.append(marks[row].from_s + ran_s * (1 + self.promote_knob))
        later = [time for time in times if time > view.now_s]
        return min(later, default=None)
