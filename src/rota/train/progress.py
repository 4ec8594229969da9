"""A rank's reports of the training's progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rota.errors import InputError
from rota.live.wire import Message, clock
from rota.train.phase_times import PhaseTimes
from rota.train.step_times import StepTimes

MILESTONE = 100  # time to the first 100 mini-batches is a figure of its own (Gandiva, OSDI 2018)
FASTEST_REPORTS_S, SLOWEST_REPORTS_S = 0.1, 5.0


class Progress:
    """Steps, samples, loss and metrics so far, and the time that steps take."""

    def __init__(self) -> None:
        self.step = 0
        self.in_step = False  # between the beginning of a step of ``Session.steps`` and its end
        self.total: int | None = None
        self.samples = 0
        self.total_samples: int | None = None
        self.first_100_s: float | None = None
        self._loss: float | None = None
        self._metrics: dict[str, float | None] = {}
        self.counts_cpu = False  # True if training runs on the processor
        self._cpu_s = self._cpu_began_s = 0.0  # of this process, in steps since the last report
        self._busy_s = 0.0  # time in steps since the last report, without suspensions
        self._timed_steps = 0
        self._util_since_s = clock.now_s()
        self._batch = 0  # the most samples that a step has had
        self._counted = 0  # samples before the present step
        self.step_s = 0.0  # of the last step
        self.unsaved: str | None = None  # why the requested checkpoint is not written yet
        self.adaptation: Callable[[], Message | None] = lambda: None  # see `Training`
        self.times = StepTimes()
        self.phases = PhaseTimes()
        self._began = self._reported = self._opened = time.monotonic()

    def note(
        self, loss: float | None, samples: int | None, metrics: dict[str, float]
    ) -> dict[str, float | None]:
        """Remember the program's report; its figures by name, None for one that is not finite.

        Raises InputError, with nothing remembered, if one of them is no number.
        """
        given = metrics if loss is None else metrics | {"loss": loss}
        figures = {name: _finite(name, value) for name, value in given.items()}
        if samples is not None:
            self.samples += int(_number("samples", samples, int))
        self._metrics |= {name: figures[name] for name in metrics}
        if loss is not None:
            self._loss = figures["loss"]
        return figures

    def begin_step(self) -> None:
        """Start the clock of a step."""
        self._began = time.monotonic()
        self._cpu_began_s = time.process_time()
        self._counted = self.samples
        self.phases.begin_step()

    def end_step(self) -> bool:
        """Count a step. True if a report is due."""
        now = time.monotonic()
        self.step_s = now - self._began
        self._busy_s += self.step_s
        self.phases.end_step(self.step_s)
        self._cpu_s += time.process_time() - self._cpu_began_s
        self._timed_steps += 1
        self.step += 1
        if self.step == MILESTONE:
            self.first_100_s = clock.now_s()
        every_s = min(max((now - self._opened) / 100, FASTEST_REPORTS_S), SLOWEST_REPORTS_S)
        return now - self._reported >= every_s or self.step == MILESTONE

    def message(self) -> Message:
        """The report."""
        self._reported = time.monotonic()
        self._batch = max(self._batch, self.samples - self._counted)
        return {
            "type": "report",
            "at_s": clock.now_s(),
            "step": self.step,
            "total": self.total,
            "samples": self.samples,
            "total_samples": self.total_samples,
            "loss": self._loss,
            "step_time_s": self._busy_s / self._timed_steps if self._timed_steps else None,
            "metrics": self._metrics,
            "first_100_s": self.first_100_s,
            "batch": self._batch,
            "device_util": self._device_util(),
            "util_since_s": self._util_since_s,
            "adaptation": self.adaptation(),
            "unsaved": self.unsaved,
            "phases": self.phases.message(),
        }

    def _device_util(self) -> float | None:
        """Part of the time in steps in which the device computed for this process, if known."""
        if not self.counts_cpu or self._busy_s <= 0:
            return None
        return min(1.0, self._cpu_s / self._busy_s)

    def sent(self) -> None:
        """Start a new mean of the time per step."""
        self._busy_s, self._cpu_s, self._timed_steps = 0.0, 0.0, 0
        self._util_since_s = clock.now_s()
        self.times.sent()
        self.phases.sent()


def _finite(name: str, value: Any) -> float | None:
    """The number, or None for one that JSON can't carry (NaN, infinities). Raises InputError."""
    number = _number(name, value, float)
    return number if math.isfinite(number) else None


def _number(name: str, value: Any, kind: Callable[[Any], float]) -> float:
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # tensors raise the last
        raise InputError(
            f"s.report: {name}={value!r:.80} is no number; report a float, or a tensor with one "
            "element"
        ) from None
