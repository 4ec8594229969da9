"""Measures the device time of a piece of a batch, from its first computation to its gradient."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class GradientClock:
    """Times what happens between ``start`` and ``stop``, without waiting for a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._began: Any = None
        self._taken: list[tuple[Any, Any]] = []

    def start(self) -> None:
        """A piece has been loaded."""
        self._began = self._mark()

    def stop(self) -> None:
        """Its gradient has been computed, or is about to be."""
        self._taken.append((self._began, self._mark()))

    def read(self) -> float | None:
        """The mean seconds of a piece since the last call; None if there was none.

        Waits for the device if it is not done yet.
        """
        taken, self._taken = self._taken, []
        if not taken:
            return None
        if self._on_gpu:
            taken[-1][1].synchronize()
            return sum(a.elapsed_time(b) for a, b in taken) / 1e3 / len(taken)
        return float(sum(b - a for a, b in taken)) / len(taken)

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        from torch.cuda import Event

        event = Event(enable_timing=True)
        event.record()
        return event
