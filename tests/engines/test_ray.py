"""A cluster on Ray: its jobs run on nodes of placement groups, whatever becomes of these."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.conftest import Cluster, Stops, cancel_everything, until

from support.ray import MARK, Ray

ASKED = ("--on", "ray", "--nodes", "1..3", "--lease", "10s")
GATED = "echo begun; until [ -e {gate} ]; do sleep 0.05; done; echo over"
GROUPS = "from importlib import import_module; groups = import_module('ray.util.placement_group')\n"
REMOVE = "groups.remove_placement_group(groups.get_placement_group({!r}))\n"


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Stops:
    return Stops(tmp_path_factory.mktemp("stops") / "points")


@pytest.fixture(scope="module")
def cluster(ray: Ray, stops: Stops, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    ray.mend()
    made = Cluster(tmp_path_factory.mktemp("lab"), options=ASKED)
    made.environment |= ray.environment | stops.environment
    made.up()
    yield made
    made.close()
    told = ray.look(name(made))
    assert (told["groups"], told["agents"]) == ({}, {})
    assert not (Path(ray.environment["HOME"]) / ".ray").exists()  # no token for all clusters


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cancel_everything(cluster)


class Job:
    """A job of both slots of a node, which ends when it is let."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.gate = cluster, cluster.base / f"gate-{name}"
        self.id = cluster.submit(GATED.format(gate=self.gate), gpus=2)

    @property
    def now(self) -> dict[str, Any]:
        return self.cluster.show(self.id)

    @property
    def node(self) -> str:
        return str(self.now["gpus"][0]["node"])

    def until_begun(self, attempt: int = 1) -> "Job":
        def has_begun() -> bool:
            now = self.now
            return now["state"] == "RUNNING" and now["attempt"] == attempt

        until(has_begun, f"it runs: {self.now}")
        until(lambda: "begun" in "".join(self.cluster.client.logs(self.id)), "it has printed")
        return self

    def ends(self, attempt: int = 1) -> None:
        self.gate.touch()
        assert self.cluster.until_state(self.id, "SUCCEEDED")["attempt"] == attempt
        assert "".join(self.cluster.client.logs(self.id)) == "begun\nover\n"


def name(cluster: Cluster) -> str:
    """The cluster's name in Ray."""
    return str(json.loads((cluster.folder.path / "ray-cluster.json").read_text())["name"])


def about(cluster: Cluster, node: str) -> str:
    (found,) = [each for each in cluster.client.nodes() if each["name"] == node]
    return str(found["about"])


def test_a_controller_killed_before_it_notes_rays_answer_finds_what_it_asked_for(
    cluster, stops, ray
):
    first = Job(cluster, "before").until_begun()
    stops.arm("controller", "ask_ray-after")
    second = Job(cluster, "asked")
    cluster.kill(stops.until_at("ask_ray-after"))
    asked = ray.look(name(cluster))["groups"]
    assert len(asked) == 2
    cluster.up()
    second.until_begun().ends()
    first.ends()
    assert ray.look(name(cluster))["groups"].keys() == asked.keys()


def test_while_ray_is_away_jobs_go_on_and_begin(cluster, ray):
    job = Job(cluster, "away").until_begun()
    (head,) = [each for each in ray.processes("head") if each.name() == "gcs_server"]
    head.suspend()
    try:
        job.ends()
        Job(cluster, "meanwhile").until_begun().ends()
    finally:
        head.resume()


def test_a_training_runs_on_a_node_of_which_group_and_actor_are_told(cluster, ray):
    trained = cluster.train("trained", "--steps", 3, gpus=2)
    assert cluster.ends(trained)["attempt"] == 1
    told = ray.look(name(cluster))
    for node in cluster.node_names():
        group, actor = told["groups"][node]["id"], told["agents"][node]["id"]
        words = f"Ray placement group {group[:12]}, actor {actor[:12]}, on "
        assert about(cluster, node).startswith(words)


def test_awaited_nodes_are_explained_in_rays_words_and_block_nothing(cluster):
    jobs = [Job(cluster, f"of-three-{number}") for number in range(3)]
    for job in jobs[:2]:
        job.until_begun()

    def why() -> str:
        told = "\n".join(cluster.client.explain(jobs[2].id)["awaited"])
        return told if "Ray: " in told else ""

    assert "Ray: NO_RESOURCES, 2 of 3 nodes held" in until(why, "Ray's words are told")
    for job in jobs:
        job.until_begun().ends()  # the last one on a node that was there


def test_an_agent_outlives_its_actor_and_a_new_one_finds_it(cluster, ray):
    job = Job(cluster, "actor").until_begun()
    agent, before = cluster.agent_of(job.node).pid, about(cluster, job.node)
    ray.run(name(cluster), f"ray.kill(ray.get_actor({job.node!r}))")
    until(
        lambda: "actor" in (now := about(cluster, job.node)) and now != before,
        "there is another actor",
    )
    assert cluster.agent_of(job.node).pid == agent
    job.ends()


def test_a_group_that_a_person_removes_is_lost_and_its_job_starts_anew_once(cluster, ray):
    job = Job(cluster, "removed").until_begun()
    lost = job.node
    ray.run(name(cluster), GROUPS + REMOVE.format(lost))
    job.until_begun(attempt=2)
    assert job.node != lost
    assert len(ray.look(name(cluster))["groups"]) <= 3
    job.ends(attempt=2)


def test_a_node_without_power_is_lost_when_its_lease_is_over(cluster, ray):
    jobs = [Job(cluster, f"dark-{number}") for number in range(2)]
    hosts = {}
    for job in jobs:
        job.until_begun()
        hosts[cluster.agent_of(job.node).environ()[MARK]] = job
    dark, other = hosts.pop(f"{ray.base}/n2"), hosts.popitem()[1]
    lost = dark.node
    ray.cut_power("n2")
    other.ends()
    dark.until_begun(attempt=2)
    assert dark.node != lost
    dark.ends(attempt=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray-address", "127.0.0.1:9"], "no Ray answers at 127.0.0.1:9: Connection refused"),
        (["--ray-token", "wrong"], "Authentication token is missing or incorrect"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_asked_for(words, said, ray, tmp_path):
    (tmp_path / "wrong").write_text("0" * 48)
    done = subprocess.run(
        [sys.executable, "-m", "rota.cli.main", "up", "--home", "home", "--on", "ray", *words],
        env=os.environ | ray.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "give " in done.stderr or "is the token the cluster's (--ray-token)?" in done.stderr
    assert not (tmp_path / "home").exists()


def test_the_end_by_force_leaves_nothing_in_ray(cluster, ray):
    job = Job(cluster, "forced").until_begun()
    cluster.kill(cluster.process.pid)
    done = subprocess.run(
        [sys.executable, "-m", "rota.cli.main", "down", "--now", "--home", cluster.folder.path],
        env=os.environ | ray.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = ray.look(name(cluster))
    assert (told["groups"], told["agents"]) == ({}, {})
    cluster.up()
    job.until_begun(attempt=2).ends(attempt=2)
