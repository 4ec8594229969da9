"""This rank's turns on its GPU, where gangs of other jobs are on the same GPUs.

The host of the node's island gives the steps of all gangs one order (:mod:`rota.flow.island`), so
that their collectives meet in the same order on every GPU. A rank says that it is ready for its
next step, waits for its turn, and passes it on when the step is over. It leaves its seat before it
leaves its process group, or its GPU; whatever comes after that needs another seat.

In the background a rank tells whether its gate is open while it waits. So the turns of such a gang
begin in gaps of all of its GPUs at once, those of reductions too: no rank is in a collective while
another one waits for its gap. Its gate holds back each other piece within a turn by itself. Nobody
in the foreground waits for such a gang: its turns are on rings of their own.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from rota.flow.page import (
    FINISHED,
    FUNCTION,
    GONE,
    HOST,
    OPEN,
    OWNER,
    READY,
    SLOTS,
    TAKES_NS,
    Bells,
    Page,
    mark_of,
)
from rota.live.wire import COMPUTING, WAITING, Message
from rota.share.gate import Gate
from rota.train.pulse import Pulse

REDUCTION = -1  # the piece of a gate
STEPS = 1  # what the host knows all steps of a training by
LOOK_MS = 2  # between two looks at whether the gate is still open
MEMORY_STEPS = 8  # what a step takes is the mean of so many


class Seat:
    """A slot on an island's page. Raises OSError if its island is gone."""

    def __init__(self, told: Message) -> None:
        folder = Path(told["folder"])
        self.slot, self.ring = told["slot"], told["ring"]
        self._mark = mark_of(told["key"])
        self.page = Page(folder / "page", told["devices"], SLOTS)
        self.bells = Bells(folder)
        self.host = os.pidfd_open(told["host"])
        self._turn = 0  # the last one that it had
        self.poll = select.poll()
        for each in (self.host, self.bells.own(self.slot)):
            self.poll.register(each, select.POLLIN)

    @property
    def is_given_up(self) -> bool:
        """True once the host gives this seat no more turns; others may have its slot then."""
        return self.page.of(self.slot, OWNER) != self._mark

    def wait(self) -> bool:
        """Wait for the turn; False if the seat has been given up, or its host is gone."""
        while (has_turn := self.has_turn()) is None:
            pass
        return has_turn

    def has_turn(self, within_ms: int | None = None) -> bool | None:
        """The same for so many milliseconds, or until something has changed; None: not yet."""
        if self.page.head(self.ring) != self.slot:
            ready = {descriptor for descriptor, _ in self.poll.poll(within_ms)}
            if self.host in ready or self.is_given_up:
                return False
            self.bells.heard(self.slot)
        if self.is_given_up:
            return False
        if self.page.head(self.ring) != self.slot:
            return None
        self._turn = self.page.done(self.ring) + 1
        return True

    def pass_on(self) -> None:
        """The turn is over: the next one's owner is to know, or the host."""
        turn = self._turn
        if self.page.done(self.ring) + 1 != turn:  # the host has passed over it
            return
        self.page.pass_on(self.ring, turn)
        following = self.page.head(self.ring)
        self.bells.ring(following if following >= 0 else HOST)
        if self.page.issued(self.ring) - turn < 2:
            self.bells.ring(HOST)

    def close(self) -> None:
        """Give it up: the host passes over what turns it has yet."""
        if not self.is_given_up:
            self.page.tell(self.slot, READY, GONE)
            self.bells.ring(HOST)
        self.bells.close()
        self.page.close()
        os.close(self.host)


def _wait_open(seat: Seat, gate: Gate) -> bool:
    """As :meth:`Seat.wait`, for a turn that begins only while the gate is open."""
    has_turn = None
    while has_turn is None:
        gate.await_gap(REDUCTION)
        if seat.is_given_up:
            return False
        seat.page.tell(seat.slot, OPEN, 1)
        seat.bells.ring(HOST)
        has_turn = seat.has_turn(LOOK_MS)
        while has_turn is None and gate.has_gap(REDUCTION):
            has_turn = seat.has_turn(LOOK_MS)
        seat.page.tell(seat.slot, OPEN, 0)
        if has_turn is None:  # it may have been given a moment ago
            has_turn = seat.has_turn(0)
    return has_turn


class Turns:
    """The turns of one rank; without a seat its steps wait for nobody.

    ``tell`` is called with the key of each seat that is taken, and with None when it is left.
    ``gate`` is that of a rank in the background.
    """

    def __init__(self, pulse: Pulse, gate: Gate | None = None) -> None:
        self._pulse, self._gate = pulse, gate if gate is not None and gate.on else None
        self._seat: Seat | None = None
        self._step = self._steps = 0  # of this seat: of the present one, and those measured
        self._has_turn = False
        self._began_ns = 0
        self._takes_ns = 0.0
        self.key: str | None = None
        self.tell: Callable[[str | None], object] = lambda _: None
        self.settle: Callable[[], object] = lambda: None  # waits for what the GPU has yet to do

    def take(self, told: Message) -> None:
        """Take this seat, or none, instead of the one before."""
        self._leave()
        if told["key"] is not None:
            try:
                self._seat = Seat(told)
            except OSError:  # its host has ended meanwhile, and there is no order
                self._seat = None
            else:
                self.key, self._step, self._steps = told["key"], 0, 0
        self.tell(self.key)

    def leave(self) -> None:
        """Leave the seat if there is one, in the middle of a step too."""
        if self._seat is not None:
            self._leave()
            self.tell(None)

    def begin(self) -> None:
        """What the step computes begins: wait for the turn, unless this step has it."""
        seat = self._seat
        if seat is None or self._has_turn:
            return
        if seat.is_given_up:
            self.leave()
            return
        self._step += 1
        self._pulse.enter(WAITING)
        seat.page.tell(seat.slot, READY, self._step)
        seat.bells.ring(HOST)
        self._has_turn = seat.wait() if self._gate is None else _wait_open(seat, self._gate)
        self._pulse.enter(COMPUTING)
        if not self._has_turn:
            self.leave()
        self._began_ns = time.monotonic_ns()

    def meet(self) -> None:
        """A reduction begins: in the background it has a turn of its own."""
        if self._gate is not None and self._has_turn:
            self.end()
            self.begin()
            self._gate.begin(REDUCTION)

    def end(self) -> None:
        """The step is over: pass the turn on."""
        seat = self._seat
        if seat is None or not self._has_turn:
            return
        self.settle()
        self._has_turn = False
        if seat.is_given_up:
            self.leave()
            return
        self._learn(seat, time.monotonic_ns() - self._began_ns)
        seat.page.tell(seat.slot, FINISHED, self._step)
        seat.pass_on()

    def _learn(self, seat: Seat, took_ns: int) -> None:
        """Tell the host what a step takes; the first one of a seat may be longer than others."""
        self._steps += 1
        if self._steps > 1:
            weight = max(1 / MEMORY_STEPS, 1 / (self._steps - 1))
            self._takes_ns += weight * (took_ns - self._takes_ns)
            seat.page.tell(seat.slot, FUNCTION, STEPS)
            seat.page.tell(seat.slot, TAKES_NS, max(1, int(self._takes_ns)))

    def _leave(self) -> None:
        seat, self._seat, self.key = self._seat, None, None
        if seat is None:
            return
        if self._has_turn and not seat.is_given_up:
            seat.pass_on()
        self._has_turn = False
        self._takes_ns = 0.0
        seat.close()
