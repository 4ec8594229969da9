"""A training with layers on ranks of their own tells its plan, which the controller keeps."""

import json
import os
import subprocess
import sys

import pytest

from rota.model.events import BurstPlanned, JobResized
from support.layers import write_profile

from .conftest import until

SCRIPT = """
import sys, time
import torch, rota.train
from torch import nn
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, optimizer, reduction="burst", plan=sys.argv[1])
    loader = s.loader(TensorDataset(torch.randn(64, 8), torch.randint(2, (64,))), batch_size=8)
    for epoch in s.epochs(100_000):
        for batch in loader:
            for x, y in batch:
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
"""
# Seconds with one sample and with 8: long beside the exchange of a busy machine.
CHAIN = {"0": (0.1, 0.8), "2": (0.398, 0.4)}
LINKS = {"bandwidth_bytes_s": 1e9, "latency_s": 1e-4}


def submitted(cluster, gpus, **more):
    """A job that trains by such a profile."""
    script = cluster.base / "train.py"
    script.write_text(SCRIPT)
    profile = write_profile(cluster.base / "profile.json", CHAIN, 8, **more)
    run = f"python {script} {profile}"
    job = {"run": run, "workdir": str(cluster.base), "resources": {"gpus": gpus}}
    return cluster.client.submit(job)["id"]


def plans(cluster):
    return [event for event in cluster.events() if isinstance(event, BurstPlanned)]


def show_json(cluster, job):
    """What ``rota show --json`` prints."""
    command = [sys.executable, "-m", "rota.cli.main", "show", job, "--json"]
    home = os.environ | {"ROTA_HOME": str(cluster.folder.path)}
    return json.loads(subprocess.run(command, env=home, stdout=subprocess.PIPE, check=True).stdout)


def test_a_plan_of_two_ranks_is_kept_and_shown_also_by_the_next_controller(make_cluster):
    cluster = make_cluster("fifo", 2)
    job = submitted(cluster, 2)
    (event,) = until(lambda: plans(cluster), "the plan is told")
    assert event.batch == 8
    assert event.idle[0] < 0.1 < event.idle[1], "the second layer is on rank 0 alone"
    assert event.step_s[0] == pytest.approx(1.2, rel=1e-3)
    assert event.step_s[1] < 1.2
    for _ in range(2):
        shown = show_json(cluster, job)["burst"]
        assert (shown["gpus"], shown["idle"]) == (2, list(event.idle))
        assert shown["by_gpus"] == list(event.step_s)
        assert "is predicted to take" in shown["sentence"]
        cluster.kill_controller()
        cluster.up()
    assert len(plans(cluster)) == 1, "what is known is not written down again"
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def test_a_job_on_one_rank_tells_what_more_would_do_and_is_given_them(make_cluster):
    cluster = make_cluster("elastic", 2, look_s=0.5)
    job = submitted(cluster, "1..2", network=LINKS)
    until(lambda: any(isinstance(e, JobResized) for e in cluster.events()), "it has grown")
    until(lambda: len(plans(cluster)) >= 2, "it has planned anew")
    alone, two = plans(cluster)[:2]
    assert (alone.idle, len(two.idle)) == ((0.0,), 2)
    assert alone.step_s == two.step_s
    sentence = cluster.client.explain(job)["burst"]["sentence"]
    assert sentence.startswith("a step of 8 samples is predicted to take")
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
