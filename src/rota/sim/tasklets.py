"""One device in tasklets: a foreground training, and a background under a real controller.

The foreground's step is a list of parts, each of some tasklets with gaps between them in which the
device is idle. The background has pieces that are never interrupted. Either has the device to
itself, in the order in which they ask for it, as without priorities; or both go on at once, the
foreground at a given speed, as on a CPU with weights. Time jumps from event to event.
"""

import random
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from rota.share.controllers import Controller
from rota.share.marks import IDLE, NONE, Mark, Seen

See = Callable[[Mark, float], Seen]


class Part(NamedTuple):
    """A segment of a step: so many tasklets of ``busy_s``, each followed by a gap of ``gap_s``."""

    segment: int
    tasklets: int
    busy_s: float
    gap_s: float = 0.0


class Foreground(NamedTuple):
    """A training. Each part of each step takes a random factor longer, of deviation ``noise``.

    Whole steps take a log-normal factor longer, of deviation ``varies`` of its logarithm, and the
    part ``strays`` of them three times as long again.
    """

    parts: tuple[Part, ...]
    noise: float = 0.0
    varies: float = 0.0
    strays: float = 0.0

    def factors(self, seed: int, step: int) -> list[float]:
        """How much longer each part takes in this step than usual; the same whenever asked."""
        draw = random.Random(seed * 1_000_003 + step)
        factors = [max(0.2, draw.gauss(1.0, self.noise)) for _ in self.parts]
        whole = draw.lognormvariate(0.0, self.varies) * (
            3.0 if draw.random() < self.strays else 1.0
        )
        return [whole * factor for factor in factors]


class Outcome(NamedTuple):
    """What came of it: the slowdown of each step against the same step alone, and the harvest."""

    slowdowns: tuple[float, ...]
    alone_s: float  # of all steps
    took_s: float
    harvest: float  # part of the time in which pieces ran
    idle: float  # part of the time alone in which the foreground leaves the device idle

    @property
    def mean(self) -> float:
        """The whole time over the one alone."""
        return self.took_s / self.alone_s

    @property
    def p95(self) -> float:
        """The slowdown that one step in twenty exceeds."""
        return sorted(self.slowdowns)[int(0.95 * len(self.slowdowns))]

    def worst(self, window: int) -> float:
        """The worst mean of so many steps in a row."""
        sums, total = [0.0], 0.0
        for each in self.slowdowns:
            total += each
            sums.append(total)
        spans = range(len(sums) - window)
        return max(((sums[i + window] - sums[i]) / window for i in spans), default=1.0)


def share(
    foreground: Foreground,
    pieces: Sequence[float],
    controller: Controller | None,
    *,
    steps: int,
    seed: int = 0,
    beside: float = 0.0,
    see: See = lambda mark, _: Seen(mark),
    skip: int = 0,
) -> Outcome:
    """Run so many steps of ``foreground`` beside a background of ``pieces`` (seconds), repeated.

    Without a ``controller`` pieces are launched one after another. ``beside`` is the speed of a
    tasklet while a piece runs, the piece's is what is left; 0: one waits until the other is done.
    ``see`` makes what the controller sees of the page; the first ``skip`` steps are not counted.
    """
    return _Device(foreground, pieces, controller, seed, beside, see).run(steps, skip)


