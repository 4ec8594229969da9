"""What is read of NVML, through the real pynvml, from a stand-in for the driver's library."""

import time

import pynvml
import pytest

from rota.live.agent.nvml import Nvml

GPU_0, GPU_1 = "0", "GPU-aaaa"


def test_memory_and_use_are_told_by_process(driver):
    driver.memory = {1: {10: 5 << 30, 11: 1 << 30}, 2: {}}
    driver.samples = {1: [(10, 0.2, 40), (11, 0.2, 25)], 2: pynvml.NVML_ERROR_NOT_FOUND}
    driver.util, driver.used = {1: 65, 2: 0}, {1: 7 << 30}
    nvml = Nvml(pynvml)
    readings = nvml.read([GPU_0, GPU_1])
    nvml.close()
    assert driver.opened == 0
    assert readings[GPU_0][1:] == ({10: 5 << 30, 11: 1 << 30}, {10: 0.4, 11: 0.25}, 0.65, 7 << 30)
    assert readings[GPU_1][1:] == ({}, {}, 0.0, None), "nobody was busy, which is no error"
    assert abs(readings[GPU_0].at_s - time.time()) < 60


def test_stale_and_senseless_samples_are_passed_over(driver):
    driver.memory, driver.util = {1: {10: 1}}, {1: 50}
    driver.samples = {1: [(10, 0.1, 30), (11, 30.0, 90), (0, 0.1, 50), (12, 0.1, 4_000_000)]}
    assert Nvml(pynvml).read([GPU_0])[GPU_0].busy == {10: 0.3}


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN],
)
def test_what_the_driver_does_not_tell_is_none_and_not_nothing(driver, code):
    driver.memory, driver.samples, driver.util = {1: code}, {1: code}, {1: (code,)}
    assert Nvml(pynvml).read([GPU_0])[GPU_0][1:] == (None, None, None, None)


def test_a_gpu_that_can_not_be_found_is_one_of_which_nothing_is_known(driver):
    driver.memory = {1: {}}
    assert Nvml(pynvml).read(["MIG-bbbb"])["MIG-bbbb"][1:] == (None, None, None, None)


def test_a_driver_without_the_newest_functions_tells_less(driver, monkeypatch):
    driver.memory, driver.samples, driver.util = {1: {10: 1}}, {1: [(10, 0.1, 30)]}, {1: 50}
    monkeypatch.delattr(type(driver), "nvmlDeviceGetComputeRunningProcesses_v3")
    assert Nvml(pynvml).read([GPU_0])[GPU_0][1:] == (None, {10: 0.3}, 0.5, None)
