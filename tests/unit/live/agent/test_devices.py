"""What a node says of the memory of its GPUs, as NVML tells it."""

from rota.live.agent.devices import least_memory_gb


def test_the_memory_is_that_of_the_gpu_with_the_least(driver):
    driver.memory = {1: {}, 2: {}}
    driver.total = {1: 80_000_000_000, 2: 24_000_000_000}
    assert least_memory_gb(("0", "GPU-aaaa")) == 24.0
    assert least_memory_gb(("0",)) == 80.0
    assert driver.opened == 0


def test_memory_of_a_gpu_that_nvml_does_not_find_is_not_known(driver):
    driver.memory, driver.total = {1: {}}, {1: 80_000_000_000}
    assert least_memory_gb(("0", "7")) == 0.0
    assert driver.opened == 0
