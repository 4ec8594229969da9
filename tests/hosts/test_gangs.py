"""Gangs over several machines: launched, suspended, resized, and lost as on one."""

import pytest
from tests.process.conftest import until

DDP = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print("rank", rank, "of", world, "on", os.environ["ROTA_NODE"], flush=True)
total = torch.tensor([float(rank)])
while True:
    dist.all_reduce(total)
    over = torch.tensor([float(os.path.exists("gate"))])
    dist.all_reduce(over, dist.ReduceOp.MIN)
    if over.item():
        break
    time.sleep(0.01)
print("over", flush=True)
"""


@pytest.fixture
def trio(lab):
    """Three machines that have joined, of two GPUs each, while the controller's takes no job."""
    machines = {name: lab.join(name, gpus=2) for name in ("a", "b", "c")}
    (own,) = {node["name"] for node in lab.client.nodes()} - machines.keys()
    lab.client.cordon(own)
    yield machines


def test_a_plain_gang_trains_on_all(lab, trio, base):
    (base / "ddp.py").write_text(DDP)
    (base / "gate").unlink(missing_ok=True)
    fields = {"run": "python ddp.py", "workdir": str(base), "resources": {"gpus": 6}}
    job = lab.client.submit(fields)["id"]
    until(lambda: lab.client.job(job)["state"] == "RUNNING", f"it runs: {lab.client.job(job)}")
    (base / "gate").touch()
    until(lambda: lab.client.job(job)["state"] == "SUCCEEDED", "it ends")
    print("".join(lab.client.logs(job)))


def training(lab, base, gpus, *words, **fields):
    """A training whose state is known to the bit: its id, and where it writes."""
    out = base / f"out{len(list(base.glob('out*')))}"
    out.mkdir()
    run = " ".join(map(str, ["python", SCRIPTS / "elastic.py", out, *words]))
    resources = {"gpus": gpus} if isinstance(gpus, int) else {"min_gpus": gpus[0], "gpus": gpus[1]}
    return lab.client.submit({"run": run, "workdir": str(base), "resources": resources} | fields)["id"], out
