"""Whatever is killed while jobs share a slot, on trial or for good, the others go on."""

from typing import Any

import psutil
import pytest

from .conftest import PROMPT, Cluster, Stops, until

# As in test_packing.py: a step computes a little and waits a lot; jobs that thrash slow each other
# down whenever they meet. With the file ``hurry`` a step takes no time.
SCRIPT = """
import os, sys
import torch, rota.train
from steady import Company, Steady
path, steps, thrashes = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    steady, company = Steady(), Company(path)
    for step in s.steps(steps):
        steady.begin()
        with company as met:
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            if os.path.exists(path + ".hurry"):
                continue
            if met and thrashes:
                steady.end_late(0.1, 10)
            else:
                steady.end(0.1)
print("weights", model.weight.double().sum().item().hex())
"""
STEPS = 600  # a minute at least, unless they hurry


class Pair:
    """Two jobs on one slot, with a policy that packs them."""

    def __init__(self, cluster: Cluster, stops: Stops, *, thrashes: bool = False) -> None:
        self.cluster, self.stops = cluster, stops
        (cluster.base / "train.py").write_text(SCRIPT)
        words = ["python", "train.py", cluster.base / "lock", STEPS, thrashes]
        self.jobs = [cluster.submit(" ".join(map(str, words))) for _ in range(2)]

    def marks(self, job: str) -> dict[str, Any]:
        """What the policy remembers of a job."""
        found: dict[str, Any] = {}
        for event in self.cluster.events():
            mark = getattr(event, "marks", {}).get(int(job) - 1)
            found = mark if mark is not None else found
        return found

    def on_trial(self) -> bool:
        """Whether both run on their slot together, and it is not known yet what that is worth."""
        packs = [self.marks(job).get("pack") for job in self.jobs]
        both = all(pack is not None and pack[1] is None for pack in packs)
        return both and self.run_together()

    def run_together(self) -> bool:
        """True if both run at one moment: between two calls a turn may end."""
        running = {each["id"] for each in self.cluster.client.jobs(states=["RUNNING"])}
        return running >= set(self.jobs)

    def trials(self, job: str) -> list[Any]:
        told = self.cluster.client.explain(job)["trials"]
        return [(each["what"], each["kept"]) for each in told]

    def step(self, job: str) -> int:
        return int((self.cluster.show(job)["progress"] or {}).get("step", 0))

    def until_go_on(self, *jobs: str, by: int = 4) -> None:
        """Wait until each has come further than it is now."""
        before = {job: self.step(job) for job in jobs}
        until(lambda: all(self.step(job) >= before[job] + by for job in jobs), "they go on")

    def kill(self, victim: str) -> None:
        """Kill the agent or the controller, and have it started again."""
        cluster = self.cluster
        if victim == "controller":
            cluster.kill_controller()
            cluster.up()
        else:
            agent = cluster.agent()
            cluster.kill(agent)
            until(lambda: cluster.agent().pid != agent.pid, "there is another agent")
            until(lambda: cluster._connected(), "it is connected")

    def end_well(self, *jobs: str) -> None:
        """Assert that they end in one attempt each, with the same weights, and leave nothing."""
        cluster = self.cluster
        (cluster.base / "lock.hurry").touch()
        for job in jobs:
            assert cluster.ends(job)["attempt"] == 1
        found = {line for job in jobs for line in cluster.client.logs(job) if "weights" in line}
        assert len(found) == 1
        until(lambda: not any(map(cluster.of_job, self.jobs)), "no process is left")
        (node,) = cluster.node_names()
        assert list(cluster.folder.arenas(node).iterdir()) == []


@pytest.fixture
def make_pair(make_cluster, tmp_path):
    stops = Stops(tmp_path / "stops")

    def make(trial_s: float, *, thrashes: bool = False) -> Pair:
        settings = {"quantum_s": 0.5, "trial_s": trial_s, "least_gain": 0.1}
        cluster = make_cluster("gandiva", 1, environment=stops.environment | PROMPT, **settings)
        return Pair(cluster, stops, thrashes=thrashes)

    return make


@pytest.mark.parametrize("victim", ["agent", "controller"])
def test_a_pack_on_trial_stays_on_trial_when_others_than_its_jobs_are_killed(make_pair, victim):
    pair = make_pair(trial_s=1e6)
    until(pair.on_trial, "both are tried together")
    pair.kill(victim)
    until(pair.run_together, "both run")
    pair.until_go_on(*pair.jobs)
    assert pair.on_trial()
    assert [pair.trials(job) for job in pair.jobs] == [[], []]
    pair.end_well(*pair.jobs)


def test_a_job_that_is_killed_while_it_is_tried_leaves_the_slot_to_the_other(make_pair):
    pair = make_pair(trial_s=1e6)
    until(pair.on_trial, "both are tried together")
    victim, other = pair.jobs
    pair.cluster.kill(pair.cluster.pids(victim)["worker"])
    assert pair.cluster.ends(victim, "FAILED")["message"] == "killed by SIGKILL"
    pair.until_go_on(other)
    until(lambda: pair.marks(other).get("pack") is None, "it is packed with nobody")
    pair.end_well(other)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("party", "point"),
    [
        ("controller", "dispatch-before"),
        ("agent", "suspend-before"),
        ("agent", "suspended-before"),
        ("controller", "answered-before"),
    ],
)
def test_a_pack_that_is_being_undone_is_undone_once_whoever_is_killed(make_pair, party, point):
    pair = make_pair(trial_s=6.0, thrashes=True)
    until(pair.on_trial, "both are tried together")
    (node,) = pair.cluster.node_names()
    pair.stops.arm(node if party == "agent" else party, point)
    process: psutil.Process = pair.stops.until_at(point)
    agent = pair.cluster.agent()
    pair.cluster.kill(process)
    if party == "controller":
        pair.cluster.up()
    else:
        until(lambda: pair.cluster.agent().pid != agent.pid, "there is another agent")
    until(lambda: pair.trials(pair.jobs[0]), "it is known that they are worth less together")
    pair.until_go_on(*pair.jobs, by=12)
    assert [pair.trials(job) for job in pair.jobs] == [[("pack", False)]] * 2
    assert not pair.run_together()
    pair.end_well(*pair.jobs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["suspend-before", "suspended-before", "suspended-after"])
def test_a_packed_job_is_suspended_once_when_the_agent_dies_and_the_other_does_not_notice(
    make_pair, point
):
    pair = make_pair(trial_s=1.0)
    until(lambda: all(map(pair.trials, pair.jobs)), "both have been tried together")
    assert [pair.trials(job)[0] for job in pair.jobs] == [("pack", True)] * 2
    until(pair.run_together, "both run")
    one, other = pair.jobs
    (node,) = pair.cluster.node_names()
    pair.stops.arm(node, point)
    pair.cluster.client.suspend(one)
    agent = pair.stops.until_at(point)
    pair.cluster.kill(agent)
    until(lambda: pair.cluster.agent().pid != agent.pid, "there is another agent")
    pair.cluster.until_state(one, "SUSPENDED")
    pair.until_go_on(other)
    stopped = pair.step(one)
    pair.until_go_on(other)
    assert pair.step(one) == stopped
    pair.cluster.client.resume(one)
    until(pair.run_together, "both run")
    pair.end_well(*pair.jobs)
