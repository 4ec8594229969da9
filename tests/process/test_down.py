"""`rota down` says that the cluster has ended when it has, and `--now` ends it, whoever is deaf."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from rota.server import down as down_module
from rota.server.down import end_by_force, living

from .conftest import Cluster, is_gone, until

STUBBORN = "trap '' TERM; {more} touch ready; while :; do sleep 0.1; done"
# In a session of its own, without the variables of its job.
HIDDEN = "env -i setsid sleep 1000 & echo $! > hidden;"


@pytest.fixture
def cluster(tmp_path):
    """A cluster of the test's own, ended by force."""
    cluster = Cluster(tmp_path)
    try:
        yield cluster.up()
    finally:
        left = end_by_force(cluster.folder)
        cluster.client.close()
        assert left == []
        if cluster.process is not None:
            cluster.process.wait()
        assert cluster.processes() == []


def stubborn(cluster: Cluster, more: str = "") -> str:
    """A job that SIGTERM does not end, once it is deaf to that."""
    job = cluster.submit(STUBBORN.format(more=more))
    until((cluster.base / "ready").exists, "it ignores SIGTERM")
    (cluster.base / "ready").unlink()
    cluster.until_state(job, "RUNNING")
    return job


class Down:
    """``rota down`` as a program; its words go to a file."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        self._file = cluster.base / "down.log"
        command = [sys.executable, "-m", "rota.cli.main", "down", *options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
        environment["ROTA_HOME"] = str(cluster.folder.path)
        with open(self._file, "w") as output:
            self.process = subprocess.Popen(command, stderr=output, env=environment)

    def says(self, what: str) -> None:
        """Return when it has said something."""
        until(lambda: what in self._file.read_text(), f"it says {what!r}")

    def ends(self) -> tuple[int, str]:
        """Its exit code, and all that it has said."""
        return self.process.wait(), self._file.read_text()


def ended(cluster: Cluster) -> None:
    """Nothing is left, neither a process nor what agents and controller remove."""
    assert cluster.process is not None
    cluster.process.wait()
    cluster.process = None
    assert living(cluster.folder) == {}
    assert not cluster.folder.server.exists()
    assert not cluster.socket_folder().exists()


def test_it_waits_for_a_job_that_ignores_sigterm_and_says_so(cluster):
    job = stubborn(cluster)
    code, words = Down(cluster).ends()
    assert code == 0
    ended(cluster)
    first, *_, last = words.splitlines()
    assert f"waiting for job {job} (trap) and the agent of " in first
    assert "`rota down --now` kills them" in first
    assert last.startswith("the cluster has ended")


def test_it_waits_for_a_stopped_agent_until_it_is_left_alone_and_now_kills_all(cluster):
    job = stubborn(cluster, more=HIDDEN)
    hidden = psutil.Process(int((cluster.base / "hidden").read_text()))
    agent = cluster.agent()
    cluster.freeze(agent)
    down = Down(cluster)
    down.says("waiting for job")
    down.process.send_signal(signal.SIGINT)
    code, words = down.ends()
    assert code == 130
    assert "the cluster goes on ending" in words
    assert cluster.of_job(job)
    assert cluster.client._call("GET", "/shutdown")["ending"] is True
    other = cluster.submit("true")  # and it is kept for the next controller
    code, words = Down(cluster, "--now").ends()
    assert code == 0, words
    assert is_gone(hidden)
    ended(cluster)
    cluster.up()
    assert cluster.until_state(job, "RUNNING")["attempt"] == 2
    cluster.ends(other)


def test_an_agent_that_dies_while_the_cluster_ends_is_replaced_and_ends_its_jobs(cluster):
    stubborn(cluster)
    agent = cluster.agent()
    cluster.freeze(agent)
    down = Down(cluster)
    down.says("waiting for job")
    cluster.kill(agent)
    assert down.ends()[0] == 0
    ended(cluster)


def test_a_cluster_that_is_told_to_end_and_loses_its_controller_says_what_is_left(cluster):
    job = stubborn(cluster)
    agent = cluster.agent()
    cluster.freeze(agent)
    down = Down(cluster)
    down.says("waiting for job")
    cluster.kill_controller()
    code, words = down.ends()
    assert code == 1
    assert "processes of the cluster live on" in words
    assert f"of job {job}" in words
    assert "`rota down --now` kills them" in words


def test_now_needs_no_controller_and_takes_no_attempt_from_the_jobs(cluster, monkeypatch):
    monkeypatch.setattr(down_module, "CONTROLLER_GRACE_S", 0.0)
    jobs = [stubborn(cluster), cluster.submit("sleep 1000")]
    cluster.until_state(jobs[1], "RUNNING")
    cluster.client.suspend(jobs[1])
    cluster.until_state(jobs[1], "SUSPENDED")
    for attempt in (2, 3, 4):  # the third loss would be the last
        if attempt == 3:
            cluster.freeze(cluster.controller())
        else:
            cluster.kill_controller()
        assert end_by_force(cluster.folder) == []
        ended(cluster)
        cluster.up()
        assert cluster.until_state(jobs[0], "RUNNING")["attempt"] == attempt
    assert cluster.show(jobs[1])["state"] == "HELD"


def test_who_can_not_be_killed_is_named_and_the_job_is_not_started_anew(cluster, monkeypatch):
    job = stubborn(cluster)
    shim = cluster.pids(job)["shim"]
    worker = cluster.pids(job)["worker"]
    kill = os.kill

    def kill_others(pid: int, number: int) -> None:
        if pid in (shim, worker):  # as if another user's
            raise PermissionError
        kill(pid, number)

    monkeypatch.setattr(os, "kill", kill_others)
    left = {each.pid: str(each) for each in end_by_force(cluster.folder, 0.0)}
    monkeypatch.undo()
    assert {shim, worker} <= left.keys()
    assert left[worker].startswith(f"process {worker} (bash, of user ")
    assert left[worker].endswith(f") of job {job}")
    cluster.process.wait()
    cluster.up()
    assert cluster.until_state(job, "RUNNING")["attempt"] == 1
