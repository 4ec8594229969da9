"""When a background may have a piece of a device that a foreground works on. Pure.

A *piece* is what can't be interrupted once it has begun: some layers of a step, a CUDA graph, a
slice of time in which a stopped process tree runs. Whoever launches pieces has one controller,
shows it what it sees of the foreground (:class:`rota.share.marks.Seen`), and does as it says::

    verdict = controller.ask(reader.read(now_s), now_s, piece=7)
    if verdict.go:
        controller.began(now_s, piece=7)      # ... and once it is over:
        controller.ended(now_s)
    else:
        ...                                   # ask again in verdict.again_s

All times are given to it, in seconds of one monotonic clock, the one of the marks. Each of the
three keeps a foreground's process apart from a dead one, a stopped, a silent, and a page that makes
no sense, by the table of :mod:`rota.share.watch`. Where there is no foreground, four pieces may be
outstanding; where there is one, one. Where it works and nothing is known of its steps, pieces
*trickle*: after each, nothing runs for so long that the limit holds whatever the foreground does.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from rota.share.marks import IDLE, LIMIT, NAMES, REDUCE, STEP, WAIT, Mark, Seen
from rota.share.slowdown import PairedSegments, Slowdown
from rota.share.watch import Bench, Finished, LearningTime, Look, Standing, Watch, began_of

LEAST_LIMIT = 1.001  # of a slowdown: of a foreground that allows none, waits are used all the same
SAFETY = 0.8  # of what the limit leaves is used: times are learned with an error
ATTACK, DECAY = 1.0, 0.1  # weights of a segment's last time: if it is over the limit, and else
EASE = 0.5  # weight of a piece's last time if it is not longer than usual
LOWEST_PRICE = 0.02
PRIOR_STEPS = 4  # what their budget buys is the prior of the price 1
MEMORY_STEPS = 128  # of prices: the steps of which they are a mean
ALONE_DEPTH, DEPTH = 4, 1  # pieces outstanding without and with a foreground
LEAST_PIECE_S = 0.0005  # shorter ones are not worth their tokens
LONG_WAIT_S = 0.0005  # a wait that is usually longer is one to launch pieces in
LATEST_LOOK_S, SOONEST_LOOK_S = 0.02, 0.001
SPILL = 0.1  # of a step: a piece from before it that is over by then was not in it
RARE = 30  # steps: in one of so many the limit may be passed, which leaves the 95th percentile
SAVED_RARE = 4  # such steps may be saved up: those of a foreground by itself come several at once
SAVED_STEPS = 400  # what these leave may be saved for long pieces
HIGH = 4  # mean deviations: a segment that is so much longer than usual is so for a reason
RECOVERY = 0.5  # weight of a step without pieces in a segment's last times
OWN_STEPS = 64  # of the foreground alone: how often they pass the limit by themselves
MOST_KEYS = 100_000
MOST_LAUNCHED = 1000


class Verdict(NamedTuple):
    """Whether a piece may be launched now; if not, when to ask again, and why not.

    If it may, no more need be asked for ``again_s``: that is one piece.
    """

    go: bool
    again_s: float = 0.0
    why: str = ""


class Totals(NamedTuple):
    """Since the beginning: what two of them differ in tells how an interval went.

    ``steps`` of the foreground were finished, since it is known what they take alone; ``pieces``
    had the device for ``busy_s``. ``slowdown`` is that of the latest steps, None: it is not known.
    """

    steps: int
    pieces: int
    busy_s: float
    slowdown: Slowdown | None


class Controller(Protocol):
    """What all controllers do; see the module."""

    def ask(self, seen: Seen, now_s: float, piece: int = 0) -> Verdict:
        """Whether the next piece may be launched; ``piece`` tells it from others of a step."""

    def began(self, now_s: float, piece: int = 0) -> None:
        """A piece was launched."""

    def ended(self, now_s: float, busy_s: float | None = None) -> None:
        """The oldest outstanding piece is over; it had the device for ``busy_s`` if known."""

    def totals(self) -> Totals:
        """How things went since the beginning."""


class Pieces:
    """The pieces of a background: those outstanding, and how long each usually takes."""

    def __init__(self) -> None:
        self.outstanding: deque[tuple[float, int]] = deque()
        self.count, self.busy_s = 0, 0.0  # of all that are over
        self.last_began_s = self.last_end_s = float("-inf")
        self.last_busy_s = 0.0
        self._usual: dict[int, float] = {}
        self._any_s = LEAST_PIECE_S
        self.lasted_s = LEAST_PIECE_S  # of late, until they were over: others compute as well

    def began(self, now_s: float, piece: int) -> None:
        """A piece was launched."""
        self.outstanding.append((now_s, piece))

    def ended(self, now_s: float, busy_s: float | None) -> None:
        """The oldest is over."""
        if not self.outstanding:
            return
        began_s, piece = self.outstanding.popleft()
        lasted_s = max(0.0, now_s - max(began_s, self.last_end_s))
        if busy_s is None or not 0 <= busy_s < float("inf"):
            busy_s = lasted_s
        self.count += 1
        self.busy_s += busy_s
        self.last_began_s, self.last_end_s, self.last_busy_s = began_s, now_s, busy_s
        if len(self._usual) < MOST_KEYS or piece in self._usual:
            self._usual[piece] = _follow(self._usual.get(piece, busy_s), busy_s)
        self._any_s = _follow(self._any_s, busy_s)
        self.lasted_s = _follow(self.lasted_s, lasted_s)

    def usual_s(self, piece: int) -> float:
        """How long such a piece takes, and one that never ran, as others did of late."""
        return self._usual.get(piece, self._any_s)


def _follow(usual_s: float, last_s: float) -> float:
    """A mean that follows what is longer at once, and what is shorter soon: first runs are long."""
    weight = ATTACK if last_s > LIMIT * usual_s else EASE
    return usual_s + weight * (last_s - usual_s)


class Footing:
    """What all controllers have in common: the watch, the pieces, what steps take alone.

    ``look`` gives a verdict for all but a KNOWN foreground, whose times are known if they are to be
    ``learned``.
    """

    def __init__(self, *, learns: bool) -> None:
        self.limit = LIMIT  # of the slowdown: the present foreground's
        self.bench, self.pieces = Bench(), Pieces()
        self.present: Look | None = None
        self.alone = False  # whether no piece ran in the steps of ``present.finished``
        self._learns = learns
        self._watch, self._learning = Watch(), LearningTime()
        self._longest_s = 0.0
        self._now_s = 0.0
        self._paired, self._steps = PairedSegments(), 0

    def look(self, seen: Seen, now_s: float) -> Verdict | None:
        """A verdict, or None if it is the controller's own rule that decides."""
        now_s = self._now_s = max(now_s, self._now_s)
        look = self.present = self._watch.look(seen, now_s, self.bench.step_s)
        self.limit = max(LEAST_LIMIT, self._watch.limit)
        if look.anew:
            self.bench.renew()
            self._paired.renew()
        if (finished := look.finished) is not None:
            self._note(finished, look)
        outstanding = len(self.pieces.outstanding)
        if look.standing is Standing.FREE:
            alone = Verdict(True, LATEST_LOOK_S)
            return alone if outstanding < ALONE_DEPTH else _wait(SOONEST_LOOK_S, FULL)
        if outstanding >= DEPTH:
            return _wait(SOONEST_LOOK_S, FULL)
        known = not self._learns or self.bench.known
        if look.standing is not Standing.KNOWN or known:
            self._learning.pass_by(now_s, self._longest_s)
        if look.standing is Standing.YIELDED:
            return Verdict(True)
        if look.standing is Standing.BLIND:
            return self._trickle(now_s, look.why)
        if known:
            assert look.mark is not None
            shut = self._paired.is_shut(look.mark.steps)
            return _wait(self.bench.step_s / 10, COMPARED) if shut else None
        if self._learning.may_hold(now_s, max(self._longest_s, now_s - look.step_began_s)):
            return _wait(LATEST_LOOK_S, "it is learned how long steps take alone")
        return self._trickle(now_s, "how long steps take alone could not be learned yet")

    def _note(self, finished: Finished, look: Look) -> None:
        before = self.pieces.last_began_s < finished.began_s
        in_step_s = self.pieces.last_end_s - finished.began_s
        most_s = SPILL * finished.step_s if before else 0.0
        self.alone = not self.pieces.outstanding and in_step_s <= most_s
        self._longest_s = max(self._longest_s, min(finished.step_s, 600.0))
        self.bench.note(finished, alone=self.alone)
        if self.bench.known:
            self._steps += finished.steps
            self._paired.note(
                finished,
                alone=self.alone,
                step_s=self.bench.step_s,
                piece_s=self.pieces.lasted_s,
                limit=self.limit,
            )

    def _trickle(self, now_s: float, why: str) -> Verdict:
        """One piece after another, each with a pause that keeps the limit by itself."""
        pause_s = self.pieces.last_busy_s / (SAFETY * (self.limit - 1))
        left_s = self.pieces.last_end_s + pause_s - now_s
        return Verdict(True) if left_s <= 0 else _wait(left_s, why)

    def totals(self) -> Totals:
        """See :class:`Controller`."""
        pieces = self.pieces
        return Totals(self._steps, pieces.count, pieces.busy_s, self._paired.told)


