"""Measures the attempts of a node: CPU time, and GPU use by NVML."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rota.live.agent.devices import Devices
from rota.live.agent.nvml import PERIOD_S, Nvml, Reading
from rota.live.agent.processes import cpu_seconds, descendants
from rota.live.agent.states import State
from rota.live.wire import clock
from rota.live.wire.places import here

if TYPE_CHECKING:
    from rota.live.agent.attempt import Attempt

UTIL_S = 5.0  # over which the use of a device is averaged
CPU_EVERY_S = 1.0  # reading it takes a look at every thread of every process of the attempt

log = logging.getLogger("rota.agent")


class Seen:
    """Measurements of one attempt on its GPUs."""

    def __init__(self) -> None:
        self.utils: deque[tuple[float, float]] = deque()  # (since, part of the time)
        self.holders: set[int] = set()  # processes with memory there, at the last sample
        self.most_bytes = 0  # the most memory it has had on a GPU
        self.sharers: set[Any] = set()  # attempts on the same GPUs at the last sample
        self.at_s: float | None = None  # time of the last sample


class Meter:
    """Reads what attempts use; ``attempts`` gives those that there are."""

    def __init__(self, devices: Devices, attempts: Callable[[], Iterable[Attempt]]) -> None:
        self._devices = devices
        self._attempts = attempts
        self.readings: dict[str, Reading] = {}  # the latest, by what CUDA calls the GPU
        self._seen: dict[Any, Seen] = {}
        self._cpu: WeakKeyDictionary[Attempt, tuple[float, float]] = WeakKeyDictionary()

    def usage(self, attempt: Attempt) -> dict[str, Any]:
        """Measurements of an attempt for the controller, without those that are unknown.

        ``cpu_s`` is the CPU time of all its processes up to ``cpu_at_s``, which may be a moment
        ago; ``device_util`` the part of the time since ``util_since_s`` that they kept their GPUs
        busy; ``memory_most_bytes`` the most memory that they have had on one of them; ``phase``
        what the session of its first rank is in: ``train`` or ``evaluate``.
        """
        told: dict[str, Any] = {}
        if (phase := attempt.phase) is not None:
            told["phase"] = phase
        if attempt.members and all(rank.alive for rank in attempt.members):
            told["cpu_s"], told["cpu_at_s"] = self._cpu_time(attempt)
        seen = self._seen.get((attempt.job_id, attempt.number))
        if seen is not None and seen.utils:
            utils = [util for _, util in seen.utils]
            told["device_util"] = sum(utils) / len(utils)
            told["util_since_s"] = seen.utils[0][0]
        if seen is not None and seen.most_bytes:
            told["memory_most_bytes"] = seen.most_bytes
        return told

    def holders(self, attempt: Attempt) -> set[int]:
        """The processes that had memory on the GPUs of an attempt when these were last read."""
        seen = self._seen.get((attempt.job_id, attempt.number))
        return seen.holders if seen is not None else set()

    def _cpu_time(self, attempt: Attempt) -> tuple[float, float]:
        """Its CPU time, and the time of that measurement."""
        now_s = clock.now_s()
        known = self._cpu.get(attempt)
        if known is None or not 0 <= now_s - known[1] < CPU_EVERY_S:
            known = (
                cpu_seconds([*(rank.shim for rank in attempt.members), *attempt.worker_pids]),
                now_s,
            )
            self._cpu[attempt] = known
        return known

    async def run(self) -> None:
        """Read the GPUs again and again; returns at once where there are none."""
        if self._devices.kind != "cuda":
            return
        import pynvml

        try:
            nvml = Nvml(pynvml)
        except pynvml.NVMLError as error:
            log.warning("what jobs use of their GPUs can't be told: %s", error)
            return
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                self.readings |= await asyncio.to_thread(nvml.read, list(self._devices.ids))
                self.sample(self.readings)
        finally:
            nvml.close()

    def _in_use(self) -> dict[int, list[Attempt]]:
        """The GPUs on which attempts run, each with its attempts."""
        found: dict[int, list[Attempt]] = {}
        for attempt in self._attempts():
            if attempt.state == State.RUNNING:
                for gpu in here(attempt.record.gpus):
                    found.setdefault(gpu, []).append(attempt)
        return found

    def sample(self, readings: dict[str, Reading]) -> None:
        """Add the latest readings."""
        in_use, seen = self._in_use(), {}
        for attempt in {id(a): a for attempts in in_use.values() for a in attempts}.values():
            key = (attempt.job_id, attempt.number)
            seen[key] = self._seen.get(key) or Seen()
            roots = [*(rank.shim for rank in attempt.members), *attempt.worker_pids]
            pids = {pid for root in roots for pid in descendants(root)}
            on = {gpu: readings.get(self._devices.ids[gpu]) for gpu in here(attempt.record.gpus)}
            sharers = {(a.job_id, a.number) for gpu in on for a in in_use[gpu]}
            _note(seen[key], pids, on, sharers, alone=len(sharers) == 1)
        for attempt in self._attempts():  # waiting attempts keep the memory they took
            key = (attempt.job_id, attempt.number)
            if key not in seen and key in self._seen:
                seen[key] = self._seen[key]
                seen[key].utils.clear()
                seen[key].at_s = None
        self._seen = seen


def _note(
    seen: Seen,
    pids: set[int],
    on: dict[int, Reading | None],
    sharers: set[Any],
    *,
    alone: bool,
) -> None:
    """Add a sample of each of an attempt's GPUs to its measurements."""
    found = [reading for reading in on.values() if reading is not None]
    utils = [_util(reading, pids, alone=alone) for reading in found]
    seen.holders = {pid for reading in found for pid in reading.memory or {}}
    for reading in found:
        mine = [size for pid, size in (reading.memory or {}).items() if pid in pids]
        seen.most_bytes = max([seen.most_bytes, sum(mine)])
    at_s = min((reading.at_s for reading in found), default=None)
    if sharers != seen.sharers:
        seen.utils.clear()
        seen.at_s, seen.sharers = None, sharers
    known = [util for util in utils if util is not None]
    if seen.at_s is not None and at_s is not None and known and len(known) == len(on):
        seen.utils.append((seen.at_s, sum(known) / len(known)))
        while at_s - seen.utils[0][0] > UTIL_S:
            seen.utils.popleft()
    seen.at_s = at_s


def _util(reading: Reading, pids: set[int], *, alone: bool) -> float | None:
    """The part of the time that these processes kept a GPU busy; None if it can't be told."""
    mine = pids & (reading.memory or {}).keys()
    if mine and reading.busy is not None:
        return min(1.0, sum(reading.busy.get(pid, 0.0) for pid in mine))
    return reading.util if alone else None
