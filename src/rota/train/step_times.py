"""Measures step times, for one way of cutting batches at a time."""

from __future__ import annotations

from rota.live.wire import Message

Cut = tuple[int, int, int]  # ranks, samples of a piece, how often gradients are accumulated


class StepTimes:
    """Mean seconds of a step, of one piece's gradient and of waits for data in it, since a report.

    The first step of each cut is left out: it is the one that makes room.
    """

    def __init__(self) -> None:
        self._cut: Cut = (0, 0, 0)
        self._steps = 0
        self._step_s = self._gradient_s = self._wait_s = 0.0

    def note(self, cut: Cut, step_s: float, gradient_s: float, wait_s: float = 0.0) -> None:
        """A step has been done with a whole batch, undisturbed."""
        if cut != self._cut:
            self._cut = cut
            self.sent()
            return
        self._steps += 1
        self._step_s += step_s
        self._gradient_s += gradient_s
        self._wait_s += wait_s

    def message(self) -> Message:
        """Fields of the next report: measurements since the last one, nulls if there are none."""
        sums = {"step_s": self._step_s, "gradient_s": self._gradient_s, "wait_s": self._wait_s}
        means = {name: s / self._steps if self._steps else None for name, s in sums.items()}
        return {"steps": self._steps, **means}

    def of(self, cut: Cut) -> Message:
        """The message, if that is how batches are cut now: the last ones may have been others."""
        return (self if cut == self._cut else StepTimes()).message()

    def sent(self) -> None:
        """Take the means anew from here on."""
        self._steps = 0
        self._step_s = self._gradient_s = self._wait_s = 0.0
