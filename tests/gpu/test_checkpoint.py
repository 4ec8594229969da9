"""CUDA checkpoints on a real NVIDIA GPU: the contract, and jobs that know nothing of them."""

import subprocess
import sys
import time

import pytest

from rota.demo.cluster import private_cluster
from rota.live.agent.cuda_checkpoint import NvidiaDriver
from rota.live.agent.devices import count_gpus
from support.checkpoint_contract import CheckpointContract

REFUSAL = NvidiaDriver().refusal() if count_gpus() else "there is no NVIDIA GPU on this machine"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))]

HELD_BYTES = 1 << 30
COUNTS = f"""
import os, sys, time, torch
held = torch.zeros({HELD_BYTES} // 4, device="cuda")
total = torch.zeros((), device="cuda", dtype=torch.float64)
for step in range(int(sys.argv[1])):
    total += step
    torch.cuda.synchronize()
    open("at", "w").write(str(step))
    time.sleep(0.01)
open("result", "w").write(str(int(total.item())))
"""


@pytest.fixture
def counts(tmp_path):
    (tmp_path / "counts.py").write_text(COUNTS)
    return tmp_path


class TestNvidiaDriver(CheckpointContract):
    @pytest.fixture
    def driver(self):
        driver = NvidiaDriver()
        assert driver.refusal() is None
        return driver

    @pytest.fixture
    def pids(self, counts):
        running = []
        for name in ("one", "two"):
            (counts / name).mkdir()
            command = [sys.executable, str(counts / "counts.py"), "1000000"]
            running.append(subprocess.Popen(command, cwd=counts / name))
        for name in ("one", "two"):
            until((counts / name / "at").exists)
        yield [process.pid for process in running]
        for process in running:
            process.kill()
            process.wait()


def test_a_job_leaves_its_device_memory_and_ends_with_the_right_result(counts):
    with private_cluster(counts / "home", "fifo", {}, 1) as client:
        job = {"run": "python counts.py 500", "workdir": str(counts)}
        job_id = client.submit(job)["id"]
        until((counts / "at").exists)
        before = free_bytes()
        client.suspend(job_id)
        until(lambda: client.job(job_id)["state"] == "SUSPENDED")
        show = client.job(job_id)
        assert show["suspension"] == "CHECKPOINT", show["suspension_why"]
        assert free_bytes() - before > 0.9 * HELD_BYTES
        at = (counts / "at").read_text()
        client.resume(job_id)
        until(lambda: (counts / "at").read_text() != at)
        ended = client.wait(job_id, timeout_s=120)
    assert ended["state"] == "SUCCEEDED"
    assert (counts / "result").read_text() == str(500 * 499 // 2)


@pytest.mark.skipif(count_gpus() < 2, reason="there are not two GPUs")
def test_a_job_goes_on_on_another_gpu(counts):
    with private_cluster(counts / "home", "fifo", {}, 2) as client:
        job_id = client.submit({"run": "python counts.py 500", "workdir": str(counts)})["id"]
        until((counts / "at").exists)
        first = client.job(job_id)["gpus"]
        client.suspend(job_id)
        until(lambda: client.job(job_id)["state"] == "SUSPENDED")
        blocker = client.submit({"run": "sleep 1000", "workdir": str(counts)})["id"]
        until(lambda: client.job(blocker)["gpus"] == first)
        client.resume(job_id)
        until(lambda: client.job(job_id)["state"] == "RUNNING")
        assert client.job(job_id)["gpus"] != first
        ended = client.wait(job_id, timeout_s=120)
        client.cancel(blocker)
    assert ended["state"] == "SUCCEEDED"
    assert (counts / "result").read_text() == str(500 * 499 // 2)


def free_bytes():
    import pynvml

    pynvml.nvmlInit()
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free
    finally:
        pynvml.nvmlShutdown()


def until(condition, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
