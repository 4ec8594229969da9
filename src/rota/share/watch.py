"""Judges what is seen of a foreground, and learns how long its steps take alone. Pure.

| what is seen | standing |
| --- | --- |
| no page; a page of zeros; its writer's process is gone | FREE: there is no foreground |
| its writer is stopped by a signal | YIELDED: the device is not used |
| segment IDLE: suspended, or off its device | YIELDED |
| segment WAIT or REDUCE for 10 s, or 20 usual steps if that is longer | YIELDED: others are lost |
| any other segment of a step for as long | BLIND: it computes, and nothing is known |
| segment OTHER: it computes outside of its steps | BLIND |
| a torn page; NaN, infinities, negative or impossible numbers; a future time | for 1 s \
as the last good mark says, then BLIND; BLIND at once if there was none |
| fewer steps or seconds than before, another epoch or process | times are learned anew |
| anything else | KNOWN |

Nothing is held for ever: where a foreground is BLIND a background trickles, see ``controllers``.
"""

from collections.abc import Sequence
from enum import Enum
from math import isfinite
from statistics import fmean
from typing import NamedTuple

from rota.share.marks import (
    GONE,
    IDLE,
    LIMIT,
    NAMES,
    NONE,
    OTHER,
    REDUCE,
    STEP,
    STOPPED,
    WAIT,
    Mark,
    Seconds,
    Seen,
)

TORN_S = 1.0
SILENT_S, SILENT_STEPS = 10.0, 20
AHEAD_S = 1.0  # a mark may be so much younger than the look at it: the looker took its time before

SKIP_STEPS, LEARN_STEPS = 1, 8  # of an epoch: left out, and needed
FOLLOW = 0.1  # weight of a step in mean deviations
STRAY = 2.0  # a step counts as at most so many usual ones
FAR = 0.2  # a deviation counts as at most this part of what is usual, and two usual deviations
TINY_S = 1e-6
PRECISION, ENOUGH_STEPS = 0.015, (10, 200)  # of the mean of steps alone
LEARN_CREDIT_S, LEARN_CREDIT_STEPS = 30.0, 12.0
LEARN_SHARE = 0.2  # of the time, in the long run


class Standing(Enum):
    """How a foreground stands towards its device."""

    FREE = "free"
    YIELDED = "yielded"
    BLIND = "blind"
    KNOWN = "known"


class Finished(NamedTuple):
    """Steps that a foreground has finished between two looks."""

    steps: int
    seconds: Seconds  # of all of them together, by segment
    began_s: float  # when the first of them began
    first: int  # the number of that one in its epoch

    @property
    def step_s(self) -> float:
        """Mean seconds of one."""
        return sum(self.seconds[each] for each in STEP) / self.steps


class Look(NamedTuple):
    """One look's judgement. ``mark`` is there if the foreground is KNOWN."""

    standing: Standing
    why: str
    mark: Mark | None = None
    finished: Finished | None = None
    anew: bool = False  # times must be learned anew
    step_began_s: float = 0.0


class Watch:
    """Looks at one page again and again."""

    def __init__(self) -> None:
        self._last: Mark | None = None
        self._torn_since_s: float | None = None

    @property
    def limit(self) -> float:
        """The slowdown that the foreground allows, by its last good mark."""
        return self._last.limit if self._last is not None else LIMIT

    def look(self, seen: Seen, now_s: float, usual_s: float = 0.0) -> Look:
        """Judge what is ``seen``; ``usual_s`` are the seconds of a usual step, 0 if not known."""
        mark = seen.mark
        if seen.process == GONE or (mark is None and not seen.torn):
            self._last = self._torn_since_s = None
            return Look(Standing.FREE, "there is no foreground")
        known = mark is not None and mark == self._last  # most looks find nothing new
        if mark is None or not (known or is_plausible(mark, now_s)):
            if self._torn_since_s is None:
                self._torn_since_s = now_s
            if self._last is None or now_s - self._torn_since_s > TORN_S:
                return Look(Standing.BLIND, "its page can't be read")
            return self._stand(self._last, now_s, usual_s)
        self._torn_since_s = None
        last, self._last = self._last, mark
        finished, anew = (None, False) if known else _between(last, mark)
        look = self._stand(mark, now_s, usual_s)
        if seen.process == STOPPED:
            look = Look(Standing.YIELDED, "the foreground is stopped")
        return look._replace(finished=finished, anew=anew, step_began_s=began_of(mark))

    def _stand(self, mark: Mark, now_s: float, usual_s: float) -> Look:
        if mark.segment == IDLE:
            return Look(Standing.YIELDED, "the foreground is off its device")
        if mark.segment == OTHER:
            return Look(Standing.BLIND, "the foreground computes outside of its steps")
        if now_s - mark.since_s > max(SILENT_S, SILENT_STEPS * usual_s):
            if mark.segment in (WAIT, REDUCE):
                return Look(Standing.YIELDED, "the foreground waits for others without end")
            return Look(Standing.BLIND, f"no mark has come since {NAMES[mark.segment]} began")
        return Look(Standing.KNOWN, "", mark, step_began_s=began_of(mark))


