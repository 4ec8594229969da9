"""Time-slicing on a real NVIDIA GPU: devices are found, memory is freed, results are unchanged."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rota.demo.cluster import private_cluster
from rota.live.agent.devices import count_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_gpus() == 0, reason="there is no NVIDIA GPU on this machine"),
]

SCRIPT = Path(__file__).with_name("train_on_gpu.py")
WIDTH = 4096  # four layers of 16.8 million parameters; with AdamW's moments 0.8 GB of state
STATE_BYTES = 4 * WIDTH * (WIDTH + 1) * 4 * 3


@pytest.fixture
def scripts(tmp_path):
    shutil.copy(SCRIPT, tmp_path)
    return tmp_path


def submit(client, folder, name, width, steps):
    run = f"python {SCRIPT.name} {width} {steps} {name}.pt"
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return client.submit({"name": name, "run": run, "workdir": str(folder), "env": env})["id"]


def memory(folder, name):
    lines = (folder / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_node_offers_the_gpus_that_nvml_finds(tmp_path):
    with private_cluster(tmp_path / "home", "gandiva", {}, count_gpus()) as client:
        (node,) = client.nodes()
        assert node["kind"] == "cuda"
        assert node["num_gpus"] == count_gpus()


def test_jobs_share_one_gpu_in_turns_and_end_with_the_weights_of_an_undisturbed_run(scripts):
    import torch

    reference = [sys.executable, SCRIPT.name, str(WIDTH), "400", "alone.pt"]
    environment = _environment() | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    subprocess.run(reference, cwd=scripts, check=True, env=environment)
    with private_cluster(scripts / "home", "gandiva", {"quantum_s": "1"}, 1) as client:
        ids = [submit(client, scripts, name, WIDTH, 400) for name in ("a", "b", "c")]
        jobs = [client.wait(job_id, timeout_s=300) for job_id in ids]
    assert [job["state"] for job in jobs] == ["SUCCEEDED"] * 3
    assert all(job["suspension"] == "BOUNDARY" for job in jobs)
    alone = torch.load(scripts / "alone.pt", weights_only=True)
    for name in ("a", "b", "c"):
        weights = torch.load(scripts / f"{name}.pt", weights_only=True)
        assert all(torch.equal(weights[key], alone[key]) for key in alone)


def test_a_suspended_job_leaves_its_device_memory_to_others(scripts):
    with private_cluster(scripts / "home", "fifo", {}, 1) as client:
        small_alone = memory_of_small_job(client, scripts, "before")
        first = submit(client, scripts, "first", WIDTH, 100_000)
        wait_for_lines(scripts, "first", 5)
        large_alone = memory(scripts, "first")[-1]
        client.suspend(first)
        with_suspended = memory_of_small_job(client, scripts, "beside")
        client.cancel(first)
        client.wait(first, timeout_s=60)
    assert large_alone["own"] > STATE_BYTES
    kept = with_suspended["all"] - small_alone["all"]  # its CUDA context
    context = large_alone["all"] - large_alone["own"]
    assert kept < context + 0.2 * STATE_BYTES


def memory_of_small_job(client, folder, name):
    client.wait(submit(client, folder, name, 64, 50), timeout_s=120)
    return memory(folder, name)[-1]


def test_a_command_without_the_library_is_stopped_and_stays_on_its_gpu(scripts):
    script = scripts / "plain.py"
    script.write_text(
        "import torch, time\n"
        "x = torch.ones(1000, device='cuda')\n"
        "open('ready', 'w').close()\n"
        "while True: x = x * 1.0; torch.cuda.synchronize(); time.sleep(0.01)\n"
    )
    with private_cluster(scripts / "home", "fifo", {}, 1) as client:
        wish = {"run": "python plain.py", "workdir": str(scripts), "suspend": "stop"}
        job = client.submit(wish)["id"]
        wait_until(lambda: (scripts / "ready").exists())
        client.suspend(job)
        wait_until(lambda: client.job(job)["state"] == "SUSPENDED")
        assert client.job(job)["suspension"] == "PROCESS"
        client.resume(job)
        wait_until(lambda: client.job(job)["state"] == "RUNNING")
        client.cancel(job)
        assert client.wait(job, timeout_s=60)["state"] == "CANCELLED"


def test_two_commands_that_do_not_fit_one_gpu_together_end_well(scripts):
    (scripts / "large.py").write_text(
        "import torch, time\n"
        "_, total = torch.cuda.mem_get_info()\n"
        "x = torch.zeros(int(0.6 * total), dtype=torch.uint8, device='cuda')\n"
        "for _ in range(50):\n"
        "    x += 1\n"
        "    torch.cuda.synchronize()\n"
        "    time.sleep(0.1)\n"
    )
    with private_cluster(scripts / "home", "gandiva", {"quantum_s": "1"}, 1) as client:
        wish = {"run": "python large.py", "workdir": str(scripts), "suspend": "stop"}
        ids = [client.submit(wish)["id"] for _ in range(2)]
        wait_until(lambda: client.explain(ids[1])["reason"] == "WAIT_DEVICE_MEMORY")
        assert [client.wait(job, timeout_s=120)["state"] for job in ids] == ["SUCCEEDED"] * 2


def test_what_a_job_uses_of_its_gpu_is_known_of_the_next_one_of_its_kind(scripts):
    with private_cluster(scripts / "home", "fifo", {}, 1) as client:
        first = submit(client, scripts, "first", WIDTH, 100_000)

        def known():
            profile = client.job(first)["profile"]["of_kind"]
            return profile and profile["device_util"] and profile["most_bytes"] and profile

        wait_until(known)
        client.cancel(first)
        client.wait(first, timeout_s=60)
        own = max(line["own"] for line in memory(scripts, "first"))
        second = submit(client, scripts, "first", WIDTH, 100_001)
        profile = client.job(second)["profile"]
        client.cancel(second)
        client.wait(second, timeout_s=60)
    assert not profile["certain"]
    assert 0.05 < profile["of_kind"]["device_util"] <= 1.0
    # NVML counts the context and the cache, the session what is allocated.
    assert STATE_BYTES < profile["of_kind"]["most_bytes"] < own + (2 << 30)
    assert profile["of_kind"]["least_bytes"] <= profile["of_kind"]["most_bytes"]
    assert profile["of_kind"]["cpu_cores"] > 0.0


def wait_for_lines(folder, name, count):
    file = folder / f"{name}.jsonl"
    wait_until(lambda: file.exists() and len(file.read_text().splitlines()) >= count)


def wait_until(condition, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


def _environment():
    return {key: value for key, value in os.environ.items() if not key.startswith("ROTA_")}
