"""Measures the seconds of steps and of validations, and how long steps wait for their data."""

from __future__ import annotations

from rota.live.wire import Message, clock


class Window:
    """Sums of one phase since the last report."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.steps = 0
        self.seconds = 0.0
        self.wait_s: float | None = None  # None: nobody measures waits

    def add(self, seconds: float, wait_s: float | None) -> None:
        """Count a step, or a whole validation."""
        self.steps += 1
        self.seconds += seconds
        if wait_s is not None:
            self.wait_s = (self.wait_s or 0.0) + wait_s

    def message(self) -> Message:
        """Mean seconds of a step, and of waiting for data in it."""
        wait_s = None if self.wait_s is None else self.wait_s / self.steps
        return {
            "steps": self.steps,
            "step_s": self.seconds / self.steps,
            "wait_s": wait_s,
            "since_s": self.since_s,
        }


class PhaseTimes:
    """The times of steps since the last report, and of the last validation.

    The validation is told again until there is another: not every report is kept. Neither
    suspensions nor validations are part of a step.
    """

    def __init__(self) -> None:
        self._steps: Window | None = None
        self._validation: Window | None = None
        self._workers: int | None = None  # processes that load data; None without a loader
        self._wait_s: float | None = None  # in the present step
        self._evaluated_s = 0.0  # likewise

    def begin_step(self) -> None:
        """Start with a new step."""
        self._wait_s, self._evaluated_s = None, 0.0

    def loaded(self, wait_s: float, workers: int) -> None:
        """The present step has waited so long for data, which so many worker processes load."""
        self._wait_s, self._workers = wait_s, workers

    def end_step(self, seconds: float) -> None:
        """A step is over that took so long, validations in it included."""
        seconds -= self._evaluated_s
        if seconds > 0:
            wait_s = None if self._wait_s is None else min(self._wait_s, seconds)
            if self._steps is None:
                self._steps = Window(clock.now_s() - seconds - self._evaluated_s)
            self._steps.add(seconds, wait_s)

    def evaluated(self, seconds: float) -> None:
        """A validation is over that took so long."""
        self._evaluated_s += seconds
        if seconds > 0:
            self._validation = Window(clock.now_s() - seconds)
            self._validation.add(seconds, None)

    def message(self) -> Message | None:
        """The part of a report about phases; None if nothing was measured."""
        told = {}
        if self._steps is not None:
            told["train"] = self._steps.message() | {"workers": self._workers}
        if self._validation is not None:
            told["evaluate"] = self._validation.message()
        return told or None

    def sent(self) -> None:
        """Take the means of steps anew from here on."""
        self._steps = None
