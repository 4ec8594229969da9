"""Jobs without the library go on from checkpoints of their own, in new processes."""

import asyncio
import json
import threading
from pathlib import Path

import psutil
import pytest

from rota.live.agent.restarting import Restarting
from rota.live.agent.restore_from_arena import Returning
from support.lone_agent import LoneAgent

from .conftest import DEADLINE_S, SCRIPTS, Cluster, node_of, until

COUNT = 200
TOTAL = COUNT * (COUNT - 1) // 2


class Counting:
    """One run of the counting program on a cluster."""

    def __init__(self, cluster: Cluster, name: str, *words: object, **fields: object) -> None:
        self.cluster, self.out = cluster, cluster.base / name
        self.out.mkdir()
        words = words or (COUNT, self.out)
        self.total = int(words[0]) * (int(words[0]) - 1) // 2
        run = " ".join(map(str, ["python", SCRIPTS / "saves.py", *words]))
        wish = {"suspend": "restart", "grace": 20, "name": name}
        run = str(fields.pop("before", "")) + run + str(fields.pop("after", ""))
        self.job = cluster.submit(run, **wish | fields)

    def told(self, what: str = "", rank: int = 0) -> list[dict]:
        file = self.out / f"told{rank}"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in map(json.loads, lines) if what in ("", line["what"])]

    def at(self, rank: int = 0) -> int:
        file = self.out / f"at{rank}"
        return int(file.read_text() or 0) if file.exists() else 0

    def until_at(self, number: int, rank: int = 0) -> None:
        until(lambda: self.at(rank) >= number, f"{self.out.name} has counted to {number}")

    def suspends(self) -> dict:
        self.cluster.client.suspend(self.job)
        return self.cluster.until_state(self.job, "SUSPENDED")

    def resumes(self) -> dict:
        self.cluster.client.resume(self.job)
        return self.cluster.until_state(self.job, "RUNNING")

    def finishes(self) -> None:
        """Let it come to its end."""
        (self.out / "finish").touch()

    def succeeds(self, rank: int = 0) -> dict:
        self.finishes()
        show = self.cluster.ends(self.job)
        assert self.told("double", rank) == []
        assert (self.out / f"result{rank}").read_text() == str(self.total)
        return show


def test_jobs_that_take_turns_go_on_from_their_checkpoints(make_cluster):
    cluster = make_cluster("gandiva", gpus=1, quantum_s=0.7, pack="off")
    jobs = [Counting(cluster, f"turns{i}") for i in range(2)]
    until(lambda: all(job.told("saved") for job in jobs), "both have had a turn")
    for job in jobs:
        job.finishes()
    shows = [job.succeeds() for job in jobs]
    assert sum(show["preemptions"] for show in shows) >= 2
    assert max(len(job.told("start")) for job in jobs) > 1
    for job, show in zip(jobs, shows, strict=True):
        starts = job.told("start")
        assert (show["attempt"], show["suspension"]) == (1, "RESTART")
        assert "it asked for that" in show["suspension_why"]
        assert len({start["pid"] for start in starts}) == len(starts)
        assert len(starts) - show["preemptions"] in (0, 1)  # 0: it ended as it was suspended
        assert {start["ROTA_ATTEMPT"] for start in starts} == {"1"}
        assert len({start["ROTA_CHECKPOINT_DIR"] for start in starts}) == 1
        saved = 0
        for line in job.told():  # nothing is counted twice: it goes on exactly where it saved
            if line["what"] == "start":
                assert line["at"] == saved
            elif line["what"] == "saved":
                saved = line["at"]


@pytest.mark.parametrize("status", [0, 3])
def test_however_it_exits_when_it_is_asked_to_it_has_not_ended(shared_cluster, base, status):
    job = Counting(shared_cluster, "job", COUNT, base / "job", status)
    for number in (20, 40):
        job.until_at(number)
        show = job.suspends()
        assert (show["gpus"], show["ranks"][0]["pid"]) == ([], None)
        assert show["memory"]["where"] == "checkpoint"
        assert shared_cluster.of_job(job.job) == []
        pid = job.resumes()["ranks"][0]["pid"]
        until(lambda: job.told("start")[-1]["pid"] == pid, "it has started")  # noqa: B023
    show = job.succeeds()
    assert (show["attempt"], len(job.told("start"))) == (1, 3)
    assert show["suspension"] == "RESTART"
    assert len({line["pid"] for line in job.told("start")}) == 3


