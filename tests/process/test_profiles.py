"""What live jobs were measured to do is known of the next ones of their kind, come what may."""

from typing import Any

import pytest

from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.server import profiles

from .conftest import PROMPT, until

SCRIPT = """
import sys, time
from pathlib import Path
import torch, rota.train
from steady import Steady
here, name, gate = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    steady = Steady()
    for step in s.steps():
        while (here / f"stay-{gate}").exists():
            time.sleep(0.01)
        steady.begin()
        optimizer.zero_grad()
        model(torch.randn(32, 16)).square().mean().backward()
        optimizer.step()
        s.report(samples=32)
        steady.end(0.1)
        if (here / f"end-{gate}").exists():
            break
"""
MODEL_BYTES = (16 * 4 + 4) * 4


def start(cluster: Any, gate: int, name: str = "a") -> str:
    """A job of the kind ``name`` that trains until ``end-GATE`` is there."""
    script = cluster.base / "train.py"
    script.write_text(SCRIPT)
    return str(cluster.submit(f"python {script} {cluster.base} {name} {gate}"))


def measured(cluster: Any, job: str, beside: str = "") -> Any:
    """The speed that was measured of a job's kind on one slot, alone or beside a kind."""
    known = cluster.show(job)["profile"]["of_kind"] or {"speeds": []}
    where = {"gpu_type": "", "num_gpus": 1, "num_nodes": 1, "beside": beside}
    return next((each for each in known["speeds"] if each | where == each), None)


def replayed(cluster: Any) -> ClusterState:
    """The state that the event log makes."""
    state = ClusterState()
    for event in cluster.events():
        state.apply(event)
    return state


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", ["rota down", "kill -9"])
def test_a_job_is_known_before_its_first_report_by_what_its_kind_did(make_cluster, end):
    cluster = make_cluster(environment=PROMPT)
    first = start(cluster, 1)
    until(lambda: measured(cluster, first), "its speed has been measured")
    (cluster.base / "end-1").touch()
    cluster.ends(first)
    before = cluster.show(first)["profile"]
    assert before["certain"]
    assert before["of_kind"]["model_bytes"] == MODEL_BYTES
    if end == "rota down":
        cluster.down()
    else:
        cluster.kill_controller()
    cluster.up()
    (cluster.base / "stay-2").touch()
    second = start(cluster, 2)
    cluster.until_state(second, "RUNNING")
    profile = cluster.show(second)["profile"]
    assert (profile["kind"], profile["certain"]) == (before["kind"], False)
    assert profile["of_kind"] == before["of_kind"]
    assert profile["of_kind"]["batch"] == 32
    assert 0.05 <= measured(cluster, second)["step_s"] < 1.0
    assert 0.0 < profile["of_kind"]["device_util"] < 1.0
    (cluster.base / "stay-2").unlink()
    until(lambda: cluster.show(second)["profile"]["certain"], "it has told its first step")
    assert cluster.show(second)["profile"]["kind"] == before["kind"]
    assert cluster.show(second)["profile"]["of_kind"]["jobs"] == 2
    (cluster.base / "end-2").touch()
    cluster.ends(second)


def test_two_packed_jobs_tell_what_their_kinds_lose_beside_each_other(make_cluster):
    settings = {"quantum_s": 0.5, "trial_s": 1.5, "least_gain": 0.1}
    cluster = make_cluster("gandiva", 1, environment=PROMPT, **settings)
    one, other = start(cluster, 1, "a"), start(cluster, 2, "b")
    kinds = [until(lambda j=j: certain_kind(cluster, j), "its kind is known") for j in (one, other)]
    assert len(set(kinds)) == 2
    for job, beside in ((one, kinds[1]), (other, kinds[0])):
        found = until(lambda j=job, b=beside: measured(cluster, j, b), "the pair has been measured")
        alone = until(lambda j=job: measured(cluster, j), "so has the job alone")
        assert found["step_s"] >= 0.05
        assert alone["step_s"] >= 0.05
    for job in (one, other):
        cluster.client.cancel(job)
        cluster.ends(job, "CANCELLED")
    state = replayed(cluster)
    assert profiles.kinds(state) == cluster.client.profiles(), "the log makes them anew"
    view = View(state, 0.0, None)
    assert view.pair(0, 1) is not None
    assert all(0.1 < speed < 10.0 for speed in view.pair(0, 1)), "of what each does alone"


def certain_kind(cluster: Any, job: str) -> str | None:
    profile = cluster.show(job)["profile"]
    return profile["kind"] if profile["certain"] else None
