"""Jobs move between machines that have no folder of Rota's in common."""

import contextlib
import re

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


BULKY = """
import time, torch, rota.train
with rota.train.session() as s:
    net = torch.nn.Linear(2000, 4000)
    net, sgd = s.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in s.steps(100_000):
        time.sleep(0.02)
        s.report()
"""
STATE_BYTES = 4 * 2000 * 4000  # at least
MOVED = re.compile(r"job (\S+): (\d+) bytes from \S+ in \S+ s, (\d+) of them directly")


@pytest.fixture(scope="module")
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
        until(lambda: lab.client.job(job)["state"] == "SUSPENDING", "it is asked to hold")
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


class Move:
    """A job with a bulky state, which is to move to the other machine of a pair."""

    def __init__(self, lab, pair, base):
        (base / "bulky.py").write_text(BULKY)
        for name in pair:
            lab.client.enable(name)
        self._lab = lab
        self.id = lab.client.submit({"run": "python bulky.py", "workdir": str(base)})["id"]
        until(lambda: self._step() > 2, "it trains")
        self.source = pair[self.place]
        (self.destination,) = (each for each in pair.values() if each is not self.source)
        self._relayed = lab.head.host.received_bytes

    @property
    def place(self):
        return self._lab.client.job(self.id)["gpus"][0]["node"]

    def _step(self):
        return (self._lab.client.job(self.id)["progress"] or {}).get("step", 0)

    def begin(self):
        self._lab.client.drain(self.source.host.name)

    def ends(self):
        """(bytes that were fetched, bytes of these directly, all that the controller received)"""
        until(lambda: self._lab.client.job(self.id)["migrations"] == 1, self.destination.log)
        relayed, before = self._lab.head.host.received_bytes - self._relayed, self._step()
        until(lambda: self._step() > before, "it goes on")
        assert self._lab.client.job(self.id)["attempt"] == 1
        (told,) = (m for m in MOVED.findall(self.destination.log) if m[0] == f"{self.id}.1")
        return int(told[1]), int(told[2]), relayed


@pytest.fixture
def move(lab, pair, base):
    made = Move(lab, pair, base)
    yield made
    lab.client.cancel(made.id)
    until(lambda: lab.client.job(made.id)["state"] == "CANCELLED", "it is cancelled")


def test_the_state_goes_directly_from_machine_to_machine(move):
    move.begin()
    fetched, directly, relayed = move.ends()
    assert fetched > STATE_BYTES
    assert directly > 0.8 * fetched  # all but what was asked before the connection stood
    assert relayed < 0.3 * fetched


def test_the_state_goes_through_the_controller_where_machines_do_not_reach_each_other(move):
    with move.source.host.apart_from(move.destination.host):
        move.begin()
        fetched, directly, relayed = move.ends()
    assert directly == 0
    assert relayed > fetched > STATE_BYTES


def test_what_is_left_when_the_direct_way_is_cut_goes_through_the_controller(move):
    source, destination = move.source.host, move.destination.host
    with contextlib.ExitStack() as stack:
        stack.enter_context(destination.slow(100))
        before = destination.received_bytes
        move.begin()
        until(lambda: destination.received_bytes > before + STATE_BYTES // 4, "a part has come")
        stack.enter_context(source.apart_from(destination))
        fetched, directly, relayed = move.ends()
    assert STATE_BYTES // 8 < directly < STATE_BYTES < fetched
    assert fetched - directly < relayed < fetched
    assert "the rest comes through the controller" in move.destination.log
