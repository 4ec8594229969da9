"""Live jobs share a slot for as long as they do more work together than in turns."""

from typing import Any

import pytest

from .conftest import PROMPT, until

# A step computes a little and waits a lot, as one that waits for its data. Jobs that thrash slow
# each other down whenever they meet.
SCRIPT = """
import os, sys
import torch, rota.train
from steady import Company, Steady
path, steps = sys.argv[1], int(sys.argv[2])
thrashes, seconds = sys.argv[3] == "True", float(sys.argv[4])
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
            if met and thrashes:
                steady.end_late(seconds, 20)
            elif not os.path.exists(path + ".hurry"):
                steady.end(seconds)
print("weights", model.weight.double().sum().item().hex())
"""


def cluster_of(make_cluster: Any) -> Any:
    # A trial is long beside the second by which what a job has told may be older than it.
    settings = {"quantum_s": 0.5, "trial_s": 6.0, "least_gain": 0.1}
    return make_cluster("gandiva", 1, environment=PROMPT, **settings)


def start(cluster: Any, *, thrashes: bool = False, seconds: float = 0.05, steps: int = 600) -> str:
    script = cluster.base / "train.py"
    script.write_text(SCRIPT)
    words = ["python", script, cluster.base / "lock", steps, thrashes, seconds]
    return str(cluster.submit(" ".join(map(str, words))))


def trials(cluster: Any, job: str) -> list[Any]:
    """What was tried with a job."""
    return [(each["what"], each["kept"]) for each in cluster.client.explain(job)["trials"]]


def weights(cluster: Any, job: str) -> str:
    lines = "".join(cluster.client.logs(job)).splitlines()
    return str(next(line for line in lines if line.startswith("weights")))


@pytest.mark.live_path("pack")
def test_two_jobs_that_leave_their_slot_idle_are_packed_and_end_with_the_same_weights(make_cluster):
    cluster = cluster_of(make_cluster)
    alone = start(cluster, seconds=0.0)
    cluster.ends(alone)
    jobs = [start(cluster) for _ in range(2)]
    until(lambda: all(trials(cluster, job) for job in jobs), "both have been tried together")
    assert [trials(cluster, job)[0] for job in jobs] == [("pack", True)] * 2
    (node,) = cluster.client.nodes()
    assert (node["holders"], node["jobs"]) == ([jobs], jobs[:1])
    assert [cluster.show(job)["shared_with"] for job in jobs] == [jobs[1:], jobs[:1]]
    (cluster.base / "lock.hurry").touch()  # the trial is over
    for job, other in (jobs, jobs[::-1]):
        cluster.ends(job)
        show = cluster.show(job)
        trial = show["trials"][0]  # it is still told
        assert (trial["what"], trial["with"], trial["kept"]) == ("pack", [other], True)
        assert trial["on"] == f"{node['name']}:0"
        story = [entry["line"] for entry in show["story"]]
        assert f"shares {node['name']}:0 with job {other}" in story
    assert {weights(cluster, job) for job in jobs} == {weights(cluster, alone)}


def test_a_pair_that_keeps_each_other_waiting_is_undone_and_not_tried_again(make_cluster):
    cluster = cluster_of(make_cluster)
    jobs = [start(cluster, thrashes=True, steps=100_000) for _ in range(2)]
    until(lambda: all(trials(cluster, job) for job in jobs), "both have been tried together")
    assert [trials(cluster, job)[0] for job in jobs] == [("pack", False)] * 2
    steps = [cluster.show(job)["progress"]["step"] for job in jobs]
    until(
        lambda: all(
            cluster.show(job)["progress"]["step"] > step + 30
            for job, step in zip(jobs, steps, strict=True)
        ),
        "both go on in turns",
    )
    assert [len(trials(cluster, job)) for job in jobs] == [1, 1]