FULL = "the pieces before are not over"
COMPARED = "these steps are the foreground's alone, to compare those before and after"


def _wait(seconds: float, why: str) -> Verdict:
    return Verdict(False, min(max(seconds, SOONEST_LOOK_S), LATEST_LOOK_S), why)


class SlowdownFeedback:
    """Pieces as long as the foreground's segments are within its limit (DeepPool, 2.3).

    As published, for each segment of a step: slowdown = recent / usual, where recent follows the
    last time at once if it is over the limit and slowly else; a piece may be launched if that of
    the present segment is within the limit, and gradients are not being reduced. A wait for others
    that is usually over 500 us, or has gone on for longer than usual, is launched into anyway.

    That alone does not keep a limit: short excesses add up, and a piece may be longer than what
    the limit leaves. So there is a budget over whole steps. Each step gives ``0.8 * (limit - 1)``
    of a usual step; a piece is launched if its usual time, at the price that such pieces turned out
    to have, is left in what this step gives *and* in what all steps have left so far. A finished
    step pays what it took longer than usual, at most twice the time of the pieces in it (the rest
    was not theirs), and gets back what it took less, at most their time: steps vary by themselves.
    A price is what the last 128 steps with pieces in a segment paid for a second of them. A wait
    costs a piece's time past the end that the wait usually has; one that is overdue is expected to
    last as long again as it is overdue. So mean and 95th percentile of the steps' slowdown stay
    within the limit by construction, but for one piece per step whose time or price was not
    foreseen; what it took is paid back, and where the limit was passed in a step, no more is
    launched until such steps are one in 30. A piece that no single step can pay for has its turn
    when enough is saved, in one of 30 steps.

    Where the foreground's steps vary by themselves, a step passes the limit if it is longer than
    the limit times a long one alone, and may do so as often as steps alone do, and one in 30. A
    segment is slowed if it is longer than usual by four mean deviations and pieces ran in the step;
    steps without pieces let it recover soon.

    Steps that are left to the foreground (:class:`rota.share.slowdown.PairedSegments`) tell how
    long a step takes alone, which may change.
    ``waits`` are the segments in which the device is idle: on a GPU also LOAD.
    """

    def __init__(self, waits: frozenset[int] = frozenset({WAIT})) -> None:
        self._footing, self._waits = Footing(learns=True), waits
        self._recent = [0.0] * len(NAMES)
        self._ran_s = [0.0] * len(NAMES)  # of pieces, by the foreground's segment, decayed
        self._cost_s = [0.0] * len(NAMES)  # what they made steps longer by
        self._own_rate = 0.0  # part of the steps alone that pass the limit by themselves
        self._renew()

    def _renew(self) -> None:
        """Nothing is known of the steps that come."""
        self._recent = [0.0] * len(NAMES)
        self._saved_s = 0.0
        self._rare = 1.0  # steps that may still pass the limit
        self._launched: list[Launched] = []  # in this step, or still there when it began

    def ask(self, seen: Seen, now_s: float, piece: int = 0) -> Verdict:
        """See :class:`Controller`."""
        verdict = self._footing.look(seen, now_s)
        look = self._footing.present
        assert look is not None
        if look.anew:
            self._renew()
        if look.finished is not None and self._footing.bench.known:
            self._settle(look.finished, look.step_began_s)
        if verdict is None:
            assert look.mark is not None
            verdict = self._rule(look.mark, max(now_s, look.mark.since_s), piece)
        return verdict

    def began(self, now_s: float, piece: int = 0) -> None:
        """See :class:`Controller`."""
        pieces, look = self._footing.pieces, self._footing.present
        pieces.began(now_s, piece)
        usual_s, cost_s, segment, in_wait = pieces.usual_s(piece), 0.0, IDLE, False
        if look is not None and look.mark is not None and self._footing.bench.known:
            cost_s, segment = self._cost(look.mark, now_s, piece), look.mark.segment
            in_wait = self._is_wait(look.mark, now_s)
        self._launched.append(Launched(segment, in_wait, usual_s, cost_s))
        del self._launched[:-MOST_LAUNCHED]  # where no step ever ends

    def ended(self, now_s: float, busy_s: float | None = None) -> None:
        """See :class:`Controller`."""
        pieces = self._footing.pieces
        if not pieces.outstanding:
            return
        pieces.ended(now_s, busy_s)
        number = next((i for i, each in enumerate(self._launched) if each.end_s is None), None)
        if number is not None:
            last = self._launched[number]
            over_s = max(0.0, pieces.last_busy_s - last.busy_s)
            self._launched[number] = last._replace(
                busy_s=pieces.last_busy_s, cost_s=last.cost_s + over_s, end_s=now_s
            )

    def totals(self) -> Totals:
        """See :class:`Controller`."""
        return self._footing.totals()

    # -- the rule --------------------------------------------------------------------------------

    @property
    def _limit(self) -> float:
        return self._footing.limit

    @property
    def _rate(self) -> float:
        """The part of a usual step that each step gives."""
        return SAFETY * (self._footing.limit - 1)

    def _rule(self, mark: Mark, now_s: float, piece: int) -> Verdict:
        bench, segment = self._footing.bench, mark.segment
        left_s = max(0.0, bench.step_s - (now_s - began_of(mark)))  # of this step
        soon_s = min(left_s / 2, bench.step_s / 10)
        if self._rare < 0:
            return _wait(bench.step_s, "too many steps have passed the limit")
        is_wait = self._is_wait(mark, now_s)
        if segment == REDUCE and not is_wait:
            return _wait(soon_s, "the foreground reduces its gradients")
        if not is_wait and not self._is_within(segment):
            return _wait(soon_s, f"the foreground's {NAMES[segment]} is slowed")
        usual_s = self._footing.pieces.usual_s(piece)
        cost_s = self._cost(mark, now_s, piece)
        step_s, spent_s = self._rate * bench.step_s, sum(each.cost_s for each in self._launched)
        if cost_s <= 0 and self._saved_s >= -step_s:
            return Verdict(True)
        if cost_s > self._saved_s + step_s - spent_s:
            return _wait(soon_s, "what the limit leaves is used up")
        if cost_s <= step_s - self._charged(mark, now_s, spent_s):
            return Verdict(True)
        rare = self._rare >= 1 and spent_s == 0 and usual_s > step_s
        if rare and cost_s <= self._saved_s:
            return Verdict(True)
        return _wait(soon_s, "the limit leaves no room for this piece in this step")

    def _charged(self, mark: Mark, now_s: float, spent_s: float) -> float:
        """What this step has cost so far: as foreseen, or as seen in its segments if more."""
        bench = self._footing.bench
        over_s = sum(
            max(0.0, _in_step_s(mark, each, now_s) - bench.seconds[each] - 2 * bench.spread_s[each])
            for each in STEP
        )
        return max(spent_s, min(over_s, 2 * _device_s(self._launched)))

    def _is_within(self, segment: int) -> bool:
        bench = self._footing.bench
        usual_s, spread_s = bench.seconds[segment], bench.spread_s[segment]
        return self._recent[segment] <= self._limit * (usual_s + HIGH * spread_s) + 5e-5

    def _is_wait(self, mark: Mark, now_s: float) -> bool:
        """Whether the device is idle now, in a wait that is worth it."""
        usual_s = self._footing.bench.seconds[mark.segment]
        over_s = _in_step_s(mark, mark.segment, now_s) - usual_s
        if mark.segment in self._waits:
            return usual_s > LONG_WAIT_S or over_s > LONG_WAIT_S
        return mark.segment == REDUCE and usual_s > LONG_WAIT_S and over_s > usual_s / 10

    def _cost(self, mark: Mark, now_s: float, piece: int) -> float:
        """Seconds by which a piece is expected to make this step longer."""
        usual_s = self._footing.pieces.usual_s(piece)
        if not self._is_wait(mark, now_s):
            return self._price(mark.segment) * usual_s
        left_s = self._footing.bench.seconds[mark.segment]
        left_s -= _in_step_s(mark, mark.segment, now_s)
        spread_s = 2 * self._footing.bench.spread_s[mark.segment]
        return max(0.0, usual_s - SAFETY * max(0.0, abs(left_s) - spread_s))

    # -- what finished steps tell ----------------------------------------------------------------

    def _settle(self, finished: Finished, step_began_s: float) -> None:
        """Pay for what finished steps took."""
        bench, steps, alone = self._footing.bench, finished.steps, self._footing.alone
        long = finished.step_s > self._limit * bench.high_s
        if alone:
            weight = 1 - (1 - 1 / OWN_STEPS) ** steps
            self._own_rate += weight * (long - self._own_rate)
        self._slow(finished, alone)
        over_s = (finished.step_s - bench.step_s) * steps
        theirs_s = _device_s(self._launched)
        paid_s = min(max(over_s, -theirs_s), 2 * theirs_s)
        gain_s = self._rate * bench.step_s
        self._saved_s = min(self._saved_s + gain_s * steps - paid_s, SAVED_STEPS * gain_s)
        most = SAVED_RARE + 2 * RARE * self._own_rate
        self._rare = min(most, self._rare + steps * (1 / RARE + self._own_rate))
        if theirs_s and long:
            self._rare -= steps
        elif paid_s > 0 and steps > 1:  # a long piece: which of the steps it was in is not known
            self._rare -= min(float(steps), paid_s / ((self._limit - 1) * bench.step_s))
        # Pieces that ended in the next step may have made that one longer, and not these.
        ended: list[Launched] = []
        late: list[Launched] = []
        for each in self._launched:
            is_late = each.end_s is None or each.end_s > step_began_s
            (late if is_late else ended).append(each)
        self._reprice(paid_s, steps, ended)
        self._launched = late

    def _slow(self, finished: Finished, alone: bool) -> None:
        """Note what the segments took: pieces are to blame for what is slow beside them only."""
        bench = self._footing.bench
        for segment in STEP:
            last_s = finished.seconds[segment] / finished.steps
            usual_s, spread_s = bench.seconds[segment], bench.spread_s[segment]
            recent_s = self._recent[segment] or usual_s
            if alone:
                last_s, weight = min(last_s, usual_s), RECOVERY
            else:
                over = last_s > self._limit * (usual_s + HIGH * spread_s)
                weight = ATTACK if over else DECAY
            self._recent[segment] = recent_s + weight * (last_s - recent_s)

    def _price(self, segment: int) -> float:
        """What a second of a piece in that segment costs the foreground, in seconds.

        As long as little is known of the segment it is the price in all, and at first 1.
        """
        prior_s = PRIOR_STEPS * self._rate * self._footing.bench.step_s
        price = (prior_s + sum(self._cost_s)) / (prior_s + sum(self._ran_s))
        price = (prior_s * price + self._cost_s[segment]) / (prior_s + self._ran_s[segment])
        return min(max(price, LOWEST_PRICE), 1.0)

    def _reprice(self, over_s: float, steps: int, launched: list[Launched]) -> None:
        """Note what pieces cost, by what steps took longer than usual."""
        by_segment = [0.0] * len(NAMES)
        for each in launched:
            by_segment[each.segment] += 0.0 if each.in_wait else each.busy_s
        foreseen = [self._price(each) * ran_s for each, ran_s in enumerate(by_segment)]
        if (foreseen_s := sum(foreseen)) <= 0:
            return
        kept = (1 - 1 / MEMORY_STEPS) ** steps
        for segment, ran_s in enumerate(by_segment):
            if ran_s:
                cost_s = over_s * foreseen[segment] / foreseen_s
                self._ran_s[segment] = kept * self._ran_s[segment] + ran_s
                self._cost_s[segment] = kept * self._cost_s[segment] + cost_s


