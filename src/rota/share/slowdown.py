"""By what factor a background lengthens a foreground's steps, by paired segments of steps. Pure.

Steps beside a background, against steps that were measured alone long before, tell the drift of the
machine as a slowdown: it becomes warmer, or others compute on it. So short segments are compared
that are neighbours in time. In one of them no piece of the background may run, in the two around it
pieces may run; their ratio, geometric mean of the two over the one between them, is of the
background alone, also where steps become longer from one to the next. That a piece may run counts,
not that one ran: a controller that gives pieces to long steps would be told as a slowdown.

The estimate is the mean of the ratios' logarithms, with Student's interval of 95 %. A segment has
as many steps before as after, and a ratio counts as at most ``FAR`` times the limit, or as little:
by itself a stray can't tell a slowdown, nor hide one.
"""

from __future__ import annotations

from collections import deque
from math import ceil, exp, log, log2, sqrt
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from rota.share.watch import TINY_S, Finished

SEGMENT_S = 0.05  # of a segment at least, and a step: looks are up to 20 ms apart
PIECES = 5  # a segment is as long as so many pieces: one may reach into the segment without pieces
OFTEN, SELDOM = 8, 32  # of so many segments one is without pieces: as long as it tells much, and on
LEAST_PAIRS, MOST_PAIRS = 5, 32  # that are judged by, the latest
FAR, MOST_LIMIT = 2.0, 1000.0
LEVEL = 0.95
Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)


class Slowdown(NamedTuple):
    """Steps take ``ratio`` times as long beside the background, by so many ``pairs`` of segments.

    In 95 of 100 cases the true factor is from ``low`` to ``high``.
    """

    ratio: float
    low: float
    high: float
    pairs: int


class PairedSegments:
    """Says which of a foreground's steps are to be without pieces, and compares them.

    Segments are counted by the foreground's own steps: the ranks of a gang leave it alone at the
    same time. One segment of 8 is without pieces; one of 32 while the interval and the last ratio
    lie on one side of the limit, or if MOST_PAIRS in a row could not tell.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget all: steps will take other times, or are another foreground's."""
        self.told: Slowdown | None = None  # None: there are too few pairs
        self._logs: deque[float] = deque(maxlen=MOST_PAIRS)
        self._more = MOST_PAIRS  # pairs that are still made often
        self._every = OFTEN
        self._size, self._shut = 1, -2  # steps of a segment; the number of the one without pieces
        self._seen: dict[int, tuple[int, float]] = {}  # steps and seconds, by segment

    def is_shut(self, step: int) -> bool:
        """True if no piece may run in this step of the foreground's epoch."""
        return step // self._size == self._shut

    def note(
        self, finished: Finished, *, alone: bool, step_s: float, piece_s: float, limit: float
    ) -> None:
        """Steps were finished, ``alone`` if no piece ran in them.

        ``step_s`` and ``piece_s`` are what steps and pieces usually take, ``limit`` is that of the
        foreground's slowdown.
        """
        following = finished.first + finished.steps
        segment = finished.first // self._size
        whole = (following - 1) // self._size == segment
        if whole and abs(segment - self._shut) <= 1 and (alone or segment != self._shut):
            steps, seconds = self._seen.get(segment, (0, 0.0))
            added_s = finished.step_s * finished.steps
            self._seen[segment] = steps + finished.steps, seconds + added_s
        present = following // self._size
        if present > self._shut + 1:
            self._compare(limit)
        if not self._shut - 1 <= present <= self._shut + 1:
            self._plan(following, step_s, piece_s)

    def _plan(self, step: int, step_s: float, piece_s: float) -> None:
        """Choose the next segment without pieces, after this step and another one."""
        least_s = max(SEGMENT_S, PIECES * piece_s)
        self._size = 2 ** max(0, ceil(log2(least_s / max(step_s, TINY_S))))
        present = step // self._size
        self._shut = present + self._every - 1 - present % self._every
        if self._shut == present:
            self._shut += self._every

    def _compare(self, limit: float) -> None:
        """Take the ratio of the three segments that are over, if steps of all were seen."""
        seen = [self._seen.get(self._shut + each) for each in (-1, 0, 1)]
        self._seen = {}
        means = [seconds / steps for steps, seconds in filter(None, seen)]
        if len(means) < 3 or min(means) <= 0:
            return
        before_s, alone_s, after_s = means
        ratio = (log(before_s) + log(after_s)) / 2 - log(alone_s)
        most = log(FAR * min(limit, MOST_LIMIT))
        ratio = min(max(ratio, -most), most)
        self._logs.append(ratio)
        self.told = interval(self._logs)
        decided = self.told is not None and (
            max(self.told.high, exp(ratio)) <= limit or min(self.told.low, exp(ratio)) > limit
        )
        self._more = MOST_PAIRS if decided else max(0, self._more - 1)
        self._every = SELDOM if decided or not self._more else OFTEN


def interval(logs: deque[float]) -> Slowdown | None:
    """The mean of logarithms of ratios as a factor, and Student's interval; None of too few."""
    pairs = len(logs)
    if pairs < LEAST_PAIRS:
        return None
    middle, off = fmean(logs), _student(pairs - 1) * stdev(logs) / sqrt(pairs)
    return Slowdown(exp(middle), exp(middle - off), exp(middle + off), pairs)


def _student(freedom: int) -> float:
    """The quantile of Student's distribution, within 0.3 % from 4 degrees of freedom on.

    It is the expansion by that of the normal distribution: Abramowitz and Stegun, 26.7.5.
    """
    one = (Z**3 + Z) / 4
    two = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    three = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + one / freedom + two / freedom**2 + three / freedom**3
