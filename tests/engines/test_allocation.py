"""A cluster within an allocation of Slurm: its nodes are used as they are."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.conftest import Cluster, until

from support.slurm import GPUS, Slurm

NODES = 2
GATED = "echo begun; until [ -e {gate} ]; do sleep 0.05; done; echo over"


class Lab:
    """A cluster on an allocation of two nodes, for an hour."""

    def __init__(self, slurm: Slurm, base: Path) -> None:
        self.slurm = slurm
        slurm.run("salloc", "--no-shell", f"--nodes={NODES}", "--exclusive", "--mem=0", "--time=60")
        ((_, _, self.job, hosts),) = slurm.jobs("R")
        self.cluster = Cluster(base, nodes=NODES, options=("--on", "slurm", "--lease", "10s"))
        self.environment = slurm.environment | {
            "SLURM_JOB_ID": self.job,
            "SLURM_JOB_NODELIST": hosts,
            "SLURM_GPUS_ON_NODE": str(GPUS),
            "SLURM_MEM_PER_CPU": "100",  # no step could have all memory with it
        }
        self.cluster.environment |= self.environment

    def submit(self, name: str) -> str:
        """A job of a whole node, which runs until there is a file of its name."""
        return self.cluster.submit(GATED.format(gate=self.cluster.base / name), gpus=2)

    def until_runs(self, job: str, attempt: int = 1) -> str:
        """The node of a job, once it runs there."""

        def where() -> str | None:
            now = self.cluster.show(job)
            runs = now["state"] == "RUNNING" and now["attempt"] == attempt
            return now["gpus"][0]["node"] if runs else None

        return until(where, f"job {job} runs: {self.cluster.show(job)}")  # type: ignore[return-value]

    def ends(self, job: str, name: str) -> None:
        (self.cluster.base / name).touch()
        self.cluster.ends(job)

    def steps(self) -> list[str]:
        return self.slurm.run("squeue", "-h", "-s", f"--jobs={self.job}", "-o", "%i %j").split(
            "\n"
        )[:-1]

    def about(self, name: str) -> tuple[str, str]:
        """The step and the host of a node, once Slurm has told them."""

        def told() -> tuple[str, str] | None:
            (node,) = [each for each in self.cluster.client.nodes() if each["name"] == name]
            _, step, host = f"{node['about']},,".split(",")[:3]
            return (step.split()[-1], host.split()[-1]) if step else None

        return until(told, f"the step of {name} is told")  # type: ignore[return-value]


@pytest.fixture
def lab(slurm: Slurm, tmp_path: Path) -> Iterator[Lab]:
    slurm.end_jobs()
    made = Lab(slurm, tmp_path)
    made.cluster.up()
    yield made
    made.cluster.close()
    slurm.end_jobs()


def agents(lab: Lab) -> list[str]:
    return [step for step in lab.steps() if "rota-" in step]


def test_each_node_has_an_agent_and_must_go_when_the_allocation_does(lab):
    first, second = lab.submit("one"), lab.submit("two")
    assert lab.until_runs(first) != lab.until_runs(second)
    assert len(agents(lab)) == NODES
    until(lambda: all(each["leaves_s"] for each in lab.cluster.client.nodes()), "the end is told")
    for node in lab.cluster.client.nodes():
        assert node["about"].startswith(f"Slurm job {lab.job}, step ")
        assert 50 * 60 < node["leaves_s"] - time.time() < 60 * 60
    environments = [lab.cluster.agent_of(each).environ() for each in lab.cluster.node_names()]
    assert {each["SLURM_STEP_GPUS"] for each in environments} == {"0,1,2,3"}
    lab.ends(first, "one")
    lab.ends(second, "two")
    lab.cluster.down()
    assert agents(lab) == []
    assert [each[2] for each in lab.slurm.jobs("R")] == [lab.job]  # it is not Rota's to end


def test_the_next_controller_finds_the_agents_and_starts_none_twice(lab):
    job = lab.submit("one")
    node, before = lab.until_runs(job), agents(lab)
    lab.cluster.kill_controller()
    lab.cluster.up()
    assert lab.until_runs(job) == node
    assert agents(lab) == before
    lab.ends(job, "one")


def test_a_step_that_is_cancelled_is_replaced_on_its_host(lab):
    job = lab.submit("one")
    node = lab.until_runs(job)
    step, host = lab.about(node)
    lab.slurm.run("scancel", f"{lab.job}.{step}")
    other = lab.until_runs(job, attempt=2)
    assert other != node

    def hosts() -> set[str]:
        there = [each["about"] for each in lab.cluster.client.nodes() if each["connected"]]
        return {about.split()[-1] for about in there if about}  # it may have just connected

    until(lambda: hosts() >= {host, lab.about(other)[1]}, "both hosts have an agent")
    lab.ends(job, "one")
    end_by_force(lab)  # takes away what the cancelled agent could not


def test_all_nodes_are_lost_with_the_allocation_and_jobs_wait_for_the_reason(lab):
    job = lab.submit("one")
    lab.until_runs(job)
    lab.slurm.run("scancel", lab.job)
    told = f"Slurm job {lab.job}, which had all nodes, ended: CANCELLED"
    until(lambda: told in "".join(lab.cluster.client.explain(job)["awaited"]), "the reason is told")
    assert not any(each["connected"] for each in lab.cluster.client.nodes())
    end_by_force(lab)
    lab.cluster.environment = {
        key: value
        for key, value in lab.cluster.environment.items()
        if not key.startswith("SLURM_JOB")
    }
    lab.cluster.nodes = 1
    lab.cluster.up()  # with pilots, as the allocation is over
    lab.ends(job, "one")


def test_the_end_by_force_leaves_the_allocation_without_steps(lab):
    lab.until_runs(lab.submit("one"))
    end_by_force(lab)
    assert agents(lab) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--partition", "gpu"], "--partition: it is for pilots, and this runs in Slurm's job"),
        (["--nodes", "3"], "--nodes: Slurm's job {job} has 2, which are all used"),
    ],
)
def test_what_is_for_pilots_is_refused(lab, words, told):
    done = rota(lab, "up", "--on", "slurm", *words)
    assert done.returncode == 2
    assert told.format(job=lab.job) in done.stderr


def end_by_force(lab: Lab) -> None:
    lab.cluster.kill_controller()
    done = rota(lab, "down", "--now")
    assert done.returncode == 0, done.stderr


def rota(lab: Lab, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rota.cli.main", *words, "--home", lab.cluster.folder.path],
        env=os.environ | lab.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