class _Device:
    """The state at ``now_s``: what is left of the present tasklet, gap and piece."""

    def __init__(
        self,
        foreground: Foreground,
        pieces: Sequence[float],
        controller: Controller | None,
        seed: int,
        beside: float,
        see: See,
    ) -> None:
        self.foreground, self.pieces, self.controller = foreground, pieces, controller
        self.seed, self.beside, self.see = seed, beside, see
        self.now_s = 1.0  # marks tell of times after the machine's start
        self.work_s: float | None = None  # of the present tasklet
        self.gap_until_s = inf
        self.piece_s: float | None = None
        self.piece_holds = False  # an exclusive device is the piece's
        self.piece = 0
        self.ask_at_s = self.now_s if pieces else inf
        self.busy_s = 0.0
        self.segment, self.since_s = IDLE, self.now_s
        self.sums, self.done, self.steps = list(NONE), NONE, 0

    def run(self, steps: int, skip: int) -> Outcome:
        slowdowns: list[float] = []
        alone_s = took_s = idle_s = 0.0
        counted_busy_s = 0.0
        for step in range(steps):
            began_s, own_s = self.now_s, 0.0
            if step == skip:
                counted_busy_s = self.busy_s
            for part, factor in zip(
                self.foreground.parts, self.foreground.factors(self.seed, step), strict=True
            ):
                self._enter(part.segment)
                own_s += part.tasklets * (part.busy_s + part.gap_s) * factor
                idle_s += part.tasklets * part.gap_s * factor if step >= skip else 0.0
                for _ in range(part.tasklets):
                    self._compute(part.busy_s * factor)
                    self._pause(part.gap_s * factor)
            self._end_step()
            if step >= skip:
                slowdowns.append((self.now_s - began_s) / own_s)
                alone_s += own_s
                took_s += self.now_s - began_s
        harvest = (self.busy_s - counted_busy_s) / took_s
        return Outcome(tuple(slowdowns), alone_s, took_s, harvest, idle_s / alone_s)

    # -- the foreground ------------------------------------------------------------------------

    def _enter(self, segment: int) -> None:
        self.sums[self.segment] += self.now_s - self.since_s
        self.segment, self.since_s = segment, self.now_s

    def _end_step(self) -> None:
        self._enter(self.foreground.parts[0].segment)
        self.steps += 1
        self.done = tuple(self.sums)

    def _mark(self) -> Mark:
        place = (1, 0.0, 0, self.steps, self.segment, self.since_s)
        return Mark(*place, tuple(self.sums), self.done)

    def _compute(self, work_s: float) -> None:
        if work_s <= 0:
            return
        self.work_s = work_s
        while self.work_s is not None:
            self._advance()

    def _pause(self, gap_s: float) -> None:
        if gap_s <= 0:
            return
        self.gap_until_s = self.now_s + gap_s
        while self.now_s < self.gap_until_s:
            self._advance()
        self.gap_until_s = inf

    # -- both ----------------------------------------------------------------------------------

    def _rates(self) -> tuple[float, float]:
        """How fast the tasklet and the piece go on."""
        if self.work_s is None or self.piece_s is None:
            return 1.0, 1.0
        if self.beside > 0:
            return self.beside, 1.0 - self.beside
        return (0.0, 1.0) if self.piece_holds else (1.0, 0.0)

    def _advance(self) -> None:
        """Go on to the next event, and let it happen."""
        fast, slow = self._rates()
        ends_s = self.now_s + self.work_s / fast if self.work_s is not None and fast else inf
        piece_ends_s = (
            self.now_s + self.piece_s / slow if self.piece_s is not None and slow else inf
        )
        next_s = min(ends_s, piece_ends_s, self.gap_until_s, self.ask_at_s)
        passed_s = max(0.0, next_s - self.now_s)
        self.now_s = max(self.now_s, next_s)
        if self.piece_s is not None:
            self.piece_s -= slow * passed_s
            self.busy_s += slow * passed_s
        if self.work_s is not None:
            self.work_s -= fast * passed_s
        if next_s == ends_s:
            self.work_s, self.piece_holds = None, self.piece_s is not None
        if next_s == piece_ends_s:
            self._end_piece()
        if next_s == self.ask_at_s:
            self._ask()

    # -- the background ------------------------------------------------------------------------

    def _ask(self) -> None:
        kind = self.piece % len(self.pieces)
        if self.controller is not None:
            seen = self.see(self._mark(), self.now_s)
            verdict = self.controller.ask(seen, self.now_s, kind)
            if not verdict.go:
                self.ask_at_s = self.now_s + verdict.again_s
                return
            self.controller.began(self.now_s, kind)
        self.piece_s, self.ask_at_s = self.pieces[kind], inf
        self.piece += 1
        self.piece_holds = self.work_s is None

    def _end_piece(self) -> None:
        self.piece_s, self.piece_holds = None, False
        if self.controller is not None:
            # Of pieces beside tasklets it is known what they had, as a process knows its CPU time.
            busy_s = self.pieces[(self.piece - 1) % len(self.pieces)] if self.beside > 0 else None
            self.controller.ended(self.now_s, busy_s)
        self.ask_at_s = self.now_s
