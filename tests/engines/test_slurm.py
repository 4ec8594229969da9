"""A cluster on Slurm: its jobs run on nodes of pilots, and survive what becomes of these."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.process.conftest import Cluster, cancel_everything, until

from rota.errors import NeverFitsError
from support.slurm import GPUS, Slurm

ASKED = ("--on", "slurm", "--partition", "gpu", "--time", "8h", "--lease", "10s")
GATED = "echo begun; until [ -e {gate} ]; do sleep 0.05; done; echo over"


@pytest.fixture(scope="module")
def cluster(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    base = tmp_path_factory.mktemp("lab")
    made = Cluster(base, options=(*ASKED, "--nodes", "1..3"))
    made.environment |= slurm.environment
    made.up()
    yield made
    made.close()
    assert not waiting_or_running(slurm)


@pytest.fixture(autouse=True)
def clean(slurm: Slurm, cluster: Cluster) -> Iterator[None]:
    yield
    cancel_everything(cluster)
    slurm.run("scancel", "--name=other")


class Job:
    """A job of both slots of a node, which ends when it is let."""

    def __init__(self, cluster: Cluster, name: str, **more: str) -> None:
        self.cluster, self.gate = cluster, cluster.base / f"gate-{name}"
        self.gate.unlink(missing_ok=True)
        self.id = cluster.submit(GATED.format(gate=self.gate), gpus=2, **more)

    @property
    def now(self) -> dict:
        return self.cluster.show(self.id)

    @property
    def node(self) -> str:
        return self.now["gpus"][0]["node"]

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


def waiting_or_running(slurm: Slurm) -> list[list[str]]:
    return slurm.jobs("PD,R,CG,S")


def node(cluster: Cluster, name: str) -> dict:
    (found,) = [each for each in cluster.client.nodes() if each["name"] == name]
    return found


def pilot_of(cluster: Cluster, name: str) -> str:
    """The number of the job that has a node, such as 17_0."""
    return node(cluster, name)["about"].split()[2].rstrip(",")


def said(cluster: Cluster, words: str) -> bool:
    return words in (cluster.base / "up.log").read_text()


def test_a_job_runs_on_a_node_of_which_slurms_job_and_end_are_told(cluster, slurm):
    job = Job(cluster, "first").until_begun()
    until(lambda: node(cluster, job.node)["leaves_s"], "its end is told")
    there = node(cluster, job.node)
    (pilot,) = slurm.jobs("R")
    assert there["about"] == f"Slurm job {pilot_of(cluster, job.node)}, step 0, on {pilot[3]}"
    assert 7.5 * 3600 < there["leaves_s"] - time.time() < 8 * 3600
    assert pilot[0] == job.node  # the first task of an array
    job.ends()


def test_an_agent_has_all_gpus_of_its_node_from_slurm(cluster, slurm):
    job = Job(cluster, "with-gpus").until_begun()
    agent = cluster.agent_of(job.node)
    assert agent.environ()["SLURM_STEP_GPUS"] == ",".join(map(str, range(GPUS)))
    job.ends()


def test_awaited_nodes_are_explained_in_slurms_words_and_block_nothing(cluster, slurm):
    blocker = ("sbatch", "--parsable", "--nodes=3", "--exclusive", "--mem=0", "--output=/dev/null")
    number = slurm.run(*blocker, "--job-name=other", "--wrap", "sleep 600").strip()
    until(lambda: len(slurm.jobs("R")) == 2, "the other job runs")
    first, second = Job(cluster, "one").until_begun(), Job(cluster, "two")

    def why() -> str:
        told = "\n".join(cluster.client.explain(second.id)["awaited"])
        return told if "Slurm: " in told else ""

    assert "Slurm: Resources, 1 of 2 nodes held" in until(why, "Slurm's words are told")
    first.ends()
    second.until_begun().ends()  # on the node that was there
    slurm.run("scancel", number)


def test_a_gang_gets_pilots_for_what_the_nodes_that_are_there_lack(cluster, slurm):
    jobs = [Job(cluster, name) for name in ("here", "there")]
    for job in jobs:
        job.until_begun()
    with pytest.raises(NeverFitsError, match="has 4, and 6 on 3 nodes; ask for 6 or fewer"):
        cluster.submit("true", gpus=7)
    blocker = ("sbatch", "--parsable", "--nodes=2", "--exclusive", "--mem=0", "--output=/dev/null")
    number = slurm.run(*blocker, "--job-name=other", "--wrap", "sleep 600").strip()
    until(lambda: len(slurm.jobs("R")) == 3, "the other job runs")
    gang = cluster.submit("echo rank $RANK of $WORLD_SIZE", gpus=6)
    until(lambda: cluster.client.explain(gang)["awaited"], "a third node is awaited")
    why = cluster.client.explain(gang)
    assert why["reason"] == "WAIT_RESOURCES"
    assert why["blockers"][0]["have"] == "4 on 2 nodes; up to 3 nodes are asked for"
    assert why["would_start_if"] == "the nodes that are awaited were there"
    for job in jobs:
        job.ends()
    slurm.run("scancel", number)
    assert cluster.until_state(gang, "SUCCEEDED")["attempt"] == 1
    for rank in range(6):
        assert "".join(cluster.client.logs(gang, rank=rank)) == f"rank {rank} of 6\n"


def test_a_queue_gets_as_many_nodes_as_were_allowed_and_no_more(cluster, slurm):
    jobs = [Job(cluster, f"of-four-{number}") for number in range(4)]
    for job in jobs[:3]:
        job.until_begun()
    assert len({job.node for job in jobs[:3]}) == 3
    assert len(waiting_or_running(slurm)) == 3
    for job in jobs:
        job.until_begun().ends()


def test_a_pilot_that_a_person_cancels_is_lost_and_its_job_starts_anew_once(cluster, slurm):
    job = Job(cluster, "cancelled").until_begun()
    lost = job.node
    slurm.run("scancel", pilot_of(cluster, lost))
    job.until_begun(attempt=2)
    assert job.node != lost
    assert len(waiting_or_running(slurm)) <= 3
    until(lambda: said(cluster, f"(node {lost}) has ended: CANCELLED"), "it is told")
    job.ends(attempt=2)


def test_jobs_leave_a_node_before_its_time_limit(cluster, slurm):
    job = Job(cluster, "limited", suspend="restart").until_begun()
    first, pilot = job.node, pilot_of(cluster, job.node)
    Job(cluster, "beside").until_begun().ends()  # there is another node now
    before_s = node(cluster, first)["leaves_s"]
    ran_s = 8 * 3600 - (before_s - time.time())
    slurm.run("scontrol", "update", f"JobId={pilot}", f"TimeLimit={int(ran_s / 60) + 2}")
    until(lambda: node(cluster, first)["leaves_s"] < before_s, "the deadline is told")
    until(lambda: job.now["state"] == "RUNNING" and job.node != first, f"it has left: {job.now}")
    job.gate.touch()
    cluster.until_state(job.id, "SUCCEEDED")


def test_without_slurms_controller_jobs_go_on_and_begin(cluster, slurm):
    job = Job(cluster, "before").until_begun()
    slurm.stop_controller()
    until(lambda: said(cluster, "Slurm does not answer: "), "it is told")
    job.ends()
    Job(cluster, "meanwhile").until_begun().ends()
    slurm.start_controller()
    until(lambda: slurm.states() and "unknown" not in slurm.states(), "it is back")


def test_a_controller_that_was_killed_finds_its_pilots_again(cluster, slurm):
    job = Job(cluster, "found").until_begun()
    pilot, before = pilot_of(cluster, job.node), slurm.jobs("R")
    cluster.kill_controller()
    cluster.up()
    until(lambda: node(cluster, job.node)["connected"], "the agent has called again")
    assert pilot_of(cluster, job.node) == pilot
    job.ends()
    assert all(each in before for each in waiting_or_running(slurm))


def test_a_node_without_power_is_lost_when_its_lease_is_over(cluster, slurm):
    job = Job(cluster, "dark").until_begun()
    lost = job.node

    def place() -> str:  # Slurm is asked for it now and then
        return node(cluster, lost)["about"].rpartition(" ")[2]

    host = until(lambda: place() in slurm.nodes and place(), "it is told where the pilot runs")
    slurm.cut_power(host, words=lost)
    job.until_begun(attempt=2)
    assert job.node != lost
    job.ends(attempt=2)
    slurm.start_node(host)
    until(lambda: not any(state.endswith("*") for state in slurm.states()), "it is back")


def test_what_slurm_would_refuse_is_told_before_anything_is_asked_for(cluster, slurm, tmp_path):
    before = slurm.jobs()
    command = [sys.executable, "-m", "rota.cli.main", "up", "--home", str(tmp_path / "home")]
    done = subprocess.run(
        [*command, "--on", "slurm", "--partition", "nope"],
        env=os.environ | slurm.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "invalid partition specified: nope" in done.stderr
    assert "`sinfo -s` lists" in done.stderr
    assert slurm.jobs() == before
    assert not (tmp_path / "home").exists()


def test_the_end_by_force_leaves_nothing_in_the_queue(cluster, slurm):
    job = Job(cluster, "forced").until_begun()
    cluster.kill(cluster.process.pid)
    done = subprocess.run(
        [sys.executable, "-m", "rota.cli.main", "down", "--now", "--home", cluster.folder.path],
        env=os.environ | slurm.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not waiting_or_running(slurm)
    cluster.up()
    job.until_begun(attempt=2).ends(attempt=2)
