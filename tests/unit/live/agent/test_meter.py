"""What attempts use, by their processes' CPU time and by readings of their GPUs."""

import asyncio
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pynvml
import pytest

from rota.live.agent import meter as meter_module
from rota.live.agent.devices import Devices
from rota.live.agent.meter import Meter
from rota.live.agent.nvml import Reading
from rota.live.agent.processes import cpu_seconds

A, B = 101, 201  # processes of two jobs
DEVICES = Devices("cuda", 2, ids=("0", "GPU-a"))


class Rank:
    def __init__(self, shim):
        self.shim, self.alive = shim, True


class Attempt:
    phase = None
    worker_pids: tuple[int, ...] = ()

    def __init__(self, job_id, shim, *gpus, state="running"):
        self.job_id, self.number, self.state = job_id, 1, state
        self.members, self.record = [Rank(shim)], SimpleNamespace(gpus=list(gpus))


class Node:
    """Attempts on two GPUs, of which a test makes up readings."""

    def __init__(self, monkeypatch, *attempts):
        self.attempts, self.at_s = list(attempts), 1000.0
        self.meter = Meter(DEVICES, lambda: self.attempts)
        monkeypatch.setattr(meter_module, "descendants", lambda pid: [pid])
        monkeypatch.setattr(meter_module, "cpu_seconds", lambda pids: 7.0)

    def reads(self, *readings):
        self.at_s += 1.0
        self.meter.sample(
            {g: Reading(self.at_s, *r) for g, r in zip(DEVICES.ids, readings, strict=False)}
        )

    def util(self, attempt):
        told = self.meter.usage(attempt)
        return told.get("device_util"), told.get("util_since_s")


def test_each_of_two_jobs_on_a_gpu_is_told_its_own_part(monkeypatch):
    a, b = Attempt("1", A, 0), Attempt("2", B, 0)
    node = Node(monkeypatch, a, b)
    for busy in ({A: 0.9}, {A: 0.5, B: 0.1}, {A: 0.3}):
        node.reads(({A: 4 << 30, B: 1 << 30, 999: 9 << 30}, busy, 0.9))
    assert node.util(a) == (pytest.approx(0.4), 1001.0), "the first reading is of before"
    assert node.util(b) == (pytest.approx(0.05), 1001.0)
    assert node.meter.usage(a)["memory_most_bytes"] == 4 << 30
    assert node.meter.usage(b)["memory_most_bytes"] == 1 << 30


def test_processes_that_the_driver_calls_otherwise_are_told_the_device_if_they_are_alone(
    monkeypatch,
):
    a, b = Attempt("1", A, 0), Attempt("2", B, 1)
    node = Node(monkeypatch, a, b)
    strange = ({55: 1 << 30}, {55: 0.6}, 0.6)
    for _ in range(2):
        node.reads(strange, strange)
    assert node.util(a)[0] == pytest.approx(0.6)
    assert "memory_most_bytes" not in node.meter.usage(a)
    b.record.gpus = [0]
    for _ in range(3):
        node.reads(strange, strange)
    assert node.util(a) == node.util(b) == (None, None)


def test_what_was_seen_beside_others_is_not_mixed_with_what_was_seen_alone(monkeypatch):
    a, b = Attempt("1", A, 0), Attempt("2", B, 0, state="suspended")
    node = Node(monkeypatch, a, b)
    for _ in range(3):
        node.reads(({A: 1}, {A: 0.8}, 0.8))
    assert node.util(a) == (pytest.approx(0.8), 1001.0)
    b.state = "running"
    node.reads(({A: 1, B: 1}, {A: 0.2, B: 0.2}, 0.4))
    assert node.util(a) == (None, None)
    node.reads(({A: 1, B: 1}, {A: 0.2, B: 0.2}, 0.4))
    assert node.util(a) == (pytest.approx(0.2), 1004.0)


