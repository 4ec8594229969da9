"""Fair share: those who have used least of their share, with old use forgotten, come first."""

from collections import defaultdict
from collections.abc import Sequence
from math import expm1, fsum, log
from typing import Any, NamedTuple

from rota.model.job import JobSpec
from rota.model.view import View

MILLI = 1000.0  # use is added up in whole thousandths of a GPU-second: no order of adding matters


class Usage(NamedTuple):
    """GPU-seconds by owner at ``at_s``: those that still count, and all there ever were."""

    at_s: float
    counted: dict[str, float]
    milli_total: dict[str, int]


class FairShare:
    """Ranks owners (users, or virtual clusters) by decayed use over share, the least first.

    A GPU-second counts half after ``half_life_s``, a quarter after twice that. Use is taken stock
    of every ``period_s``; in between owners keep their ranks, so that nobody's job loses its GPUs
    to a running total. The stock-taking is the only thing remembered; what was used since comes
    from the columns of the jobs.
    """

    def __init__(
        self,
        owner: str,
        half_life_s: float = 604800.0,
        period_s: float = 300.0,
        shares: tuple[tuple[str, float], ...] = (),
    ) -> None:
        self.owner = owner
        self.half_life_s = half_life_s
        self.period_s = period_s
        self.shares = dict(shares)
        self._totals = UseByOwner(owner)

    def usage(self, view: View, mark: Any) -> Usage:
        """The stock that holds at the view's time: the one in ``mark``, or a new one if due."""
        if mark is None:
            return self._first(view)
        last = Usage(*mark)
        return last if view.now_s < last.at_s + self.period_s else self._next(view, last)

    def levels(self, view: View, usage: Usage, rows: list[int]) -> dict[int, float]:
        """Each row's owner's use over share, in GPU-seconds: the less, the sooner."""
        spec, owner = view.spec, self.owner
        level: dict[str, float] = defaultdict(float)
        for name, used in usage.counted.items():
            level[name] = used / self.shares.get(name, 1.0)
        return {row: level[getattr(spec[row], owner)] for row in rows}

    def is_contested(self, view: View) -> bool:
        """True if jobs of more than one owner are there to be ranked."""
        spec = view.spec
        return len({getattr(spec[row], self.owner) for row in view.active}) > 1

    def _first(self, view: View) -> Usage:
        """History that nobody took stock of: each job's use counts as of when it ended."""
        now_s = view.now_s
        used: dict[str, list[float]] = defaultdict(list)
        for row, spec in enumerate(view.spec):
            end_s = view.finish_s[row] if view.finish_s[row] >= 0 else now_s
            gpu_s = view.attained_s(row) * spec.num_gpus
            used[getattr(spec, self.owner)].append(gpu_s * self._left(now_s - end_s))
        counted = {name: fsum(parts) for name, parts in used.items()}
        return Usage(now_s, counted, self._totals.at(view))

    def _next(self, view: View, last: Usage) -> Usage:
        now_s = view.now_s
        totals = self._totals.at(view)
        passed_s = now_s - last.at_s
        left = self._left(passed_s)
        # What was used in between is taken as spread evenly: the mean of 2^(-t / half life).
        rate = log(2) / self.half_life_s
        recent = -expm1(-rate * passed_s) / (rate * passed_s) / MILLI
        counted = {
            name: last.counted.get(name, 0.0) * left
            + (total - last.milli_total.get(name, 0)) * recent
            for name, total in totals.items()
        }
        return Usage(now_s, counted, totals)

    def _left(self, seconds: float) -> float:
        return float(2.0 ** (-seconds / self.half_life_s))


class UseByOwner:
    """GPU-seconds by owner, in thousandths; finished jobs are added up once.

    The sums are whole numbers: they come out the same however much of them was kept.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._of: Sequence[JobSpec] | None = None  # all jobs, whose totals these are
        self._ended: dict[str, int] = {}
        self._open: list[int] = []
        self._seen = 0

    def at(self, view: View) -> dict[str, int]:
        """The totals of every owner that has had a job, by name."""
        spec = view.spec
        if self._of is not spec:
            self._of, self._ended, self._open, self._seen = spec, {}, [], 0
        self._open.extend(range(self._seen, len(spec)))
        self._seen = len(spec)
        totals, still_open = self._ended.copy(), []
        for row in self._open:
            name = getattr(spec[row], self._owner)
            used = round(view.attained_gpu_s(row) * MILLI)
            totals[name] = totals.get(name, 0) + used
            if view.finish_s[row] >= 0:
                self._ended[name] = self._ended.get(name, 0) + used
            else:
                still_open.append(row)
        self._open = still_open
        return totals


def parse_shares(text: str) -> tuple[tuple[str, float], ...]:
    """``equal``, or shares by owner such as ``ann=2;bob=1``; others have 1. Raises ValueError."""
    if text in ("equal", ""):
        return ()
    shares: dict[str, float] = {}
    for part in text.split(";"):
        name, equals, number = part.rpartition("=")
        share = float(number) if equals else 0.0
        if not 0 < share < float("inf") or name.strip() in shares:
            raise ValueError(f"{part!r} is not OWNER=SHARE, once each and above zero: ann=2;bob=1")
        shares[name.strip()] = share
    return tuple(shares.items())
