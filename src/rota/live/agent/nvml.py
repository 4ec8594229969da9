"""Reads from NVML which processes use GPUs, and how much of them.

Per-process figures need a GPU that is not cut into MIG instances, and an agent that calls processes
as the driver does (a container without the host's process ids does not). Where the driver does not
tell, the answer is None, not zero.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from rota.live.wire import clock

PERIOD_S = 1.0  # a reading tells of the time since about so long ago


class Reading(NamedTuple):
    """One GPU at one moment. Parts of time are 0..1; None is what the driver does not tell."""

    at_s: float
    memory: dict[int, int] | None  # bytes by process that has a context there
    busy: dict[int, float] | None  # part of the time that each kept the GPU busy; none: not at all
    util: float | None  # part of the time that anybody did
    used_bytes: int | None = None  # of its memory, by whomever


class Nvml:
    """The driver's library, kept open; ``library`` is pynvml, or has the same functions."""

    def __init__(self, library: Any) -> None:
        """Raises ``library.NVMLError`` where there is no driver."""
        self._nvml = library
        # The second is raised for a driver too old for the newest version of a function.
        self._errors = (library.NVMLError, library.NVMLLibraryMismatchError)
        library.nvmlInit()

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.nvmlShutdown()

    def read(self, ids: list[str]) -> dict[str, Reading]:
        """A reading of each GPU, by what ``CUDA_VISIBLE_DEVICES`` calls it."""
        return {each: self._reading(each) for each in ids}

    def _reading(self, gpu: str) -> Reading:
        now_s = clock.now_s()
        try:
            handle = self._handle(gpu)
        except self._errors:
            return Reading(now_s, None, None, None)
        used_bytes = self._used_bytes(handle)
        busy, util = self._busy(handle), self._util(handle)
        return Reading(now_s, self._memory(handle), busy, util, used_bytes)

    def _handle(self, gpu: str) -> Any:
        if gpu.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(gpu))
        return self._nvml.nvmlDeviceGetHandleByUUID(gpu)

    def _used_bytes(self, handle: Any) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except self._errors:
            return None

    def _memory(self, handle: Any) -> dict[int, int] | None:
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._errors:
            return None
        return {each.pid: each.usedGpuMemory or 0 for each in processes}

    def _busy(self, handle: Any) -> dict[int, float] | None:
        """The driver keeps a sample for each process that was busy lately, and none for others."""
        try:
            since_us = int((time.time() - PERIOD_S) * 1e6)  # NVML counts by the wall clock
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except self._nvml.NVMLError as error:
            return {} if error.value == self._nvml.NVML_ERROR_NOT_FOUND else None
        # Buffers are larger than what is in them, and stale entries hold nonsense.
        sound = [s for s in samples if s.pid and s.timeStamp > since_us and s.smUtil <= 100]
        return {each.pid: each.smUtil / 100 for each in sound}

    def _util(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except self._errors:
            return None
