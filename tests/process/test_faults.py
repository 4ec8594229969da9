"""Whatever is killed, no accepted job is lost, none runs twice, and the queue goes on."""

import contextlib
from collections import Counter

import psutil
import pytest

from .conftest import DEADLINE_S, Cluster, is_gone, until


def ran_once(cluster: Cluster, out: str, rank: int = 0) -> int:
    """Assert that one process ran the whole training; its pid."""
    lines = cluster.lines(out, rank)
    assert [line["what"] for line in lines if line["what"] in ("start", "end")] == ["start", "end"]
    assert len({line["pid"] for line in lines}) == 1
    return lines[0]["pid"]


class Load:
    """A cluster's jobs in every state that a fault can meet."""

    def __init__(self, cluster: Cluster) -> None:
        """One job runs (gated), one is suspended, one is frozen by an owner's wish, one waits."""
        self.cluster = cluster
        self.suspended = cluster.train("suspended", "--steps", 300, "--gate", 20)
        cluster.suspend_at(self.suspended, "suspended", 20)
        run = "echo s >> stopped; while [ ! -e go ]; do sleep 0.05; done; echo e >> stopped"
        self.stopped = cluster.submit(run)
        until((cluster.base / "stopped").exists, "it runs")
        cluster.client.suspend(self.stopped)
        cluster.until_state(self.stopped, "SUSPENDED")
        self.running = cluster.train("running", "--steps", 10**6, "--gate", 0)
        cluster.until_at("running", 0)
        cluster.opens("running", 0)
        self.short = cluster.train("short", "--steps", 250, "--gate", 200)
        cluster.until_at("short", 200)  # a launch that is cut short would take a second attempt
        self.waiting = cluster.submit("echo x >> waiting", gpus=2, processes="node")

    def lets_end(self) -> None:
        """Let those end that wait for it."""
        (self.cluster.base / "go").touch()
        self.cluster.opens("short", 200)

    def goes_on(self, *, attempt: int = 1) -> None:
        """Assert that everything ends as it should, in one attempt each."""
        cluster = self.cluster
        cluster.until_step_advances("running")
        assert cluster.show(self.running)["attempt"] == attempt
        assert cluster.show(self.suspended)["state"] == "SUSPENDED"
        assert cluster.show(self.stopped)["state"] == "SUSPENDED"
        for job in (self.suspended, self.stopped):
            cluster.client.resume(job)
        self.lets_end()
        assert cluster.ends(self.short)["attempt"] == attempt
        assert cluster.ends(self.suspended)["attempt"] == attempt
        assert cluster.ends(self.stopped)["attempt"] == attempt
        cluster.client.cancel(self.running)
        cluster.ends(self.running, "CANCELLED")
        cluster.ends(self.waiting)
        assert (cluster.base / "waiting").read_text() == "x\n"
        assert (cluster.base / "stopped").read_text() == "s\n" * attempt + "e\n"
        if attempt == 1:
            ran_once(cluster, "suspended")
            ran_once(cluster, "short")


@pytest.mark.live_path("kill-controller")
def test_training_goes_on_without_the_controller_and_is_adopted(cluster):
    load = Load(cluster)
    cluster.kill_controller()
    cluster.until_step_advances("running", by=20)
    cluster.up()
    cluster.until_state(load.running, "RUNNING")
    load.goes_on()
    assert len({line["pid"] for line in cluster.lines("running")}) == 1


@pytest.mark.live_path("kill-agent")
def test_a_killed_agent_is_replaced_and_the_next_one_adopts_everything(cluster):
    load = Load(cluster)
    old = cluster.agent()
    cluster.kill(old)
    until(lambda: cluster.agent().pid != old.pid, "there is another agent")
    load.goes_on()
    assert len({line["pid"] for line in cluster.lines("running")}) == 1


def test_controller_agent_and_zygote_killed_together_leave_the_workers_training(cluster):
    load = Load(cluster)
    cluster.kill(cluster.process.pid, cluster.agent(), *cluster.zygotes())
    cluster.until_step_advances("running", by=20)
    cluster.up()
    load.goes_on()
    assert len({line["pid"] for line in cluster.lines("running")}) == 1


