"""The waiting jobs, kept between decisions so that no job is looked at without need."""

from heapq import heapify, heappop, heappush

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View

MANY = 1 << 60

# Given by policies that take turns, preempt or have stages, and by no line without these.
OF_OTHERS = frozenset(
    map(
        int,
        (
            *(Reason.WAIT_QUOTA, Reason.WAIT_FAIRSHARE, Reason.WAIT_RESERVATION),
            *(Reason.SLICE_WAITING_TURN, Reason.PREEMPTED_BY, Reason.PACK_UNDONE),
            Reason.TRIAL_BEHIND,
        ),
    )
)


class Waiting:
    """The active rows without GPUs, in order of arrival: in one line, or in one per gang size.

    Valid while the view shows the very plan that
    was :meth:`sign`-ed last, on as many GPUs; otherwise built anew from the active rows. Rows that
    no longer wait are dropped when they come to the front of their line.
    """

    def __init__(self, *, by_size: bool) -> None:
        self._by_size = by_size
        self._lines: dict[int, list[int]] = {}
        self._inside: set[int] = set()
        self._plan: Plan | None = None
        self._total_gpus = 0
        self.new: list[int] = []  # rows that have come, or come back, since the last decision
        self.bound: set[int] = set()  # rows that have a home, and may fit nowhere else

    def update(self, view: View) -> None:
        """Take note of what has changed since the last decision."""
        plan, self._plan = self._plan, None
        if plan is None or view.plan is not plan or view.total_gpus != self._total_gpus:
            self._lines.clear()
            self._inside.clear()
            self.bound.clear()
            self._total_gpus = view.total_gpus
            self._enter(view, sorted(view.active))
            for line in self._lines.values():
                heapify(line)
        else:
            self._enter(view, view.changed)

    def misjudged(self, view: View) -> list[int]:
        """The new rows that still have a reason of the policy that decided before this one."""
        return [row for row in self.new if view.reason[row] in OF_OTHERS]

    def sign(self, plan: Plan) -> Plan:
        """``plan``, after remembering that it is the one that these lines belong to."""
        self._plan = plan
        return plan

    def first(self, view: View, most_gpus: int = MANY) -> int | None:
        """The first row, or the first of at most so many GPUs if lines are by size; or None."""
        active, target, best = view.active, view.target, None
        for size, line in self._lines.items():
            if size <= most_gpus:
                while line:
                    row = line[0]
                    if row in active and target[row] is None:
                        if best is None or row < best:
                            best = row
                        break
                    self._inside.discard(heappop(line))
        return best

    def take(self, view: View, row: int) -> None:
        """Drop the row that came :meth:`first`: it has GPUs now, or is not to be looked at."""
        heappop(self._line(view, row))
        self._inside.discard(row)

    def _enter(self, view: View, rows: list[int]) -> None:
        active, target = view.active, view.target
        self.new = new = []
        for row in rows:
            if row in active and target[row] is None:
                new.append(row)
                if view.home[row] is not None:
                    self.bound.add(row)
                if row not in self._inside:
                    self._inside.add(row)
                    heappush(self._line(view, row), row)
            elif self.bound:
                self.bound.discard(row)

    def _line(self, view: View, row: int) -> list[int]:
        size = view.num_gpus[row] if self._by_size else 0
        line = self._lines.get(size)
        if line is None:
            line = self._lines[size] = []
        return line
