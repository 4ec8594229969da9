"""Jobs move between machines that have no folder of Rota's in common."""

import pytest
from tests.process.conftest import until

PROGRAM = """
import os, time, torch, rota.train
kept = os.environ["ROTA_CHECKPOINT_DIR"]
with rota.train.session() as s:
    net = torch.nn.Linear(2, 1)
    net, sgd = s.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in s.steps(8):
        os.makedirs(f"{kept}/step-{step}", exist_ok=True)
        torch.save(net.state_dict(), f"{kept}/step-{step}/weights.pt")
        if step:
            os.unlink(f"{kept}/latest")
        os.symlink(f"step-{step}", f"{kept}/latest")
        print(f"step {step} on", os.environ["ROTA_NODE"], len(os.listdir(kept)), flush=True)
        while step in (3, 5) and not os.path.exists(f"go{step}"):
            time.sleep(0.01)
        s.report()
"""


@pytest.fixture
def pair(lab):
    """Two machines that have joined, of one GPU each, while the controller's own takes no job."""
    machines = {name: lab.join(name, gpus=1) for name in ("left", "right")}
    (own,) = {node["name"] for node in lab.client.nodes()} - machines.keys()
    lab.client.cordon(own)
    return machines


def test_a_training_moves_with_its_checkpoints_and_back(lab, pair, base):
    (base / "keep.py").write_text(PROGRAM)
    job = lab.client.submit({"run": "python keep.py", "workdir": str(base)})["id"]

    def said():
        return [line for line in "".join(lab.client.logs(job)).splitlines() if "step" in line]

    def goes_on(step, to):
        until(lambda: len(said()) == step + 1, f"it waits at step {step}: {said()}")
        here = lab.client.job(job)["gpus"][0]["node"]
        lab.client.enable(to)
        lab.client.drain(here)
        (base / f"go{step}").touch()
        return here

    until(lambda: lab.client.job(job)["gpus"] != [], "it starts")
    first = lab.client.job(job)["gpus"][0]["node"]
    other = next(name for name in pair if name != first)
    assert goes_on(3, other) == first
    assert goes_on(5, first) == other
    until(lambda: lab.client.job(job)["state"] == "SUCCEEDED", "it ends")
    show = lab.client.job(job)
    assert (show["attempt"], show["migrations"]) == (1, 2)
    places = [first] * 4 + [other] * 2 + [first] * 2
    assert said() == [f"step {n} on {places[n]} {n + 2}" for n in range(8)]
    kept = pair[first].folder.checkpoints(job)
    assert (kept / "latest/weights.pt").read_bytes() == (kept / "step-7/weights.pt").read_bytes()
    lab.client.clean(job)
    for machine in pair.values():
        left = machine.folder.path / "checkpoints"
        until(lambda left=left: not list(left.glob(f"{job}*")), "nothing is left")
