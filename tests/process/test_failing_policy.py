"""A user's policy that raises, or wants what can't be: the cluster goes on, and tells so."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from rota.model.events import DecisionTaken

from .conftest import Cluster, until

MOODY = """
import os, pathlib
from rota.model.allocation import on_node
from rota.model.job import JobState
from rota.model.plan import Plan
from rota.policy.ordering.fifo import FifoBackfill

class Moody(FifoBackfill):
    name = "moody"

    def decide(self, view):
        mood = pathlib.Path(os.environ["MOOD"]).read_text()
        running = [row for row in view.active if view.held[row] is not None]
        if mood and len(running) > 1:
            if mood == "raises":
                raise KeyError("no such word")
            return Plan({running[0]: on_node(99, 1)}, {}, {})
        return super().decide(view)._replace(wake_at_s=view.now_s + 0.1)
"""
WAITS = "while [ ! -e over ]; do sleep 0.05; done"


@pytest.fixture
def moody(make_cluster, tmp_path):
    """A cluster with a policy of its user's, and the file that tells its mood."""
    package, mood = tmp_path / "package", tmp_path / "mood"
    (package / "moody-1.dist-info").mkdir(parents=True)
    (package / "moody.py").write_text(MOODY)
    (package / "moody-1.dist-info/METADATA").write_text("Name: moody\nVersion: 1\n")
    points = "[rota.policies]\nmoody = moody:Moody\n"
    (package / "moody-1.dist-info/entry_points.txt").write_text(points)
    mood.write_text("")
    return make_cluster(
        "moody", gpus=5, environment={"PYTHONPATH": str(package), "MOOD": str(mood)}
    ), mood


def told(cluster: Cluster, *words: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "rota.cli.main", *words]
    environment = os.environ | {"ROTA_HOME": str(cluster.folder.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split())


def metric(cluster: Cluster, name: str) -> float:
    """The sum of a metric's samples."""
    url = json.loads(cluster.folder.server.read_text())["url"]
    headers = {"Authorization": f"Bearer {cluster.folder.token.read_text().strip()}"}
    text = httpx.get(f"{url}/metrics", headers=headers, trust_env=False).text
    samples = re.findall(rf"^{name}(?:{{.*}})? (.*)$", text, re.MULTILINE)
    assert samples, name
    return sum(map(float, samples))


def draft(mood: Path, word: str) -> None:
    """Change the policy's mood at one moment."""
    new = mood.with_suffix(".new")
    new.write_text(word)
    new.replace(mood)


def test_a_cluster_goes_on_without_its_policy_and_tells_so(moody):
    cluster, mood = moody
    jobs = [cluster.submit(WAITS) for _ in range(2)]
    for job in jobs:
        cluster.until_state(job, "RUNNING")
    for word, error in (("raises", "KeyError: 'no such word'"), ("invalid", "of node 99")):
        draft(mood, word)
        until(lambda: cluster.client.policies()[0]["error"], "the policy fails")
        jobs.append(cluster.submit(WAITS))
        cluster.until_state(jobs[-1], "RUNNING")
        waits = cluster.submit("true", gpus=4)
        until(lambda job=waits: cluster.show(job)["reason"] == "WAIT_RESOURCES", "it has a reason")
        (policy,) = cluster.client.policies()
        assert policy["fallback"] == "fifo-backfill"
        assert error in policy["error"]
        for text in (told(cluster, "ps"), told(cluster, "why", waits)):
            assert "until it decides again, jobs start in order of arrival" in text
            assert error in text
        assert metric(cluster, "rota_policy_failing") == 1
        assert metric(cluster, "rota_policy_fallback_decisions_total") > 0
        files = cluster.folder.failed_decisions.iterdir()
        assert any(error in json.loads(file.read_text())["error"] for file in files)
        draft(mood, "")
        cluster.ends(cluster.submit("true"))  # else it is asked again after a while only
        until(lambda: cluster.client.policies()[0]["error"] is None, "the policy decides again")
        assert "fails" not in told(cluster, "ps").partition("ID")[0]
        assert metric(cluster, "rota_policy_failing") == 0
    (cluster.base / "over").touch()
    for job in jobs:
        cluster.ends(job)
        assert cluster.show(job)["attempt"] == 1
    decisions = [each for each in cluster.events() if isinstance(each, DecisionTaken)]
    assert {each.fallback for each in decisions} == {"", "fifo-backfill"}