@pytest.mark.parametrize("way", ["stay", "ignore"])
def test_who_has_not_ended_within_the_grace_is_killed(shared_cluster, base, way):
    job = Counting(shared_cluster, "job", COUNT, base / "job", way, grace=0.3)
    job.until_at(30)
    job.suspends()
    assert shared_cluster.of_job(job.job) == []
    assert job.told("saved") == []
    assert len(job.told("stays")) == (way == "stay")
    job.resumes()
    assert job.succeeds()["attempt"] == 1
    assert job.told("start")[1]["at"] > 0


def test_the_grace_is_for_children_too_and_none_of_them_is_left(shared_cluster, base):
    # SIGTERM ends bash at once; the program that it waits for still has to save.
    words = (COUNT, base / "job")
    daemon = "(setsid bash -c 'trap \"\" TERM; while :; do sleep 0.01; done' &)\n"
    job = Counting(shared_cluster, "job", *words, before=daemon, after="\necho end\n", grace=1)
    job.until_at(30)
    (base / "job" / "hold").touch()
    shared_cluster.client.suspend(job.job)
    until((base / "job" / "held0").exists, "it has been asked to end")
    worker = shared_cluster.pids(job.job)["worker"]
    until(lambda: worker not in [p.pid for p in shared_cluster.of_job(job.job)], "bash has ended")
    (base / "job" / "hold").unlink()
    shared_cluster.until_state(job.job, "SUSPENDED")
    assert shared_cluster.of_job(job.job) == []
    (saved,) = job.told("saved")
    job.resumes()
    job.succeeds()
    assert job.told("start")[1]["at"] == saved["at"]
    assert "".join(shared_cluster.client.logs(job.job)) == "end\n"


def test_a_gang_ends_and_starts_as_a_whole(shared_cluster, base):
    job = Counting(shared_cluster, "job", resources={"gpus": 2})
    for rank in (0, 1):
        job.until_at(30, rank)
    job.suspends()
    job.resumes()
    job.succeeds()
    for rank in (0, 1):
        assert (job.out / f"result{rank}").read_text() == str(TOTAL)
        assert len(job.told("start", rank)) == 2


def test_one_process_with_all_gpus_of_the_job_comes_back(shared_cluster, base):
    job = Counting(shared_cluster, "job", resources={"gpus": 2}, processes="node")
    job.until_at(30)
    job.suspends()
    job.resumes()
    job.succeeds()
    assert len(job.told("start")) == 2


def held(cluster: Cluster, name: str = "job", **fields: object) -> Counting:
    """A job that was asked to end, and does not before its file ``hold`` is gone."""
    job = Counting(cluster, name, **fields)
    job.until_at(20)
    (job.out / "hold").touch()
    cluster.client.suspend(job.job)
    until((job.out / "held0").exists, "it has been asked to end")
    return job


def goes_on(job: Counting) -> None:
    """It is suspended as the same attempt, has no processes, and goes on where it saved."""
    show = job.cluster.until_state(job.job, "SUSPENDED")
    assert job.cluster.of_job(job.job) == []
    assert (show["attempt"], show["suspension"]) == (1, "RESTART")
    assert "it asked for that" in show["suspension_why"]
    saved = job.told("saved")[-1]["at"]
    job.resumes()
    job.succeeds()
    assert [line["at"] for line in job.told("start")] == [0, saved]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("who", ["agent", "controller", "both"])
def test_who_is_killed_in_the_grace_asks_again(make_cluster, who):
    cluster = make_cluster(gpus=1)
    job = held(cluster, grace=60)
    victims = [cluster.agent()] if who != "controller" else []
    victims += [cluster.controller()] if who != "agent" else []
    cluster.kill(*victims)
    if who != "agent":
        cluster.up()
    until(lambda: all(n["connected"] for n in cluster.client.nodes()), "it is back")
    assert cluster.show(job.job)["state"] == "SUSPENDING"
    (job.out / "hold").unlink()
    goes_on(job)


