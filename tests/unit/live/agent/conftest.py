"""A stand-in for the library of NVIDIA's driver."""

import ctypes
import time

import pynvml
import pytest


class Driver:
    """The functions of libnvidia-ml, as their documentation says, over what a test puts in."""

    def __init__(self):
        self.opened = 0
        self.memory = {}  # handle -> {pid: bytes}, or an error's code
        self.samples = {}  # handle -> [(pid, seconds ago, per cent)], or an error's code
        self.total = {}  # handle -> bytes
        self.used = {}  # the same
        self.util = {}  # handle -> per cent, or an error's code

    def nvmlInitWithFlags(self, flags):
        self.opened += 1
        return 0

    def nvmlShutdown(self):
        self.opened -= 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        return self._handle(index.value + 1, handle)

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        return self._handle({b"GPU-aaaa": 2}.get(uuid.value, 0), handle)

    def _handle(self, number, handle):
        if number not in self.memory:
            return pynvml.NVML_ERROR_NOT_FOUND
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = number
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, array):
        found = self.memory[_number(handle)]
        if isinstance(found, int):
            return found
        if len(found) > count._obj.value or array is None:
            count._obj.value = len(found)
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if found else 0
        for place, (pid, size) in enumerate(found.items()):
            array[place].pid, array[place].usedGpuMemory = pid, size
        count._obj.value = len(found)
        return 0

    def nvmlDeviceGetProcessUtilization(self, handle, array, count, since):
        found = self.samples[_number(handle)]
        if isinstance(found, int):
            return found
        if array is None:
            count._obj.value = len(found)
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        now_us = int(time.time() * 1e6)
        for place, (pid, ago_s, util) in enumerate(found):
            array[place].pid, array[place].smUtil = pid, util
            array[place].timeStamp = now_us - int(ago_s * 1e6)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, info):
        number = _number(handle)
        if number not in self.total and number not in self.used:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        info._obj.total, info._obj.used = self.total.get(number, 0), self.used.get(number, 0)
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, rates):
        found = self.util[_number(handle)]
        if isinstance(found, tuple):
            return found[0]
        rates._obj.gpu = found
        return 0


def _number(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value


@pytest.fixture
def driver(monkeypatch):
    stand_in = Driver()
    monkeypatch.setattr(pynvml, "nvmlLib", stand_in)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    return stand_in
