"""A feedback queue: its rules, the jobs in it, and the marks of a job."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from rota.model.view import View
from rota.policy.base import to_instant

RAN, PREEMPTED, ENTERED = 0, 1, 2
ROUNDING_S = 1e-6  # a job that stopped so close to its threshold has reached it


class Mark(NamedTuple):
    """A job's mark: its place in its queue, and the time of its last promotion.

    ``place`` says how ``when_s`` and ``position`` order it: jobs that RAN in the queue stand first,
    in the order in which they began to; then PREEMPTED ones, the latest decision first; then those
    that only ENTERED it. A further decision at the same instant continues from the remembered
    positions: upwards, except for PREEMPTED jobs, which come before the earlier ones, downwards.
    ``base_s`` is the run time at the last promotion, ``from_s`` its time.
    """

    queue: int
    place: int
    when_s: float
    position: int
    base_s: float
    from_s: float

    def order(self) -> tuple[float, ...]:
        """Its place among all jobs, as a key to sort by."""
        when_s = -self.when_s if self.place == PREEMPTED else self.when_s
        return (self.queue, self.place, when_s, self.position)


def free_positions(marks: Iterable[Mark], now_s: float) -> list[int]:
    """For each place, the next position at this instant: 0 if none is remembered.

    RAN and ENTERED give the next position, PREEMPTED the one before which the next ones come.
    """
    free = [0, 0, 0]
    for mark in marks:
        if mark.when_s == now_s:
            place, position = mark.place, mark.position
            if place == PREEMPTED:
                free[place] = min(free[place], position)
            else:
                free[place] = max(free[place], position + 1)
    return free


class Taken:
    """The positions that are remembered at one instant, by place: :func:`free_positions`, kept."""

    def __init__(self, placed: Iterable[tuple[Mark, int]], now_s: float) -> None:
        self._now_s = now_s
        # Of each place (position, row), the one next to which positions go on last.
        self._lists: tuple[list[tuple[int, int]], ...] = ([], [], [])
        for mark, row in placed:
            if mark.when_s == now_s:
                self._lists[mark.place].append((mark.position, row))
        for place, positions in enumerate(self._lists):
            positions.sort(reverse=place == PREEMPTED)

    def take(self, view: View, place: int, rows: list[int]) -> int:
        """The first of as many positions as there are rows, which take them."""
        first = self._free(view, place)
        if place == PREEMPTED:
            first -= len(rows)
        self.note(place, rows, first)
        return first

    def note(self, place: int, rows: list[int], first: int) -> None:
        """Note that these rows take positions from ``first`` on."""
        positions = list(enumerate(rows, first))
        self._lists[place].extend(positions[::-1] if place == PREEMPTED else positions)

    def _free(self, view: View, place: int) -> int:
        positions = self._lists[place]
        while positions:
            position, row = positions[-1]
            mark = view.marks[row] if row in view.active else None
            if mark is not None and mark[1:4] == [place, self._now_s, position]:
                return position if place == PREEMPTED else position + 1
            positions.pop()  # the job has another place by now, or has ended
        return 0


class Rules(NamedTuple):
    """The times at which a job changes its queue."""

    thresholds: tuple[float, ...]
    promote_knob: float

    def demote_at_s(self, view: View, row: int, base_s: float, queue: int) -> float:
        """Time when the job reaches its queue's threshold; -inf: it has; inf: the last queue."""
        thresholds = self.thresholds
        if queue >= len(thresholds):
            return inf
        left_s = thresholds[queue] / view.num_gpus[row] + base_s - view.service_s[row]
        since_s = view.since_s[row]
        if since_s < 0:
            if left_s <= ROUNDING_S:
                return -inf
            since_s = view.now_s
        at_s = since_s + left_s
        return to_instant(at_s) if at_s % 1.0 else at_s

    def promote_at_s(self, queue: int, ran_s: float, from_s: float) -> float:
        """Time at which a waiting job that has run so long since its last promotion is promoted."""
        if not self.promote_knob or not queue or ran_s <= 0:
            return inf
        return to_instant(from_s + ran_s * (1 + self.promote_knob))


@dataclass(slots=True)
class Standing:
    """An active job's place: ``serial`` orders running jobs, and waiting ones.

    ``moves_at_s`` is when it changes its queue, if that is fixed. A job that got GPUs at
    ``starts_s`` sinks at ``sinks_at_s`` if it has run since then.
    """

    queue: int
    base_s: float
    from_s: float
    runs: bool = False
    serial: int = 0
    moves_at_s: float = inf
    starts_s: float = inf
    sinks_at_s: float = inf


@dataclass(slots=True)
class Queue:
    """One queue: those that run in it, in order, and those that wait, in order by gang size.

    Both hold serial numbers; those that nobody has any more are skipped, and dropped in time.
    ``entering`` are the rows that come into it at this decision.
    """

    entering: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    num_running: int = 0
    used_gpus: int = 0
    waiting: dict[int, deque[int]] = field(default_factory=dict)
    longest: dict[int, int] = field(default_factory=dict)  # a line's length to be cleaned at
    least_gpus: float = inf  # no job waits for fewer

    def line(self, num_gpus: int) -> deque[int]:
        """The jobs that wait for so many GPUs, as a queue to append to."""
        if num_gpus < self.least_gpus:
            self.least_gpus = num_gpus
        line = self.waiting.get(num_gpus)
        if line is None:
            line = self.waiting[num_gpus] = deque()
        return line


class Decision:
    """The results of one decision, each list in walk order."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.new: list[int] = []
        self.moving: list[int] = []
        self.entering: list[int] = []  # a queue
        self.runs: list[int] = []  # begin to run in their queue, though some had GPUs in another
        self.starts: list[int] = []  # get GPUs
        self.picked: list[int] = []  # of these, those that waited in their queue
        self.left: list[tuple[int, int, bool]] = []  # their places: (row, serial, whether it ran)
        self.released: list[int] = []  # lose GPUs
        self.preempted: list[int] = []  # lose GPUs without having changed their queue
        self.waits: list[int] = []  # may have to be told why they wait

    def taken(self) -> Taken:
        """The positions that this turn took, the first one at its instant."""
        taken = Taken((), self.view.now_s)
        taken.note(RAN, self.runs, 0)
        taken.note(PREEMPTED, self.preempted, -len(self.preempted))
        taken.note(ENTERED, self.entering, 0)
        return taken