def test_after_everything_was_killed_the_jobs_start_anew(cluster):
    load = Load(cluster)
    cluster.kill(*cluster.processes())
    assert not cluster.processes()
    cluster.up()
    until(lambda: cluster.show(load.running)["attempt"] == 2, "it starts anew")
    shows = {job["id"]: job for job in cluster.client.jobs(everything=True)}
    assert shows[load.suspended]["state"] == shows[load.stopped]["state"] == "HELD"
    for job in (load.suspended, load.stopped):
        cluster.client.resume(job)
    load.lets_end()
    for job in (load.short, load.suspended, load.stopped):
        assert cluster.ends(job)["attempt"] == 2
    for attempt in (1, 2):
        pids = cluster.pids(load.running, attempt=attempt)
        assert pids != cluster.pids(load.running, attempt=3 - attempt)
    cluster.client.cancel(load.running)
    cluster.ends(load.running, "CANCELLED")
    cluster.ends(load.waiting)
    assert (cluster.base / "waiting").read_text() == "x\n"


def test_a_controller_killed_right_after_it_accepted_a_job_still_runs_it_once(cluster):
    jobs = []
    for i in range(3):
        jobs.append(cluster.submit(f"echo {i} >> ran"))
        cluster.kill_controller()
        cluster.up(connected=False)
    for job in jobs:
        cluster.ends(job)
    assert Counter((cluster.base / "ran").read_text().split()) == Counter("012")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("victim", ["controller", "agent", "both"])
def test_a_kill_while_a_job_is_being_launched_starts_it_once(cluster, victim):
    """The zygotes are stopped where they are, so that the launch can't come to an end."""
    agent = cluster.agent()
    cluster.ends(cluster.train("warm", "--steps", 1))
    zygotes = cluster.zygotes()
    for zygote in zygotes:
        cluster.freeze(zygote)
    out = cluster.train("job", "--steps", 50)
    cluster.until_state(out, "STARTING")
    pattern = f"nodes/*/jobs/{out}/1/attempt.json"
    until(lambda: list(cluster.folder.path.glob(pattern)), "the agent has begun to launch it")
    if victim in ("controller", "both"):
        cluster.kill_controller()
    if victim in ("agent", "both"):
        cluster.kill(agent)
    if victim != "agent":
        cluster.up()
    else:
        until(lambda: cluster.agent().pid != agent.pid, "there is another agent")
        until(lambda: cluster.client.nodes()[0]["connected"], "it is connected")
    if victim == "controller":
        assert cluster.show(out)["state"] == "STARTING"
    else:
        until(lambda: cluster.show(out)["attempt"] == 2, "it is launched again")
    for zygote in zygotes:
        with contextlib.suppress(psutil.NoSuchProcess):
            zygote.resume()  # a zygote that was asked before its agent died forks too late
    cluster.ends(out)
    ran_once(cluster, "job")


def test_an_agent_that_dies_while_it_pauses_a_gang_leaves_a_gang_that_goes_on(cluster):
    """Rank 0 is in a long step: rank 1 holds already when the agent dies."""
    job = cluster.train("gang", "--until", "--steps", 10**6, "--gate", 20, gpus=2)
    cluster.until_at("gang", 20)
    cluster.suspend_in_step(job)
    old = cluster.agent()
    cluster.kill(old)
    cluster.opens("gang", 20)
    until(lambda: cluster.agent().pid != old.pid, "there is another agent")
    cluster.until_state(job, "SUSPENDED")
    cluster.client.resume(job)
    (cluster.base / "gang" / "enough").touch()
    cluster.ends(job)
    assert ran_once(cluster, "gang", 0) != ran_once(cluster, "gang", 1)


def test_gangs_survive_agents_that_die_at_any_moment_of_their_turns(make_cluster):
    cluster = make_cluster("gandiva", quantum_s=0.2)
    endless = ("--steps", 100_000, "--until")
    jobs = [cluster.train(f"gang{i}", *endless, gpus=2) for i in range(2)]
    for _ in range(3):
        cluster.until_step_advances("gang0", by=5)
        cluster.until_step_advances("gang1", by=5)
        old = cluster.agent()
        cluster.kill(old)
        until(lambda old=old: cluster.agent().pid != old.pid, "there is another agent")
        until(lambda: cluster.client.nodes()[0]["connected"], "it is connected")
    for i in range(2):
        (cluster.base / f"gang{i}" / "enough").touch()
    for i, job in enumerate(jobs):
        assert cluster.ends(job)["attempt"] == 1
        ran_once(cluster, f"gang{i}", 0)
        ran_once(cluster, f"gang{i}", 1)