def began_of(mark: Mark) -> float:
    """When the step began that a mark was made in."""
    return mark.since_s - (sum(mark.sums_s) - sum(mark.done_s))


def is_plausible(mark: Mark, now_s: float) -> bool:
    """Whether a page can say that at ``now_s``."""
    if not all(map(isfinite, (mark.started_s, mark.since_s, *mark.sums_s, *mark.done_s))):
        return False
    whole = mark.pid > 0 and mark.epoch >= 0 and mark.steps >= 0 and mark.segment in range(8)
    whole = whole and isfinite(mark.limit) and mark.limit >= 1.0
    timely = 0 <= mark.since_s <= now_s + AHEAD_S and sum(mark.sums_s) <= mark.since_s + AHEAD_S
    grown = all(0 <= d <= s for d, s in zip(mark.done_s, mark.sums_s, strict=True))
    return whole and timely and grown


def _between(last: Mark | None, mark: Mark) -> tuple[Finished | None, bool]:
    """The steps finished between two marks, and whether times must be learned anew."""
    if last is None or last[:3] != mark[:3]:
        return None, True
    gone = tuple(b - a for a, b in zip(last.done_s, mark.done_s, strict=True))
    back = any(b < a for a, b in zip(last.sums_s, mark.sums_s, strict=True)) or min(gone) < 0
    if back or mark.steps < last.steps:
        return None, True
    if mark.steps == last.steps:
        return None, False
    return Finished(mark.steps - last.steps, gone, began_of(last), last.steps), False