def test_the_grace_is_not_longer_for_the_end_of_an_agent(make_cluster):
    cluster = make_cluster(gpus=1)
    job = Counting(cluster, "job", COUNT, cluster.base / "job", "ignore", grace=2)
    job.until_at(30)
    cluster.client.suspend(job.job)
    cluster.until_state(job.job, "SUSPENDING")
    cluster.kill(cluster.agent())
    cluster.until_state(job.job, "SUSPENDED")
    assert cluster.of_job(job.job) == []
    job.resumes()
    assert job.succeeds()["attempt"] == 1


def test_a_shim_that_is_killed_in_the_grace_leaves_nobody_behind(shared_cluster, base):
    orphan = "(setsid bash -c 'trap \"\" TERM; while :; do sleep 0.01; done' &)\n"
    job = held(shared_cluster, before=orphan, grace=60)
    shared_cluster.kill(shared_cluster.pids(job.job)["shim"])
    show = shared_cluster.until_state(job.job, "SUSPENDED")
    assert (show["attempt"], shared_cluster.of_job(job.job)) == (1, [])
    (job.out / "hold").unlink()
    job.resumes()
    job.succeeds()


@pytest.mark.parametrize("when", ["in the grace", "suspended"])
def test_a_job_can_be_cancelled_at_any_time(shared_cluster, base, when):
    job = held(shared_cluster, grace=60)
    if when == "suspended":
        (job.out / "hold").unlink()
        shared_cluster.until_state(job.job, "SUSPENDED")
    shared_cluster.client.cancel(job.job)
    (job.out / "hold").unlink(missing_ok=True)
    shared_cluster.ends(job.job, "CANCELLED")
    assert shared_cluster.of_job(job.job) == []
    assert not (job.out / "result0").exists()


def test_a_cancelled_job_keeps_its_grace_until_it_is_cancelled_at_once(shared_cluster, base):
    job = Counting(shared_cluster, "job", grace=40)
    job.until_at(20)
    (job.out / "hold").touch()
    shared_cluster.client.cancel(job.job)
    until((job.out / "held0").exists, "it has been asked to end")
    worker = psutil.Process(shared_cluster.pids(job.job)["worker"])
    assert not shared_cluster.client.cancel(job.job)["changed"]
    assert shared_cluster.client.cancel(job.job, now=True)["changed"]
    assert shared_cluster.ends(job.job, "CANCELLED")["exit_code"] == -9
    assert not worker.is_running()
    assert not job.told("saved")


def test_a_job_over_its_time_limit_saves_in_its_grace(shared_cluster, base):
    job = Counting(shared_cluster, "job", grace=40, time_limit=1)
    (job.out / "hold").touch()
    until((job.out / "held0").exists, "it has been asked to end")
    (job.out / "hold").unlink()
    ended = shared_cluster.ends(job.job, "TIMEOUT")
    assert ended["message"] == "its time limit of 1s was over; it saved rank0.json"
    assert ended["exit_code"] == 0
    assert len(job.told("saved")) == 1


@pytest.mark.parametrize("instead", ["file", "link"])
def test_who_loses_its_folder_waits_is_told_the_fix_and_goes_on_when_it_is_there(
    shared_cluster, base, instead
):
    job = Counting(shared_cluster, "job")
    job.until_at(20)
    job.suspends()
    folder = Path(job.told("start")[0]["ROTA_CHECKPOINT_DIR"])
    kept = folder.rename(folder.with_name(f"kept-{instead}"))
    if instead == "file":
        folder.write_text("not a folder")
        what = "it is no folder"
    else:
        folder.symlink_to("nowhere")
        what = "it is a link to nowhere, which is no folder"
    shared_cluster.client.resume(job.job)
    said = until(
        lambda: [
            line["line"]
            for line in shared_cluster.client.story(job.job)
            if f"ROTA_CHECKPOINT_DIR {folder} can't be used: {what}; put the folder" in line["line"]
        ],
        "it says why it can't go on",
    )
    assert said[0].startswith("resume failed: ")
    folder.unlink()
    if instead == "file":
        kept.rename(folder)
    else:
        folder.symlink_to(kept)  # a folder elsewhere will do
    show = job.succeeds()
    assert (show["attempt"], job.told("start")[1]["at"]) == (1, job.told("saved")[0]["at"])