class Launched(NamedTuple):
    """A piece: the foreground's segment as it began, and what it took or will take, and cost."""

    segment: int
    in_wait: bool
    busy_s: float
    cost_s: float
    end_s: float | None = None  # None: it is outstanding


def _device_s(launched: list[Launched]) -> float:
    """The time that pieces had which can have made a step longer: of those in waits, the last."""
    in_waits = max((each.busy_s for each in launched if each.in_wait), default=0.0)
    return in_waits + sum(each.busy_s for each in launched if not each.in_wait)


def _in_step_s(mark: Mark, segment: int, now_s: float) -> float:
    """Seconds of the present step in a segment so far."""
    seconds = mark.sums_s[segment] - mark.done_s[segment]
    return seconds + (now_s - mark.since_s if mark.segment == segment else 0.0)


class StrictIdle:
    """Pieces only while the foreground has no segment open, or waits.

    A foreground that never waits leaves nothing to a background. A piece that is longer than a wait
    slows the foreground all the same: nothing here knows how long either takes.
    """

    def __init__(self, waits: frozenset[int] = frozenset({WAIT})) -> None:
        self._footing, self._waits = Footing(learns=False), waits

    def ask(self, seen: Seen, now_s: float, piece: int = 0) -> Verdict:
        """See :class:`Controller`."""
        verdict = self._footing.look(seen, now_s)
        if verdict is not None:
            return verdict
        look = self._footing.present
        assert look is not None
        assert look.mark is not None
        if look.mark.segment in self._waits:
            return Verdict(True)
        return _wait(SOONEST_LOOK_S, f"the foreground is in {NAMES[look.mark.segment]}")

    def began(self, now_s: float, piece: int = 0) -> None:
        """See :class:`Controller`."""
        self._footing.pieces.began(now_s, piece)

    def ended(self, now_s: float, busy_s: float | None = None) -> None:
        """See :class:`Controller`."""
        self._footing.pieces.ended(now_s, busy_s)

    def totals(self) -> Totals:
        """See :class:`Controller`."""
        return self._footing.totals()


