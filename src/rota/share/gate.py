"""Gives a background training its device piece by piece, by hooks on what it trains.

A piece is what runs from one hook to a later one: some layers of forward or backward, and the
optimiser. Before each the gate asks its controller with the present page, and waits for as long as
it says. Compiled models that run without hooks are one piece.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from rota.share.controllers import LEAST_PIECE_S, Controller, SlowdownFeedback
from rota.share.marks import LOAD, WAIT, Seen
from rota.share.page import FillWriter, PageReader

if TYPE_CHECKING:
    import torch

Awaited = Callable[[float], bool]
TELL_EVERY_S = 0.1


class Launches(Protocol):
    """Pieces that a device works through later than they are launched."""

    def launched(self) -> None:
        """All that was launched until now is one more piece."""

    def over(self) -> int:
        """How many pieces have ended since the last call."""


class Gate:
    """The gate of one background rank.

    ``read`` gives what is seen of the foreground. ``awaited`` waits for so many seconds, and says
    whether somebody waits for this rank to come to the end of its step: then the gate is open, so
    that a suspension never hangs behind it. ``fills`` is told how things go. Clocks are given for
    tests: ``clock`` is CLOCK_MONOTONIC, ``busy_clock`` the CPU time of this process.
    """

    def __init__(
        self,
        controller: Controller,
        read: Callable[[float], Seen],
        awaited: Awaited,
        *,
        fills: FillWriter | None = None,
        clock: Callable[[], float] = time.monotonic,
        busy_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._controller, self._read, self._awaited = controller, read, awaited
        self._fills, self._clock, self._busy_clock = fills, clock, busy_clock
        self._launches: Launches | None = None
        self._page: PageReader | None = None
        self._running = False  # a piece began, and no hook has ended it
        self._until_s = self._busy_began_s = self._tell_at_s = 0.0
        self._open = False
        self._hooks = 0
        self.on = True

    @classmethod
    def told(cls, path: str | None, awaited: Awaited) -> Gate:
        """The gate beside the page of this path; None: no gate."""
        if not path:
            gate = cls(SlowdownFeedback(), lambda _: Seen(), awaited)
            gate.on = False
            return gate
        on_gpu = bool(os.environ.get("ROTA_DEVICE"))
        waits = frozenset({WAIT, LOAD} if on_gpu else {WAIT})
        page = PageReader(path)
        gate = cls(SlowdownFeedback(waits), page.read, awaited, fills=FillWriter(path))
        gate._page = page
        return gate

    def watch(
        self,
        model: torch.nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
        device: torch.device,
    ) -> None:
        """Set hooks on the modules that have parameters of their own, and on the optimisers."""
        if not self.on:
            return
        if device.type == "cuda" and self._launches is None:
            from rota.share.cuda import EventPieces, bound_memory

            self._launches = EventPieces(device)
            if (told := os.environ.get("ROTA_MEMORY_BYTES")) is not None:
                bound_memory(device, bytes_at_most=int(told))
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._before(2 * self._hooks))
                module.register_forward_hook(self._after(2 * self._hooks + 1))
                self._hooks += 1
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before(2 * self._hooks))
            self._hooks += 1

    def _before(self, piece: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self.ask(piece)

        return hook

    def _after(self, piece: int) -> Callable[..., None]:
        """Asks before backward: when a gradient arrives at a module's output."""

        def backward(_: Any) -> None:
            self.ask(piece)

        def hook(_: Any, __: Any, output: Any) -> None:
            if getattr(output, "requires_grad", False):
                output.register_hook(backward)

        return hook

    def ask(self, piece: int) -> None:
        """Wait until the next piece may begin; one that has just begun goes on."""
        now_s = self._clock()
        if not self.on or (self._running and now_s < self._until_s):
            return
        self._end(now_s)
        now_s, least_s = self._wait(piece, now_s)
        self._began(piece, now_s, least_s)
        self._tell(now_s)

    def _began(self, piece: int, now_s: float, least_s: float) -> None:
        self._controller.began(now_s, piece)
        self._running, self._until_s, self._busy_began_s = True, now_s + least_s, self._busy_clock()

    def _wait(self, piece: int, now_s: float) -> tuple[float, float]:
        """Wait until a piece may begin: when that is, and for how long it need not ask again."""
        while not self._open:
            verdict = self._controller.ask(self._read(now_s), now_s, piece)
            if verdict.go:
                return now_s, max(LEAST_PIECE_S, verdict.again_s)
            if self._awaited(verdict.again_s):
                break
            now_s = self._clock()
            self._collect(now_s)
            self._tell(now_s)
        return now_s, LEAST_PIECE_S

    def await_gap(self, piece: int) -> None:
        """Wait until such a piece may begin; what ran before is over, and nothing begins."""
        now_s = self._clock()
        self._end(now_s)
        self._wait(piece, now_s)

    def has_gap(self, piece: int) -> bool:
        """True if such a piece may begin now, or somebody waits for this rank."""
        now_s = self._clock()
        self._collect(now_s)
        self._tell(now_s)
        return (
            self._open
            or self._controller.ask(self._read(now_s), now_s, piece).go
            or self._awaited(0.0)
        )

    def begin(self, piece: int) -> None:
        """A piece begins that was found to fit a moment ago."""
        self._began(piece, self._clock(), LEAST_PIECE_S)

    def leave(self) -> None:
        """The rank leaves its device, or begins to wait: its piece is over."""
        if self.on:
            self._end(self._clock())

    def open(self) -> None:
        """Let everything pass from now on."""
        self._open = True

    def shut(self) -> None:
        """Ask again before each piece."""
        self._open = False

    def close(self) -> None:
        """The rank is done."""
        self.leave()
        self.on = False
        if self._fills is not None:
            self._fills.close()
        if self._page is not None:
            self._page.close()

    def _end(self, now_s: float) -> None:
        """What ran until now was a piece."""
        if self._running:
            self._running = False
            if self._launches is not None:
                self._launches.launched()
            else:
                self._controller.ended(now_s, self._busy_clock() - self._busy_began_s)
        self._collect(now_s)

    def _collect(self, now_s: float) -> None:
        for _ in range(self._launches.over() if self._launches is not None else 0):
            self._controller.ended(now_s)

    def _tell(self, now_s: float) -> None:
        if self._fills is not None and now_s >= self._tell_at_s:
            self._tell_at_s = now_s + TELL_EVERY_S
            self._fills.write(now_s, *self._controller.totals())