def test_a_controller_that_dies_before_its_command_arrives_sends_it_again(cluster):
    """The agent is stopped where it is: commands are written down, and reach nobody."""
    job = cluster.train("job", "--until", "--steps", 10**6)
    cluster.until_step_advances("job")
    agent = cluster.agent()
    cluster.freeze(agent)
    launched = cluster.train("launched", "--steps", 30)
    cluster.until_state(launched, "STARTING")
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDING")
    cluster.kill_controller()
    agent.resume()
    cluster.up()
    cluster.until_state(job, "SUSPENDED")
    cluster.client.resume(job)
    cluster.ends(launched)
    (cluster.base / "job" / "enough").touch()
    cluster.ends(job)
    ran_once(cluster, "job")
    ran_once(cluster, "launched")


@pytest.mark.live_path("kill-zygote")
def test_a_killed_zygote_harms_no_worker_and_is_replaced(cluster):
    running = cluster.train("running", "--until", "--steps", 10**6)
    cluster.until_step_advances("running")
    cluster.kill(*cluster.zygotes())
    after = cluster.train("after", "--steps", 10)
    cluster.ends(after)
    (cluster.base / "running" / "enough").touch()
    cluster.ends(running)
    ran_once(cluster, "running")
    ran_once(cluster, "after")


@pytest.mark.live_path("kill-worker")
def test_a_killed_worker_is_failed_and_no_other_job_notices(cluster):
    victim = cluster.train("victim", "--steps", 10**6)
    other = cluster.train("other", "--steps", 150)
    cluster.until_step_advances("victim")
    cluster.kill(cluster.pids(victim)["worker"])
    show = cluster.ends(victim, "FAILED")
    assert (show["exit_code"], show["message"]) == (-9, "killed by SIGKILL")
    cluster.ends(other)
    ran_once(cluster, "other")


@pytest.mark.live_path("kill-shim")
def test_a_killed_shim_takes_its_worker_along_and_the_job_starts_anew(cluster):
    (cluster.base / "job.sh").write_text(
        "echo start >> log; echo $$ >> pids\n"
        "setsid sleep 1000 & echo $! >> pids\n"
        "[ $ROTA_ATTEMPT = 1 ] && sleep 1000\n"
        "echo end >> log\n"
    )
    job = cluster.submit("bash job.sh")
    forked = cluster.train("forked", "--steps", 10**6)
    cluster.until_step_advances("forked")
    until(lambda: len((cluster.base / "pids").read_text().split()) == 2, "its child runs")
    old = [psutil.Process(int(pid)) for pid in (cluster.base / "pids").read_text().split()]
    old.append(psutil.Process(cluster.pids(forked)["worker"]))
    cluster.kill(cluster.pids(job)["shim"], cluster.pids(forked)["shim"])
    show = cluster.ends(job)
    assert show["attempt"] == 2
    assert all(is_gone(process) for process in old[:2])
    assert (cluster.base / "log").read_text() == "start\nstart\nend\n"
    until(lambda: cluster.show(forked)["attempt"] == 2, "the other one starts anew too")
    assert is_gone(old[2])
    cluster.until_state(forked, "RUNNING")
    folder = cluster.folder.path
    assert len(list(folder.glob(f"nodes/*/jobs/{job}/[12]/rank0.log"))) == 2


def test_down_ends_jobs_that_are_suspended_or_being_launched_and_they_start_anew(cluster):
    suspended = cluster.train("suspended", "--steps", 10**6)
    cluster.until_step_advances("suspended")
    cluster.client.suspend(suspended)
    cluster.until_state(suspended, "SUSPENDED")
    frozen = cluster.submit("sleep 1000")
    cluster.until_state(frozen, "RUNNING")
    cluster.client.suspend(frozen)
    cluster.until_state(frozen, "SUSPENDED")
    zygotes = cluster.zygotes()
    for zygote in zygotes:
        cluster.freeze(zygote)
    launching = cluster.submit("echo x >> ran")
    cluster.until_state(launching, "STARTING")
    running = cluster.submit("sleep 1000")
    cluster.until_state(running, "STARTING")
    cluster.client._call("POST", "/shutdown")
    for zygote in zygotes:
        zygote.resume()
    cluster.process.wait(DEADLINE_S)
    until(lambda: not cluster.processes(), "nothing is left")
    cluster.up()
    for job in (suspended, frozen):
        assert cluster.show(job)["state"] == "HELD"
    cluster.ends(launching)
    assert (cluster.base / "ran").read_text() == "x\n"
    cluster.until_state(running, "RUNNING")
    cluster.client.resume(suspended)
    cluster.until_state(suspended, "RUNNING")
    assert cluster.show(suspended)["attempt"] == 2