WINDOW_S, WINDOW_STEPS = 0.1, 4  # of the AIMD controller: the longer of both
WHOLE = 1e6  # units of the device's time: its rate is in millionths


class Aimd:
    """A rate of pieces, found by additive increase and multiplicative decrease (TGS, NSDI 2023).

    With delta = abs(rate - max) / max, where rate is that of the foreground in a window and
    max the one alone: in slow start r = 1.5 r + 1 while delta <= 0.03, then r / 1.5 and congestion
    avoidance, in which r grows by max(0.00025 max, 1000) while delta <= 0.03 and else shrinks by
    max(0.08 r, 1000). delta >= 0.09 divides r by 10 and slow start begins; delta >= 0.12 for 20
    windows takes max for too high: 0.8 max, r / 2, slow start. A rate above max raises it by 2.5 %.

    The published code counts blocks of kernels; here r is in millionths of the device's time, and a
    window is 0.1 s, or four steps if they take longer: our choices. It keeps no limit.
    """

    def __init__(self) -> None:
        self._footing = Footing(learns=True)
        self._renew()

    def _renew(self) -> None:
        self._rate, self._starts = 0.0, True
        self._most = 0.0  # steps a second, alone
        self._far_windows = 0
        self._window_s: float | None = None
        self._window_steps, self._window_took_s = 0, 0.0
        self._tokens_s, self._filled_s = 0.0, 0.0

    def ask(self, seen: Seen, now_s: float, piece: int = 0) -> Verdict:
        """See :class:`Controller`."""
        verdict = self._footing.look(seen, now_s)
        look = self._footing.present
        assert look is not None
        if look.anew:
            self._renew()
        if verdict is not None:
            return verdict
        self._count(look.finished, now_s)
        passed_s = max(0.0, now_s - self._filled_s)
        most_s = WINDOW_S * self._rate / WHOLE
        self._tokens_s = min(most_s, self._tokens_s + passed_s * self._rate / WHOLE)
        self._filled_s = now_s
        if self._tokens_s > 0:
            return Verdict(True)
        wait_s = -self._tokens_s * WHOLE / self._rate if self._rate > 0 else WINDOW_S
        return _wait(wait_s, "its rate is used up")

    def _count(self, finished: Finished | None, now_s: float) -> None:
        if self._window_s is None:
            self._most = 1 / self._footing.bench.step_s
            self._window_s = self._filled_s = now_s
            return
        if finished is not None:
            self._window_steps += finished.steps
            self._window_took_s += finished.steps * finished.step_s
        if now_s - self._window_s >= WINDOW_S and self._window_steps >= WINDOW_STEPS:
            self._adapt(self._window_steps / self._window_took_s)
            self._window_s, self._window_steps, self._window_took_s = now_s, 0, 0.0

    def _adapt(self, rate: float) -> None:
        """A window is over, in which the foreground did so many steps a second."""
        delta = abs(rate - self._most) / self._most
        if rate > self._most:
            self._most = min(rate, 1.025 * self._most)
            delta = 0.0
        self._far_windows = self._far_windows + 1 if delta >= 0.12 else 0
        if self._far_windows >= 20:
            self._most *= 0.8
            self._rate, self._starts, self._far_windows = self._rate / 2, True, 0
        elif delta >= 0.09:
            self._rate, self._starts = self._rate / 10, True
        elif self._starts and delta <= 0.03:
            self._rate = 1.5 * self._rate + 1
        elif self._starts:
            self._rate, self._starts = self._rate / 1.5, False
        elif delta <= 0.03:
            self._rate += max(0.00025 * WHOLE, 1000)
        else:
            self._rate -= max(0.08 * self._rate, 1000)
        self._rate = min(max(self._rate, 0.0), WHOLE)

    def began(self, now_s: float, piece: int = 0) -> None:
        """See :class:`Controller`."""
        self._footing.pieces.began(now_s, piece)

    def ended(self, now_s: float, busy_s: float | None = None) -> None:
        """See :class:`Controller`."""
        pieces = self._footing.pieces
        if pieces.outstanding:
            pieces.ended(now_s, busy_s)
            self._tokens_s -= pieces.last_busy_s

    def totals(self) -> Totals:
        """See :class:`Controller`."""
        return self._footing.totals()
