"""Jobs are suspended and resumed where that does them no harm."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.model.events import CommandSent

from .conftest import SCRIPTS, Cluster, until
from .states import equal, weights


def as_alone(cluster: Cluster, out: str, gpus: int = 1) -> None:
    """Assert that a training has come to what as many steps come to that nobody disturbs."""
    alone = cluster.train(f"{out}_alone", "--steps", cluster.step(out), "--pace", 0, gpus=gpus)
    assert cluster.ends(alone)["preemptions"] == 0
    assert equal(weights(cluster.base / out), weights(cluster.base / f"{out}_alone"))


def test_jobs_that_take_turns_end_with_the_weights_of_an_uninterrupted_run(make_cluster):
    """However many they take: each has had four turns at least when it may end."""
    cluster = make_cluster("gandiva", quantum_s=0.15, pack="off")
    outs = [f"turns{i}" for i in range(3)]
    jobs = [cluster.train(out, "--until", "--steps", 10**6) for out in outs]

    def begun(out: str) -> list[dict[str, Any]]:
        return [line for line in cluster.lines(out) if line["what"] in ("start", "resumed")]

    until(lambda: all(len(begun(out)) >= 4 for out in outs), "each has had several turns")
    for out in outs:
        (cluster.base / out / "enough").touch()
    shows = [cluster.ends(job) for job in jobs]
    assert all(show["preemptions"] >= 3 for show in shows)
    assert all(show["suspension"] == "BOUNDARY" and show["attempt"] == 1 for show in shows)
    for out in outs:
        assert len({line["pid"] for line in cluster.lines(out)}) == 1
        as_alone(cluster, out)

    sent = [event for event in cluster.events() if isinstance(event, CommandSent)]
    for out, job in zip(outs, jobs, strict=True):
        mine = [
            (event.at_s, event.command.allocation.gpus()[0][1][0])
            for event in sent
            if event.command.row == int(job) - 1 and hasattr(event.command, "allocation")
        ]
        for line in begun(out):
            slot = [slot for at_s, slot in mine if at_s < line["at_s"]][-1]
            assert line["cores"] == [slot]


@pytest.mark.live_path("suspend", "gang")
def test_gangs_that_take_turns_stop_at_one_step_and_train_as_if_alone(make_cluster):
    cluster = make_cluster("gandiva", quantum_s=0.2, pack="off")
    outs = ("gang0", "gang1")
    jobs = [cluster.train(out, "--until", "--steps", 10**6, gpus=2) for out in outs]

    def stops(out: str, rank: int) -> list[int]:
        lines = cluster.lines(out, rank)
        return [line["step"] for line in lines if line["what"] == "suspended"]

    until(lambda: all(len(stops(out, 0)) >= 3 for out in outs), "each has had several turns")
    for out in outs:
        (cluster.base / out / "enough").touch()
    for out, job in zip(outs, jobs, strict=True):
        assert cluster.ends(job)["preemptions"] >= 3
        assert stops(out, 0) == stops(out, 1)
    for out in outs:  # when neither is there any more to take turns with
        as_alone(cluster, out, gpus=2)


@pytest.mark.live_path("suspend")
def test_a_user_suspends_and_resumes_a_training_ten_times(shared_cluster: Cluster, base):
    cluster = shared_cluster
    job = cluster.train("job", "--steps", 100000)
    for _ in range(10):
        cluster.until_step_advances("job")
        cluster.client.suspend(job)
        cluster.until_state(job, "SUSPENDED")
        stopped = cluster.step("job")
        assert cluster.show(job)["gpus"] == []
        cluster.client.resume(job)
        cluster.until_state(job, "RUNNING")
        assert cluster.step("job") >= stopped
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    lines = cluster.lines("job")
    assert [line["what"] for line in lines] == ["start"] + ["suspended", "resumed"] * 10
    assert len({line["pid"] for line in lines}) == 1


def test_an_opaque_command_is_stopped_and_continued_as_a_whole_tree(shared_cluster, base):
    cluster = shared_cluster
    names = ("parent", "child", "orphan")
    (base / "tree.sh").write_text(
        "loop() { while :; do echo x >> $1; sleep 0.01; done; }\n"
        "loop child &\n"
        "(setsid bash -c 'while :; do echo x >> orphan; sleep 0.01; done' &)\n"
        "loop parent\n"
    )
    job = cluster.submit("bash tree.sh")

    def sizes():
        return [(base / name).stat().st_size if (base / name).exists() else 0 for name in names]

    def all_grow(before):
        return lambda: all(now > then for now, then in zip(sizes(), before, strict=True))

    until(all_grow([0, 0, 0]), "all three write")
    for _ in range(3):
        cluster.client.suspend(job)
        assert cluster.until_state(job, "SUSPENDED")["suspension"] == "PROCESS"
        states = {process.status() for process in cluster.of_job(job)}
        assert states == {psutil.STATUS_STOPPED}
        cluster.client.resume(job)
        cluster.until_state(job, "RUNNING")
        until(all_grow(sizes()), "all three go on")
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    assert cluster.of_job(job) == []


BRIEF = """
import os, sys, time, rota.train
with rota.train.session() as s:
    for step in s.steps():
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(0.01)
"""


class Loops:
    """Processes of a job, each of which adds to a file of its own."""

    def __init__(self, base, *names):
        self.files = [base / name for name in names]

    def sizes(self):
        return [file.stat().st_size if file.exists() else 0 for file in self.files]

    def go_on(self):
        """Wait until each of them has got further."""
        before = self.sizes()

        def all_have():
            return all(now > then for now, then in zip(self.sizes(), before, strict=True))

        until(all_have, "all of them go on")


def stopped(cluster, job):
    """The processes of a job that are stopped, and those that are not."""
    by_state = {True: set(), False: set()}
    for process in cluster.of_job(job):
        by_state[process.status() == psutil.STATUS_STOPPED].add(process.pid)
    return by_state[True], by_state[False]


def test_what_runs_beside_a_session_is_stopped_as_well(shared_cluster, base):
    cluster = shared_cluster
    (base / "brief.py").write_text(BRIEF)
    (base / "both.sh").write_text(
        "(setsid bash -c 'while :; do echo x >> orphan; sleep 0.1; done' &)\n"
        "while :; do echo x >> child; sleep 0.1; done &\n"
        "python brief.py session\n"
    )
    job = cluster.submit("bash both.sh")
    loops = Loops(base, "orphan", "child", "session")
    loops.go_on()
    until(lambda: cluster.show(job)["suspension"] == "BOUNDARY", "the session is known")
    session = int((base / "session").read_text().split()[0])
    cluster.client.suspend(job)
    assert cluster.until_state(job, "SUSPENDED")["suspension"] == "BOUNDARY"
    others, holding = stopped(cluster, job)
    assert holding == {session}
    old = cluster.agent()
    cluster.kill(old)
    until(lambda: cluster.agent().pid != old.pid, "there is another agent")
    until(lambda: cluster.client.nodes()[0]["connected"], "it is connected")
    assert stopped(cluster, job) == (others, holding)
    cluster.client.resume(job)
    cluster.until_state(job, "RUNNING")
    loops.go_on()
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    assert cluster.of_job(job) == []


def test_a_rank_with_two_sessions_is_stopped_as_a_whole_until_it_has_one(shared_cluster, base):
    cluster = shared_cluster
    (base / "brief.py").write_text(BRIEF)
    job = cluster.submit("python brief.py one & python brief.py two & wait")
    until(
        lambda: "several sessions" in (cluster.show(job)["suspension_why"] or ""), "both are known"
    )
    assert cluster.show(job)["suspension"] == "PROCESS"
    loops = Loops(base, "one", "two")
    loops.go_on()
    cluster.client.suspend(job)
    assert cluster.until_state(job, "SUSPENDED")["suspension"] == "PROCESS"
    assert stopped(cluster, job)[1] == set()
    cluster.client.resume(job)
    cluster.until_state(job, "RUNNING")
    loops.go_on()
    one, two = (int((base / name).read_text().split()[0]) for name in ("one", "two"))
    psutil.Process(one).kill()
    until(lambda: cluster.show(job)["suspension"] == "BOUNDARY", "one session is left")
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    assert stopped(cluster, job)[1] == {two}
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    assert cluster.of_job(job) == []


def test_a_pending_job_that_is_suspended_starts_only_when_it_is_resumed(shared_cluster, base):
    cluster = shared_cluster
    blocker = cluster.train("blocker", "--steps", 100000, gpus=2)
    cluster.until_state(blocker, "RUNNING")
    held, free = cluster.train("held"), cluster.train("free")
    cluster.client.suspend(held)
    assert cluster.show(held)["state"] == "HELD"
    cluster.client.cancel(blocker)
    cluster.ends(free)
    assert cluster.show(held)["state"] == "HELD"
    assert cluster.show(held)["attempt"] == 0
    cluster.client.resume(held)
    cluster.ends(held)


def test_a_job_that_holds_no_boundary_any_more_is_stopped_where_it_is(shared_cluster, base):
    cluster = shared_cluster
    job = cluster.train("job", "--steps", 5, "--linger")
    until((base / "job" / "atend").exists, "its session is closed")
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    assert {process.status() for process in cluster.of_job(job)} == {psutil.STATUS_STOPPED}
    cluster.client.resume(job)
    cluster.until_state(job, "RUNNING")
    cluster.opens("job", "end")
    cluster.ends(job)


def test_a_session_that_closes_while_it_is_to_hold_does_not_keep_the_gpu(shared_cluster, base):
    cluster = shared_cluster
    job = cluster.train("job", "--steps", 5, "--gate", 4, "--linger")
    cluster.suspend_at(job, "job", 4)
    cluster.client.resume(job)
    cluster.until_state(job, "RUNNING")
    cluster.opens("job", "end")
    cluster.ends(job)


def test_a_step_that_takes_too_long_is_stopped_in_the_middle_and_goes_on_unharmed(make_cluster):
    cluster = make_cluster(environment={"BOUNDARY_S": "0.5"})
    job = cluster.train("job", "--steps", 40, "--gate", 20)
    cluster.until_at("job", 20)
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    assert {process.status() for process in cluster.of_job(job)} == {psutil.STATUS_STOPPED}
    cluster.client.resume(job)
    cluster.until_state(job, "RUNNING")
    cluster.opens("job", 20)
    cluster.ends(job)
    plain = cluster.train("plain", "--steps", 40)
    cluster.ends(plain)
    assert equal(weights(cluster.base / "job"), weights(cluster.base / "plain"))
    assert all(line["what"] != "suspended" for line in cluster.lines("job"))


def test_a_job_stops_at_the_end_of_the_step_that_it_was_in_when_it_was_asked(shared_cluster, base):
    """No more than one mini-batch is waited for."""
    cluster = shared_cluster
    job = cluster.train("job", "--steps", 100, "--gate", 20)
    cluster.suspend_at(job, "job", 20)
    assert [line["step"] for line in cluster.lines("job") if line["what"] == "suspended"] == [21]
    assert cluster.step("job") == 21
    cluster.client.resume(job)
    cluster.ends(job)


@pytest.mark.parametrize("run", ["python show_env.py", "exec python -E show_env.py"])
def test_every_rank_is_told_who_it_is(shared_cluster, base, run):
    cluster = shared_cluster
    (base / "show_env.py").write_text(
        "import json, os\n"
        "mine = dict(os.environ) | {'cores': sorted(os.sched_getaffinity(0))}\n"
        "json.dump(mine, open('env' + os.environ['RANK'], 'w'))\n"
    )
    job = cluster.submit(run, gpus=2, env={"MINE": "yes", "RANK": "overridden"})
    cluster.ends(job)
    for rank in range(2):
        seen = json.loads((base / f"env{rank}").read_text())
        assert seen["MINE"] == "yes"
        assert (seen["ROTA_JOB_ID"], seen["ROTA_ATTEMPT"]) == (job, "1")
        assert (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert (seen["ROTA_NUM_NODES"], seen["ROTA_NODE_RANK"]) == ("1", "0")
        assert seen["ROTA_GPUS_PER_NODE"] == "2"
        assert seen["MASTER_ADDR"] == seen["ROTA_MASTER_ADDR"] == "127.0.0.1"
        assert seen["MASTER_PORT"] == seen["ROTA_MASTER_PORT"] == str(int(seen["MASTER_PORT"]))
        assert Path(seen["ROTA_CHECKPOINT_DIR"]).is_dir()
        assert len(seen["cores"]) == 1
    assert json.loads((base / "env0").read_text())["cores"] != seen["cores"]


def test_a_worker_looks_for_no_garbage_in_what_was_loaded_before_it(shared_cluster, base):
    (base / "look.py").write_text(
        "import gc, sys\n"
        "assert 'torch' in sys.modules\n"
        "assert gc.isenabled()\n"
        "assert gc.get_freeze_count() > 10 * len(gc.get_objects())\n"
    )
    shared_cluster.ends(shared_cluster.submit("python look.py"))


def test_without_a_server_the_session_is_a_no_op(tmp_path):
    command = [sys.executable, SCRIPTS / "train.py", "--out", tmp_path, "--steps", "20"]
    subprocess.run(command, check=True)
    lines = [json.loads(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == ["start", "end"]
    assert (tmp_path / "step0").stat().st_size == 20