def test_a_gang_is_told_the_mean_of_its_gpus_and_the_largest_memory(monkeypatch):
    a = Attempt("1", A, 0, 1)
    node = Node(monkeypatch, a)
    for _ in range(2):
        node.reads(({A: 5}, {A: 0.8}, 0.8), ({A: 9}, {A: 0.4}, 0.4))
    assert node.util(a)[0] == pytest.approx(0.6)
    assert node.meter.usage(a)["memory_most_bytes"] == 9
    node.reads(({A: 5}, {A: 0.8}, 0.8), (None, None, None))
    assert node.util(a)[0] == pytest.approx(0.6), "of half a gang nothing is concluded"


def test_only_the_last_seconds_count_and_a_pause_begins_anew(monkeypatch):
    a = Attempt("1", A, 0)
    node = Node(monkeypatch, a)
    for util in (1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5):
        node.reads(({A: 3}, {A: util}, util))
    assert node.util(a) == (pytest.approx(0.5), 1004.0)
    a.state = "suspended"
    node.reads((None, None, None))
    assert node.util(a) == (None, None)
    assert node.meter.usage(a)["memory_most_bytes"] == 3
    node.attempts.clear()
    node.reads((None, None, None))
    assert node.meter.usage(a) == {"cpu_s": 7.0, "cpu_at_s": pytest.approx(time.time(), abs=60)}


def test_an_attempt_with_a_rank_that_is_gone_tells_no_cpu_time(monkeypatch):
    a = Attempt("1", A, 0)
    node = Node(monkeypatch, a)
    a.members[0].alive = False
    assert node.meter.usage(a) == {}


def test_cpu_time_is_not_read_anew_for_each_of_many_reports(monkeypatch):
    a, now_s, reads = Attempt("1", A, 0), [100.0], []
    node = Node(monkeypatch, a)
    monkeypatch.setattr(meter_module.clock, "now_s", lambda: now_s[0])
    monkeypatch.setattr(meter_module, "cpu_seconds", lambda pids: reads.append(pids) or len(reads))
    for _ in range(9):
        told = node.meter.usage(a)
        now_s[0] += 0.25
    assert reads == [[A]] * 3
    assert told == {"cpu_s": 3, "cpu_at_s": 102.0}


def test_cpu_time_is_that_of_a_process_and_of_all_that_came_of_it():
    spin = "import time\nwhile time.process_time() < 0.3: pass\n"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    words = f"{child}\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"done\n"
        assert 0.25 < cpu_seconds([process.pid]) < 30
        process.communicate(b"\n")
    assert cpu_seconds([process.pid]) == 0.0
    before, began = cpu_seconds([os.getpid()]), time.process_time()
    while time.process_time() < began + 0.05:
        pass
    assert cpu_seconds([os.getpid()]) > before - 0.02


def test_gpus_are_looked_at_again_and_again_until_the_agent_ends(monkeypatch, driver):
    monkeypatch.setattr(meter_module, "PERIOD_S", 0.001)
    node = Node(monkeypatch, Attempt("1", A, 0))
    driver.memory, driver.samples, driver.util = {1: {A: 9}}, {1: [(A, 0.0, 50)]}, {1: 50}

    async def scenario():
        task = asyncio.create_task(node.meter.run())
        while "device_util" not in node.meter.usage(node.attempts[0]):
            await asyncio.sleep(0.001)
        assert driver.opened == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert driver.opened == 0
    assert node.meter.usage(node.attempts[0])["device_util"] == 0.5


def test_without_a_driver_jobs_are_not_looked_at_and_run_all_the_same(monkeypatch, caplog):
    monkeypatch.setattr(pynvml, "nvmlInit", _no_driver)
    asyncio.run(asyncio.wait_for(Node(monkeypatch).meter.run(), 30))
    assert "can't be told" in caplog.text
    asyncio.run(asyncio.wait_for(Meter(Devices("cpu", 1, (0,)), list).run(), 30))


def _no_driver():
    raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