class Bench:
    """Means of a foreground's steps and segments with its device to itself.

    The mean of the first steps alone (of 8, after one that is left out, and without the longest)
    follows each later one, with equal weights at first, so that it has no bias. A step counts as at
    most two usual ones: it may be a stray. Steps beside a background can't be shorter for that:
    where their mean is shorter by more than chance, the foreground has changed, and it is followed.
    """

    def __init__(self) -> None:
        self.seconds: Seconds = NONE
        self.spread_s: Seconds = NONE  # mean deviation, by segment
        self.step_s = self.step_spread_s = 0.0
        self._skip, self._learned = SKIP_STEPS, list[Seconds]()
        self._count = 0  # steps alone that the means are of
        self._beside_s = 0.0  # mean of steps beside a background, 0 if there were none

    @property
    def known(self) -> bool:
        """True once enough steps alone have been seen in this epoch."""
        return len(self._learned) >= LEARN_STEPS

    @property
    def high_s(self) -> float:
        """A step that is long for one alone: about one in twenty is longer."""
        return self.step_s + 2 * self.step_spread_s

    def renew(self) -> None:
        """Another epoch has begun."""
        self._skip, self._learned = SKIP_STEPS, []

    def note(self, finished: Finished, *, alone: bool) -> None:
        """Steps were finished, ``alone`` if no piece of a background ran since they began."""
        if self.known:
            if alone:
                self._follow(finished)
            else:
                self._bound(finished)
        elif alone:
            mean = tuple(s / finished.steps for s in finished.seconds)
            for _ in range(min(finished.steps, LEARN_STEPS + SKIP_STEPS)):
                if self._skip:
                    self._skip -= 1
                else:
                    self._learned.append(mean)
            if self.known:
                self._learn()

    def _learn(self) -> None:
        """Take the mean without the longest step, which is a stray more often than not."""
        steps = sorted(self._learned, key=lambda seconds: sum(seconds[each] for each in STEP))
        steps = steps[:-1]
        self._count, self._beside_s = len(steps), 0.0
        columns = list(zip(*steps, strict=True))
        self.seconds = tuple(map(fmean, columns))
        self.spread_s = tuple(map(_deviation, columns))
        totals = [sum(seconds[each] for each in STEP) for seconds in steps]
        self.step_s, self.step_spread_s = fmean(totals), _deviation(totals)

    @property
    def _enough(self) -> int:
        """The number of steps whose mean is known precisely, within bounds."""
        least, most = ENOUGH_STEPS
        noise = self.step_spread_s / self.step_s if self.step_s > 0 else 0.0
        return int(min(max(least, (noise / PRECISION) ** 2), most))

    def _follow(self, finished: Finished) -> None:
        """Let the means follow steps alone."""
        self._count = min(self._count + 1, self._enough)
        weight = 1 / self._count
        step = (finished.step_s, self.step_s, self.step_spread_s)
        self.step_s, self.step_spread_s = _followed(*step, weight)
        each_s = [seconds / finished.steps for seconds in finished.seconds]
        columns = zip(each_s, self.seconds, self.spread_s, strict=True)
        pairs = [_followed(*column, weight) for column in columns]
        self.seconds, self.spread_s = zip(*pairs, strict=True)

    def _bound(self, finished: Finished) -> None:
        """Lower the means to those of steps beside a background, where these are shorter."""
        beside_s = self._beside_s or self.step_s
        weight = 1 - (1 - FOLLOW / 2) ** finished.steps
        self._beside_s = beside_s + weight * (min(finished.step_s, STRAY * self.step_s) - beside_s)
        most_s = self._beside_s + self.step_spread_s
        if most_s < self.step_s:
            factor, self.step_s = most_s / self.step_s, most_s
            self.seconds = tuple(factor * each for each in self.seconds)


def _followed(last_s: float, mean_s: float, spread_s: float, weight: float) -> tuple[float, float]:
    """The mean and its mean deviation, after one more value."""
    off_s = min(last_s, STRAY * mean_s + TINY_S) - mean_s
    far_s = min(abs(off_s), FAR * mean_s + 2 * spread_s + TINY_S)
    return mean_s + weight * off_s, spread_s + FOLLOW * (far_s - spread_s)


def _deviation(values: Sequence[float]) -> float:
    """The mean deviation from the mean."""
    middle = fmean(values)
    return fmean(abs(each - middle) for each in values)


class LearningTime:
    """How long a background may still be held back so that times can be learned.

    At most 30 s at once, or 12 of the longest steps seen, and a fifth of the time in the long run:
    a foreground whose marks begin again for ever holds nobody for ever.
    """

    def __init__(self) -> None:
        self._left_s = LEARN_CREDIT_S
        self._at_s: float | None = None
        self._spends = True

    def may_hold(self, now_s: float, longest_s: float) -> bool:
        """Whether to hold now, for a foreground whose times are not known."""
        most_s = max(LEARN_CREDIT_S, LEARN_CREDIT_STEPS * longest_s)
        self._pass(now_s, most_s, spends=self._spends)
        if self._left_s <= 0:
            self._spends = False
        elif self._left_s >= most_s:
            self._spends = True
        return self._spends

    def pass_by(self, now_s: float, longest_s: float) -> None:
        """Nobody is held for learning."""
        most_s = max(LEARN_CREDIT_S, LEARN_CREDIT_STEPS * longest_s)
        self._pass(now_s, most_s, spends=False)
        self._spends = self._left_s > 0

    def _pass(self, now_s: float, most_s: float, *, spends: bool) -> None:
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        rate = -1.0 if spends else LEARN_SHARE / (1 - LEARN_SHARE)
        self._left_s = min(most_s, self._left_s + rate * passed_s)
