"""Use of a node's machine: its CPU cores, its memory and its GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from rota.live.agent.nvml import Reading

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


class Vitals:
    """Reads what is in use of the machine; of GPUs it tells what the node's meter has read."""

    def __init__(self, gpus: Sequence[str], readings: Mapping[str, Reading]) -> None:
        """``readings`` has the latest one by what CUDA_VISIBLE_DEVICES calls a GPU of ``gpus``."""
        self._gpus, self._readings = gpus, readings
        self._before = psutil.cpu_times()

    def read(self) -> dict[str, Any]:
        """The fields of a ``vitals`` message: use of CPU cores since the last call.

        All programs count, Rota's and others'. A GPU has null for what its driver does not tell.
        """
        now, before = psutil.cpu_times(), self._before
        self._before = now
        spent_s = sum(now) - sum(before)
        busy_s = sum(getattr(now, each, 0.0) - getattr(before, each, 0.0) for each in BUSY)
        memory = psutil.virtual_memory()
        part = min(1.0, max(0.0, busy_s / spent_s)) if spent_s > 0 else 0.0
        return {
            "cores_busy": part * (psutil.cpu_count() or 1),
            "memory_bytes": memory.total,
            "memory_used_bytes": memory.total - memory.available,
            "gpus": [self._gpu(self._readings.get(gpu)) for gpu in self._gpus],
        }

    def _gpu(self, reading: Reading | None) -> dict[str, Any]:
        if reading is None:
            return {"busy": None, "memory_used_bytes": None}
        return {"busy": reading.util, "memory_used_bytes": reading.used_bytes}
