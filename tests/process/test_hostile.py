"""Jobs and callers that mean harm, or are badly broken: they hurt themselves alone."""

import contextlib
import json
import math
import resource
import shlex
import socket
import time
from urllib.parse import urlsplit

import psutil
import pytest

from .conftest import SCRIPTS, Cluster, until, with_stops


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    """As the others have it, but that nobody here comes to the end of a step, however long."""
    cluster = Cluster(tmp_path_factory.mktemp("shared"))
    cluster.environment = with_stops() | {"BOUNDARY_S": "1"}
    try:
        yield cluster.up()
    finally:
        cluster.close()


def speaks(cluster, name="job", hello=None, answers=None, **fields):
    """Submit a job that talks to its agent by itself; its id, and where it notes what it hears."""
    out = cluster.base / name
    words = [
        "python",
        SCRIPTS / "hostile.py",
        out,
        json.dumps(hello or {}),
        json.dumps(answers or {}),
    ]
    return cluster.submit(shlex.join(map(str, words)), **fields), out


def heard(out):
    lines = out.read_text().splitlines() if out.exists() else []
    return [json.loads(line)["type"] for line in lines]


SUSPENDED = {"type": "suspended", "step": 1, "stopped_s": 1.0, "keeps": None}
NAN, HUGE = float("nan"), 10**300


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "wrong",
    [
        {"stopped_s": "noon"},
        {"stopped_s": NAN},
        {"stopped_s": HUGE},
        {"step": HUGE},
        {"keeps": [1]},
        {"type": "at", "step": "x"},
    ],
    ids=str,
)
def test_who_answers_nonsense_is_suspended_without_its_help(shared_cluster, base, wrong):
    cluster = shared_cluster
    job, out = speaks(cluster, answers={"pause": [SUSPENDED | wrong]})
    other = cluster.submit("sleep 60")
    until(lambda: cluster.show(job)["suspension"] == "BOUNDARY", "it has a session")
    cluster.client.suspend(job)
    show = cluster.until_state(job, "SUSPENDED")
    assert "closed" in heard(out) or show["memory"]["where"] == "processes"
    assert math.isfinite(show["overhead_s"])
    cluster.client.resume(job)
    cluster.until_state(job, "RUNNING")
    until(lambda: "closed" in heard(out), "the agent has hung up")
    assert cluster.until_state(other, "RUNNING")["attempt"] == 1
    for each in (job, other):
        cluster.client.cancel(each)
        cluster.ends(each, "CANCELLED")


REPORT = {"type": "report", "step": 1, "total": 10, "metrics": {}, "at_s": "now"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "wrong",
    [
        {"total": HUGE - 1, "step_time_s": 1e299},
        {"step": -1},
        {"step_time_s": -1.0},
        {"at_s": -5.0},
        {"at_s": 1e299},
        {"batch": HUGE},
    ],
    ids=str,
)
def test_a_report_that_cannot_be_true_is_passed_over(shared_cluster, base, wrong):
    cluster = shared_cluster
    sound = REPORT | {"step": 7}
    job, _ = speaks(cluster, answers={"start": [REPORT | wrong, sound]})
    until(lambda: cluster.show(job)["progress"], "it has told")
    assert cluster.show(job)["progress"]["step"] == 7
    assert cluster.client.jobs()
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def test_a_report_from_the_future_was_told_now(shared_cluster, base):
    job, _ = speaks(shared_cluster, answers={"start": [REPORT | {"at_s": time.time() + 1e6}]})
    until(lambda: shared_cluster.show(job)["progress"], "it has told")
    assert shared_cluster.show(job)["progress"]["at_s"] <= time.time()
    shared_cluster.client.cancel(job)
    shared_cluster.ends(job, "CANCELLED")


@pytest.mark.parametrize(
    "wrong", [{"shards": 1 << 63}, {"rank": -1}, {"generation": HUGE}, {"rank": 0.5}], ids=str
)
def test_a_hello_that_makes_no_sense_is_not_answered(shared_cluster, base, wrong):
    cluster = shared_cluster
    job, out = speaks(cluster, hello=wrong, resources={"gpus": "1..2"})
    until(lambda: "closed" in heard(out), "the agent has hung up")
    assert cluster.show(job)["suspension"] == "PROCESS"
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def test_a_session_that_says_its_steps_take_for_ever_is_suspended_all_the_same(
    shared_cluster, base
):
    cluster = shared_cluster
    job, _ = speaks(cluster, answers={"start": [REPORT | {"step_time_s": 1e10}]})
    until(lambda: cluster.show(job)["progress"], "it has told")
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


FORKS = "f() { while :; do (sleep 0.003 &); done; }; for i in 1 2 3 4; do f & done; wait"


@pytest.mark.parametrize(
    "way", [{"suspend": "restart", "grace": 0.5}, {"suspend": "stop"}], ids=str
)
def test_a_job_that_forks_without_end_does_not_keep_its_agent_from_the_others(
    shared_cluster, base, way
):
    cluster = shared_cluster
    job = cluster.submit(f"trap '' TERM; touch runs; {FORKS}", **way)
    until((base / "runs").exists, "it runs")
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    states = {process.status() for process in cluster.of_job(job)}
    assert states == ({psutil.STATUS_STOPPED} if way["suspend"] == "stop" else set())
    cluster.ends(cluster.submit("true"))
    cluster.client.resume(job)
    cluster.until_state(job, "RUNNING")
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    assert cluster.of_job(job) == []


def test_orphans_of_a_running_job_are_buried(shared_cluster, base):
    cluster = shared_cluster
    job = cluster.submit("for i in {1..50}; do (bash -c 'echo $$ >> pids' &); done; sleep 1000")
    pids = base / "pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) == 50, "all have run")
    gone = [int(pid) for pid in pids.read_text().split()]
    until(lambda: not any(map(psutil.pid_exists, gone)), "none of them is left")
    assert cluster.show(job)["state"] == "RUNNING"
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def test_more_half_sent_requests_than_a_user_may_open_files_are_no_matter(make_cluster):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        cluster = make_cluster()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    address = urlsplit(json.loads(cluster.folder.server.read_text())["url"])
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            caller = socket.create_connection((address.hostname, address.port), timeout=60)
            stack.enter_context(caller)
            with contextlib.suppress(ConnectionError):  # there are too many of them
                caller.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        job = cluster.submit("ulimit -Sn")
        cluster.ends(job)
        assert "".join(cluster.client.logs(job)) == "256\n"  # what its user has, not more
        assert all(node["connected"] for node in cluster.client.nodes())
    assert len(cluster.folder.controller_log.read_text().splitlines()) < 50
