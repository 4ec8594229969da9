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

from enum import Enum
from math import isfinite
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
FOLLOW = 0.1  # weight of a later step alone in what steps take
STRAY = 0.2  # a step alone counts as at most so much longer than what is usual
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
    return Finished(mark.steps - last.steps, gone, began_of(last)), False


class Bench:
    """How long a foreground's steps and their segments take with its device to itself.

    It is the mean of the first steps alone (of 8, after one that is left out), and follows later
    ones: slowly upwards, since a long one may be a stray; at once downwards, even by steps that a
    background was beside, which can't have been faster for that.
    """

    def __init__(self) -> None:
        self.seconds: Seconds = NONE
        self.spread_s: Seconds = NONE  # mean deviation, by segment
        self.step_s = self.step_spread_s = 0.0
        self.longest_s = 0.0  # of all steps alone so far, in any epoch
        self._skip, self._learned = SKIP_STEPS, list[Seconds]()

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
        mean = tuple(s / finished.steps for s in finished.seconds)
        if not alone:
            if self.known and finished.step_s < self.step_s:
                self._follow(mean, FOLLOW)
            return
        self.longest_s = max(self.longest_s, finished.step_s)
        if self.known:
            down = finished.step_s < (1 - FOLLOW) * self.step_s
            self._follow(mean, 0.5 if down else FOLLOW)
            return
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
        count = len(steps)
        self.seconds = tuple(sum(column) / count for column in zip(*steps, strict=True))
        self.spread_s = tuple(
            sum(abs(each - mean) for each in column) / count
            for column, mean in zip(zip(*steps, strict=True), self.seconds, strict=True)
        )
        totals = [sum(seconds[each] for each in STEP) for seconds in steps]
        self.step_s = sum(totals) / count
        self.step_spread_s = sum(abs(each - self.step_s) for each in totals) / count

    def _follow(self, seconds: Seconds, weight: float) -> None:
        step_s = sum(seconds[each] for each in STEP)
        off_s = min(abs(step_s - self.step_s), STRAY * self.step_s)
        self.step_spread_s += FOLLOW * (off_s - self.step_spread_s)
        pairs = list(zip(seconds, self.seconds, self.spread_s, strict=True))
        self.spread_s = tuple(
            spread + FOLLOW * (min(abs(new - old), STRAY * old) - spread)
            for new, old, spread in pairs
        )
        self.seconds = tuple(
            old + weight * (min(new, (1 + STRAY) * old + 1e-6) - old) for new, old, _ in pairs
        )
        self.step_s = sum(self.seconds[each] for each in STEP)


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