def test_it_goes_on_on_another_node(make_cluster):
    cluster = make_cluster(nodes=2, gpus=1)
    job = Counting(cluster, "job")
    job.until_at(30)
    source = node_of(cluster.show(job.job))
    job.suspends()
    blocker = cluster.submit("while :; do sleep 0.05; done")
    assert node_of(cluster.until_state(blocker, "RUNNING")) == source
    target = node_of(job.resumes())
    assert target != source
    show = job.succeeds()
    cluster.client.cancel(blocker)
    assert (show["attempt"], show["migrations"]) == (1, 1)
    first, second = job.told("start")
    assert (first["ROTA_NODE"], second["ROTA_NODE"]) == (source, target)
    assert first["ROTA_CHECKPOINT_DIR"] == second["ROTA_CHECKPOINT_DIR"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["SIGTERM", "suspended", "started anew"])
def test_an_agent_that_dies_half_way_leaves_one_attempt_to_the_next(tmp_path, monkeypatch, point):
    reached = threading.Event()

    def die(*_: object) -> None:
        reached.set()
        raise asyncio.CancelledError

    def starts() -> list[int]:
        file = tmp_path / "told0"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["pid"] for line in lines if '"start"' in line]

    run = f"python {SCRIPTS / 'saves.py'} {COUNT} {tmp_path}"
    with LoneAgent(tmp_path / "agent") as agent:
        wish = {"suspend": "restart", "grace_s": 20.0}
        assert agent.launch(run, [0], 1, **wish)["type"] == "done"
        until((tmp_path / "at0").exists, "it counts")
        with monkeypatch.context() as patch:
            if point == "SIGTERM":
                patch.setattr(Restarting, "_ask", die)
            elif point == "suspended":
                patch.setattr(Restarting, "ended", lambda _: reached.set())
            else:
                assert agent.command("suspend")["type"] == "done"
                patch.setattr(Returning, "_check_came", die)
            kind = "resume" if point == "started anew" else "suspend"
            agent.begin(kind, **({"gpus": [1]} if kind == "resume" else {}))
            assert reached.wait(DEADLINE_S)
            if point == "started anew":
                until(lambda: len(starts()) == 2, "it runs again")
            agent.vanish()
            agent.join()
    with LoneAgent(tmp_path / "agent") as agent:
        until(lambda: agent._agent.attempts, "the attempt is adopted")
        assert agent.command("suspend")["type"] == "done"
        until(lambda: not any(psutil.pid_exists(pid) for pid in starts()), "no process is left")
        (tmp_path / "finish").touch()
        assert agent.command("resume", gpus=[1])["type"] == "done"
        until(lambda: agent.attempt.ended is not None, "it ends")
        assert agent.attempt.ended["exit_code"] == 0
    assert (tmp_path / "result0").read_text() == str(TOTAL)
    assert len(starts()) == (3 if point == "started anew" else 2)


def test_a_training_that_pauses_at_its_boundaries_is_not_restarted(shared_cluster, base):
    cluster = shared_cluster
    job = cluster.train("job", "--steps", 100000, suspend="restart")
    cluster.until_step_advances("job")
    cluster.client.suspend(job)
    show = cluster.until_state(job, "SUSPENDED")
    assert (show["suspension"], show["suspend"]) == ("BOUNDARY", "restart")
    assert show["suspension_why"] == "all its ranks use rota.train"
    cluster.client.resume(job)
    cluster.until_step_advances("job")
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    assert len({line["pid"] for line in cluster.lines("job")}) == 1


def test_a_session_that_has_been_closed_leaves_it_to_the_restart(shared_cluster, base):
    cluster = shared_cluster
    job = cluster.train("job", "--steps", 5, "--linger", suspend="restart")
    until((base / "job" / "atend").exists, "its session is closed")
    cluster.client.suspend(job)
    show = cluster.until_state(job, "SUSPENDED")
    assert (show["suspension"], cluster.of_job(job)) == ("RESTART", [])
    cluster.opens("job", "end")
    cluster.client.resume(job)
    assert cluster.ends(job)["attempt"] == 1
    assert len({line["pid"] for line in cluster.lines("job")}) == 2
