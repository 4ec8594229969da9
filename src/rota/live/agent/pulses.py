"""Reads the pulses of a gang's ranks: finds one that hangs, or lags behind."""

import struct
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rota.live.wire import COMPUTING, EVALUATING, PULSE, WAITING
from rota.model.measured.phase_times import EVALUATE, TRAIN

HANGS_AFTER_S = 60.0  # in its own step, or so many usual steps, while others wait for it
HANGS_AFTER_STEPS = 20
SMOOTHING = 0.1  # of the relative throughput, per sample of it
LAGS_BELOW = 0.8
LEAST_SAMPLES = 10  # before that a rank may have been unlucky, or was still warming up


class Beat(NamedTuple):
    """A rank's last entry: phase, its start (CLOCK_MONOTONIC), and totals of its own work."""

    phase: int
    since_s: float
    computed_s: float
    samples: float


class Pulses:
    """The pulses of one attempt, read now and then.

    A straggler is a rank whose throughput of its own computation, relative to the median rank and
    smoothed exponentially (0.1 for each step), is below 0.8 (Or et al., *Resource Elasticity in
    Distributed Deep Learning*, MLSys 2020). Rank 0 never counts as a straggler.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[int, Beat] = {}
        self._smoothed: dict[int, float] = {}
        self._num_samples = 0
        self._began_s: float | None = None
        self._awaited_s: dict[int, float] = {}  # since when

    def forget(self) -> None:
        """Start over: the gang has changed, or has been suspended."""
        self._last.clear()
        self._smoothed.clear()
        self._num_samples = 0
        self._began_s = None
        self._awaited_s.clear()

    def look(
        self, slots: Iterable[int], now_s: float, step_s: float = 0.0, awaited: Iterable[int] = ()
    ) -> tuple[int | None, int | None]:
        """The slot that hangs, if any, and the one that lags behind most, if any.

        ``step_s`` is the usual time of a step; ``awaited`` are slots whose answer all others wait
        for.
        """
        slots = list(slots)
        if self._began_s is None:
            self._began_s = now_s
        beats = {s: beat for s in slots if (beat := beat_of(self._folder, s)) is not None}
        if len(beats) < len(slots):
            return None, None
        patience_s = max(HANGS_AFTER_S, HANGS_AFTER_STEPS * step_s)
        late = now_s - patience_s
        self._awaited_s = {slot: self._awaited_s.get(slot, now_s) for slot in awaited}
        silent = [s for s in self._awaited_s if s in beats and beats[s].phase != EVALUATING]
        hung = self._late([s for s in silent if self._awaited_s[s] < late], beats, late)
        if len(slots) < 2:
            return hung, None
        waiting = [slot for slot, beat in beats.items() if beat.phase == WAITING]
        if hung is None and self._late(waiting, beats, late) is not None:
            hung = self._late([s for s in slots if beats[s].phase == COMPUTING], beats, late)
        return hung, self._straggler(slots, beats)

    def _late(self, slots: Iterable[int], beats: dict[int, Beat], late: float) -> int | None:
        """A slot in its phase since before ``late``, and watched since then."""
        began = self._began_s if self._began_s is not None else late
        return next((s for s in slots if max(beats[s].since_s, began) < late), None)

    def _straggler(self, slots: list[int], beats: dict[int, Beat]) -> int | None:
        rates = {}
        for slot, beat in beats.items():
            last = self._last.get(slot)
            if last is None or beat.computed_s < last.computed_s:
                self._last[slot] = beat
            elif beat.samples > last.samples and beat.computed_s > last.computed_s:
                rates[slot] = (beat.samples - last.samples) / (beat.computed_s - last.computed_s)
        if len(rates) < len(slots):
            return None  # not everybody has done a step since
        middle = median(rates.values())
        for slot, rate in rates.items():
            relative = rate / middle
            before = self._smoothed.get(slot, relative)
            self._smoothed[slot] = SMOOTHING * relative + (1 - SMOOTHING) * before
            self._last[slot] = beats[slot]
        self._num_samples += 1
        if self._num_samples < LEAST_SAMPLES:
            return None
        worst = min(slots[1:], key=self._smoothed.__getitem__)
        return worst if self._smoothed[worst] < LAGS_BELOW else None


def beat_of(folder: Path, slot: int) -> Beat | None:
    """The last entry of an attempt's rank; None if it has no session."""
    try:
        return Beat(*PULSE.unpack((folder / f"rank{slot}.pulse").read_bytes()))
    except (OSError, struct.error):
        return None


def phase_of(folder: Path, slot: int) -> str | None:
    """The phase that a rank's session is in: ``train`` or ``evaluate``; None without a session."""
    beat = beat_of(folder, slot)
    if beat is None:
        return None
    return EVALUATE if beat.phase == EVALUATING else TRAIN
