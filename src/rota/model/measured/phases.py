"""Phases of a job that does not tell them, such as training and validation, from what it uses.

A cumulative sum of deviations (CUSUM; Page, *Biometrika* 41, 1954) from an exponentially weighted
mean of each signal reports a change that lasts; deviations are cut off, so that no single sample
does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

DEVICE_UNIT = 0.15  # of the time; the use of a GPU varies by less within a phase
RATIO_UNIT = 0.3  # of logarithms; CPU time and step times vary by less
NOISE = 3.0  # mean deviations are a unit of a signal that varies more
ALLOWED = 1.0  # units that are no sign of a change
LARGEST = 4.0  # units that a sample counts at most
CHANGED = 5.0  # units beyond those allowed; two samples reach it, one does not
NORMAL = 1.5  # units up to which a sample counts for the mean
WEIGHT = 0.2  # of the latest sample in the mean
IDLE_CORES = 0.05  # fewer cores in use are as good as none
MOST_CORES = 4096.0
LEAST_STEP_S, MOST_STEP_S = 1e-6, 86_400.0

Signals = tuple[float | None, ...]


class Use(NamedTuple):
    """A sample of a job: part of the time its GPUs compute, CPU cores in use, seconds of a step.

    None where unknown.
    """

    device_util: float | None = None
    cpu_cores: float | None = None
    step_s: float | None = None

    def signals(self) -> Signals:
        """Each figure in units by which it varies within a phase; None if it cannot be."""
        device, cores, step_s = self
        return (
            device / DEVICE_UNIT if device is not None and 0 <= device <= 1 else None,
            log(cores + IDLE_CORES) / RATIO_UNIT
            if cores is not None and 0 <= cores <= MOST_CORES
            else None,
            log(step_s) / RATIO_UNIT
            if step_s is not None and LEAST_STEP_S <= step_s <= MOST_STEP_S
            else None,
        )


@dataclass(slots=True)
class Level:
    """The usual value of one signal in a phase, and deviations from it up to now."""

    mean: float
    deviation: float = 0.0
    count: int = 1
    above: float = 0.0
    below: float = 0.0

    def off(self, value: float) -> float:
        """Units by which a value differs from the usual."""
        units = (value - self.mean) / max(1.0, NOISE * self.deviation)
        return max(-LARGEST, min(LARGEST, units))

    def add(self, value: float) -> bool:
        """Count a sample; True if those up to now are a change."""
        off = self.off(value)
        self.above = max(0.0, self.above + off - ALLOWED)
        self.below = max(0.0, self.below - off - ALLOWED)
        if abs(off) <= NORMAL:
            self.count += 1
            weight = max(WEIGHT, 1 / self.count)
            self.deviation += weight * (abs(value - self.mean) - self.deviation)
            self.mean += weight * (value - self.mean)
        return max(self.above, self.below) > CHANGED


@dataclass(slots=True)
class Phases:
    """The phase that a job is in: 0 is the one in which it began, 1 the other.

    A change of what a job uses is a switch if the other phase is nearer to what it uses now; a
    drift is none.
    """

    phase: int = 0
    _levels: list[Level | None] = field(default_factory=lambda: [None, None, None])
    _other: Signals | None = None  # what the job used in the other phase when it left that
    _last: Signals = (None, None, None)

    def add(self, use: Use) -> bool:
        """Count a sample, and return True if the job has switched its phase.

        A lasting change shows with its second sample if it is large: the use of GPUs by half of the
        time, CPU time or the time of a step by a factor of three.
        """
        now, changed = use.signals(), False
        for at, value in enumerate(now):
            level = self._levels[at]
            if value is None:
                continue
            if level is None:
                self._levels[at] = Level(value)
            elif level.add(value):
                changed = True
        switched = changed and self._begin_anew(_middle(self._last, now))
        self._last = now
        return switched

    def cores_changed(self) -> None:
        """Forget what is usual in this phase: with other cores it is something else."""
        self._levels = [None, None, None]
        self._last = (None, None, None)

    def _begin_anew(self, now: Signals) -> bool:
        """Let what the job uses now be the usual; True if that is the other phase."""
        before = tuple(None if level is None else level.mean for level in self._levels)
        switched = self._other is None or _apart(now, self._other) < _apart(now, before)
        self._levels = [None if value is None else Level(value) for value in now]
        if switched:
            self.phase, self._other = 1 - self.phase, before
        return switched


def _middle(last: Signals, now: Signals) -> Signals:
    """The mean of two samples, by signal; the later value where only that is known."""
    return tuple(
        b if a is None or b is None else (a + b) / 2 for a, b in zip(last, now, strict=True)
    )


def _apart(a: Signals, b: Sequence[float | None]) -> float:
    """Units between two samples, as far as both are known."""
    known = [abs(x - y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return sum(known)
