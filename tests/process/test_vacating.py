"""Suspended jobs give up their processes, and go on in others as if nothing had happened."""

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rota.folder import Folder
from rota.live.agent import memory
from rota.live.agent import spill_to_arena as vacating
from rota.live.agent.rank import Rank
from rota.live.agent.spill_to_arena import Vacating
from rota.model.job import FRESH, WARM
from support.lone_agent import LoneAgent

from .conftest import DEADLINE_S, SCRIPTS, all_are_at, until
from .states import differences, equal, outcome, weights

pytestmark = pytest.mark.usefixtures("holding")


class Job:
    """One run of a training script on an agent, with its folder."""

    def __init__(
        self,
        agent: LoneAgent,
        out: Path,
        gpus: int,
        *words: object,
        script: str = "vacated.py",
        max_gpus: int = 1,
        fault: tuple[str, int] | None = None,
        start: str = WARM,
    ) -> None:
        self.agent, self.out, self.gpus = agent, out, gpus
        out.mkdir(exist_ok=True)
        env, scripts = {}, [SCRIPTS / script]
        if fault is not None:
            env = {"FAULT": fault[0], "FAULT_SLOT": str(fault[1]), "FAULT_ARMED": f"{out}/armed"}
            scripts.insert(0, SCRIPTS / "vacating_faults.py")
        run = " ".join(map(str, ["python", *scripts, "--out", out, *words]))
        answer = agent.launch(run, list(range(gpus)), max_gpus, env=env, start=start)
        assert answer["type"] == "done", answer
        self.attempt = agent.attempt

    def until_at(self, gate: int) -> None:
        """Wait until rank 0 waits in this step, and the others have come to it."""

        def there() -> bool:
            assert self.attempt.ended is None, self.logs()
            return all_are_at(self.out, gate)

        until(there, f"step {gate}")
        until(lambda: self.attempt.cooperates, "the agent has heard of each rank's session")

    def vacates_at(self, gate: int) -> dict[str, Any]:
        """Suspend at the end of this step, and end the processes; the answer."""
        self.until_at(gate)
        number = self.begin("suspend", vacate=True)
        self.agent.heeded()
        (self.out / f"go{gate}").touch()
        return self.agent.answer(number)

    def begin(self, kind: str, **fields: Any) -> int:
        names = {"job_id": self.attempt.job_id, "attempt": self.attempt.number}
        return self.agent.begin(kind, **names, **fields)

    def resumes(self) -> dict[str, Any]:
        """Go on; the answer."""
        return self.agent.answer(self.begin("resume", gpus=list(range(self.gpus))))

    def succeeds(self) -> None:
        """Wait for the end of the attempt, which is a good one."""
        until(lambda: self.attempt.ended is not None, "the job ends")
        assert self.attempt.ended.get("exit_code") == 0, (self.attempt.ended, self.logs())
        assert self.arenas() == []

    def end(self, rank: int = 0) -> dict[str, Any]:
        """All of the state at the end of training."""
        name = f"end{rank}.pt" if (self.out / f"end{rank}.pt").exists() else "end.pt"
        return torch.load(self.out / name, weights_only=False)

    def arenas(self) -> list[Path]:
        """The files with its state."""
        names = f"{self.attempt.job_id}-{self.attempt.number}-*"
        folder = self.agent._agent._arenas
        return sorted([*folder.glob(names), *self.attempt.folder.glob(names)])

    def pids(self, rank: int = 0) -> list[int]:
        return list(map(int, (self.out / f"pids{rank}").read_text().split()))

    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.attempt.folder.glob("*.log")))


def gates(*steps: int) -> list[object]:
    return [word for step in steps for word in ("--gate", step)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("gpus", "words", "start"),
    [
        (1, (), FRESH),
        (1, ("--amp",), WARM),
        (1, ("--accumulate", 3), WARM),
        (2, (), WARM),
        (2, ("--amp", "--accumulate", 2), FRESH),
    ],
    ids=["one", "one-amp", "one-accumulates", "gang", "gang-amp-accumulates"],
)
def test_training_ends_with_the_same_bits_in_whichever_process(launch, gpus, words, start):
    alone = launch(gpus, *words)
    job = launch(gpus, *words, *gates(0, 3, 4, 10), start=start)
    for gate in (0, 3, 4, 10):
        answer = job.vacates_at(gate)
        assert answer["type"] == "done", (answer, job.logs())
        assert answer["kept"] is None, (answer, job.logs())
        assert not any(rank.alive for rank in job.attempt.ranks)
        assert len(job.arenas()) == gpus
        assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    alone.succeeds()
    for rank in range(gpus):
        assert len(set(job.pids(rank))) == 5
        assert not differences(job.end(rank), alone.end(rank))


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (1, ("--loop", "epochs")),
        (1, ("--workers", 1, "--amp")),
        (2, ("--amp",)),
        (2, ("--loop", "epochs", "--optimizer", "sgd")),
    ],
    ids=["epochs", "workers-amp", "gang-amp", "gang-epochs-sgd"],
)
def test_training_with_a_loader_ends_with_the_same_bits_in_whichever_process(launch, gpus, words):
    more = {"script": "elastic.py", "max_gpus": 4}
    alone = launch(1, *words, **more)
    job = launch(gpus, *words, *gates(1, 4, 8), **more)
    for gate in (1, 4, 8):
        answer = job.vacates_at(gate)
        assert answer.get("kept", "") is None, (answer, job.logs())
        assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    alone.succeeds()
    assert not differences(outcome(job.end()), outcome(alone.end()))


def test_no_more_is_written_down_than_training_holds_at_the_boundary(launch):
    """Parameters, buffers and the optimiser's state; neither gradients nor activations."""
    hidden = 40_000
    job = launch(1, "--hidden", hidden, *gates(4))
    assert job.vacates_at(4)["type"] == "done"
    (arena,) = job.arenas()
    written = arena.stat().st_size
    job.resumes()
    job.succeeds()
    parameters = 4 * (6 * hidden + hidden + 2 * hidden + 3 * hidden + 3)
    held = 3 * parameters + 4 * 2 * hidden  # with two moments of AdamW, and of the batches
    assert held <= written <= held + 64 * 1024


def test_a_gang_is_resized_after_it_came_back(launch):
    more = {"script": "elastic.py", "max_gpus": 4}
    alone = launch(1, **more)
    job = launch(2, *gates(2, 5), **more)
    assert job.vacates_at(2)["kept"] is None
    assert job.resumes()["type"] == "done", job.logs()
    job.until_at(5)
    number = job.begin("resize", gpus=[0])
    job.agent.heeded()
    (job.out / "go5").touch()
    assert job.agent.answer(number)["type"] == "done", job.logs()
    job.succeeds()
    alone.succeeds()
    assert not differences(outcome(job.end()), outcome(alone.end()))


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("--unprepared",), "s.prepare")],
)
def test_a_job_that_can_not_be_written_down_keeps_its_processes(launch, words, reason):
    job = launch(1, *words, *gates(3))
    answer = job.vacates_at(3)
    assert answer["type"] == "done"
    assert answer["vacated"] is None
    assert reason in answer["kept"]
    assert job.arenas() == []
    assert job.resumes()["type"] == "done"
    job.succeeds()
    assert len(job.pids()) == 1


def test_a_program_that_ends_before_it_goes_on_has_ended(launch):
    job = launch(1, "--ends-at-once", *gates(3))
    assert job.vacates_at(3)["kept"] is None
    job.begin("resume", gpus=[0])
    until(lambda: job.attempt.ended is not None, "it ends")
    assert job.attempt.ended["exit_code"] == 7
    assert job.arenas() == []


def test_a_vacated_job_that_is_stopped_leaves_nothing(launch):
    job = launch(1, *gates(3))
    assert job.vacates_at(3)["kept"] is None
    job.begin("stop")
    until(lambda: job.attempt.ended is not None, "it ends")
    assert job.attempt.ended["exit_code"] == -signal.SIGTERM
    assert job.attempt.ended["stop_asked"]
    assert job.arenas() == []


@pytest.mark.parametrize("gpus", [1, 2])
def test_without_room_in_host_memory_the_state_goes_to_the_disk_at_once(launch, gpus):
    alone = launch(gpus)
    job = launch(gpus, *gates(3), fault=("full:half-after", gpus - 1))
    (job.out / "armed").touch()
    answer = job.vacates_at(3)
    assert answer["kept"] is None
    assert {path.parent for path in job.arenas()} == {job.attempt.folder}
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    alone.succeeds()
    for rank in range(gpus):
        assert not differences(job.end(rank), alone.end(rank))


def test_a_rank_that_begins_late_leaves_no_state_where_another_found_no_room(launch, monkeypatch):
    send, held = Rank.send, []

    def late(rank, message):
        """Rank 0 hears of the first place only when it is told the second one."""
        if rank.index == 0 and message["type"] == "vacate" and not held:
            held.append(message)
            return
        if rank.index == 0 and message["type"] == "vacate":
            send(rank, held[0])
        send(rank, message)

    monkeypatch.setattr(Rank, "send", late)
    job = launch(2, *gates(3), fault=("full:half-after", 1))
    (job.out / "armed").touch()
    assert job.vacates_at(3)["kept"] is None
    assert [path.parent for path in job.arenas()] == [job.attempt.folder] * 2
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()


def test_a_rank_that_begins_late_leaves_nothing_if_there_is_no_room_anywhere(launch, monkeypatch):
    send, held = Rank.send, []

    def never(rank, message):
        """Rank 0 hears of no place before rank 1 has found room in none."""
        if rank.index == 0 and message["type"] == "vacate":
            held.append((rank, message))
        else:
            send(rank, message)

    monkeypatch.setattr(Rank, "send", never)
    job = launch(2, *gates(3), fault=("full-for-good:header-before", 1))
    (job.out / "armed").touch()
    assert job.vacates_at(3)["vacated"] is None
    heard, written = Vacating.heard, []

    def count(self, slot, message):
        heard(self, slot, message)
        written.append(message["type"])

    monkeypatch.setattr(Vacating, "heard", count)
    for rank, message in held:
        send(rank, message)
    until(lambda: len(written) == len(held), "rank 0 has written both")
    assert set(written) == {"written"}
    assert job.arenas() == []
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()


@pytest.mark.parametrize("gpus", [1, 2])
def test_without_room_anywhere_the_state_stays_in_the_processes(launch, gpus):
    job = launch(gpus, *gates(3), fault=("full-for-good:header-before", gpus - 1))
    (job.out / "armed").touch()
    answer = job.vacates_at(3)
    assert answer["vacated"] is None
    assert "No space left on device" in answer["kept"]
    until(lambda: job.arenas() == [], "what the other rank wrote is removed")
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    assert [len(job.pids(rank)) for rank in range(gpus)] == [1] * gpus


def crowded(base: Path) -> LoneAgent:
    """An agent whose suspended jobs may hold next to nothing."""
    return LoneAgent(base / "agent", host_memory_bytes=1 << 12)


def where(job: Job) -> str:
    return job.attempt.memory()["memory"]["where"]


def is_spilled(job: Job) -> bool:
    """Whether its state is on the disk, and nowhere else."""
    arenas = job.arenas()
    return where(job) == "disk" and {path.parent for path in arenas} == {job.attempt.folder}


def suspends_at(job: Job, gate: int) -> None:
    job.until_at(gate)
    number = job.begin("suspend")
    job.agent.heeded()
    (job.out / f"go{gate}").touch()
    assert job.agent.answer(number)["type"] == "done"


def test_jobs_beyond_the_budget_are_vacated_spilled_and_come_back(tmp_path):
    with crowded(tmp_path) as agent:
        alone = Job(agent, tmp_path / "alone", 1)
        alone.succeeds()
        jobs = [Job(agent, tmp_path / f"job{i}", 1, *gates(2 + i, 8)) for i in range(3)]
        for i, job in enumerate(jobs):
            suspends_at(job, 2 + i)
        for job in jobs:
            until(lambda job=job: is_spilled(job), "its arena is on the disk")
            assert not any(rank.alive for rank in job.attempt.ranks)
        for job in jobs:
            assert job.resumes()["type"] == "done", job.logs()
            suspends_at(job, 8)
            until(lambda job=job: is_spilled(job), "it is on the disk again")
        for job in jobs:
            assert job.resumes()["type"] == "done", job.logs()
            job.succeeds()
            assert not differences(job.end(), alone.end())


def test_the_longest_suspended_give_way_first_and_only_as_many_as_must(tmp_path, monkeypatch):
    held = {}
    monkeypatch.setattr(memory, "held_by", lambda attempt: held[attempt.job_id][attempt.is_vacated])
    with LoneAgent(tmp_path / "agent", host_memory_bytes=100) as agent:
        jobs = []
        for i in range(3):
            jobs.append(Job(agent, tmp_path / f"job{i}", 1, *gates(2)))
            held[jobs[i].attempt.job_id] = (40, 20)
            suspends_at(jobs[i], 2)
        until(lambda: where(jobs[0]) == "memory", "the first is vacated")
        assert [where(job) for job in jobs] == ["memory", "processes", "processes"]


def test_a_full_disk_is_an_error_on_that_job_and_harms_no_other(tmp_path, monkeypatch):
    copy_file = memory.copy_file
    full = True

    def copy(source, target):
        if full and jobs[0].attempt.folder == target.parent:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy_file(source, target)

    monkeypatch.setattr(memory, "copy_file", copy)
    with crowded(tmp_path) as agent:
        jobs = [Job(agent, tmp_path / f"job{i}", 1, *gates(2, 5)) for i in range(2)]
        for job in jobs:
            suspends_at(job, 2)
        until(lambda: is_spilled(jobs[1]), "the other is on the disk")
        told = jobs[0].attempt.memory()["memory"]
        assert told["where"] == "memory"
        assert "No space left on device" in told["error"]
        full = False
        for job in jobs:
            assert job.resumes()["type"] == "done"
            suspends_at(job, 5)
            until(lambda job=job: is_spilled(job), "it is on the disk now")
            assert job.attempt.memory()["memory"]["error"] is None
            assert job.resumes()["type"] == "done"
            job.succeeds()


def test_an_arena_that_was_damaged_on_the_disk_is_not_gone_on_from(tmp_path):
    with crowded(tmp_path) as agent:
        job = Job(agent, tmp_path / "job", 1, *gates(2))
        suspends_at(job, 2)
        until(lambda: is_spilled(job), "its arena is on the disk")
        (arena,) = job.arenas()
        with open(arena, "r+b") as file:
            file.seek(4100)
            file.write(b"x")
        job.begin("resume", gpus=[0])
        until(lambda: job.attempt.ended is not None, "it ends")
        assert job.attempt.ended["type"] == "lost"
        assert "is damaged" in job.attempt.ended["error"]
        assert len(job.pids()) == 1


POINTS_BEFORE_THE_ARENAS_ARE_WHOLE = [
    "offload-before",
    "suspended-after",
    "write-before",
    "half-after",
    "header-before",
    "header-after",
    "told-before",
]
POINTS_WITH_ARENAS = ["end-before"]
POINTS_OF_THE_RETURN = ["adopt-before", "adopt-after", "came-before"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("point", POINTS_BEFORE_THE_ARENAS_ARE_WHOLE)
def test_a_worker_killed_before_its_state_is_safe_is_lost_and_leaves_nothing(launch, gpus, point):
    """The controller starts a new attempt of a job that is lost, from its last checkpoint."""
    job = launch(gpus, *gates(3), fault=(f"kill:{point}", gpus - 1))
    (job.out / "armed").touch()
    job.until_at(3)
    job.begin("suspend", vacate=True)
    job.agent.heeded()
    (job.out / "go3").touch()
    until(lambda: job.attempt.ended is not None, "it ends")
    assert job.attempt.ended["type"] == "lost", job.attempt.ended
    assert "suspended" in job.attempt.ended["error"]
    assert job.arenas() == []
    assert not any(rank.alive for rank in job.attempt.ranks)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("point", POINTS_WITH_ARENAS + POINTS_OF_THE_RETURN)
def test_a_worker_killed_while_its_state_is_in_an_arena_is_not_missed(launch, gpus, point):
    alone = launch(gpus)
    job = launch(gpus, *gates(3), fault=(f"kill:{point}", gpus - 1))
    (job.out / "armed").touch()
    assert job.vacates_at(3)["kept"] is None
    assert job.resumes()["type"] == "done", job.logs()
    assert (job.out / "fault").exists()
    job.succeeds()
    alone.succeeds()
    for rank in range(gpus):
        assert not differences(job.end(rank), alone.end(rank))


def test_a_return_whose_processes_are_always_killed_fails_and_can_be_asked_for_again(launch):
    job = launch(1, *gates(3), fault=("kill:adopt-after", 0))
    assert job.vacates_at(3)["kept"] is None
    number = job.begin("resume", gpus=[0])
    for _ in range(3):
        (job.out / "armed").touch()
        until(lambda: not (job.out / "armed").exists(), "it is killed")
    answer = job.agent.answer(number)
    assert answer["type"] == "failed"
    assert "killed 3 times" in answer["error"]
    assert job.attempt.state == "suspended"
    assert job.resumes()["type"] == "done"
    job.succeeds()


def test_an_arena_that_is_never_finished_is_given_up(launch, monkeypatch):
    monkeypatch.setattr(vacating, "WRITING_TIMEOUT_S", 0.5)
    job = launch(1, *gates(3), fault=("stop:half-after", 0))
    (job.out / "armed").touch()
    answer = job.vacates_at(3)
    assert "was not written within" in answer["kept"]
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    assert len(job.pids()) == 1


def test_a_job_goes_on_in_its_process_if_it_is_resumed_while_its_arena_is_written(launch):
    job = launch(1, *gates(3), fault=("stop:half-after", 0))
    (job.out / "armed").touch()
    job.until_at(3)
    number = job.begin("suspend", vacate=True)
    job.agent.heeded()
    (job.out / "go3").touch()
    until((job.out / "fault").exists, "it is writing")
    assert job.resumes()["type"] == "done"
    assert job.agent.answer(number)["kept"] == "the job is to go on"
    job.succeeds()
    assert len(job.pids()) == 1


def next_agent(job: Job, agent: LoneAgent, folder: Path, **options: Any) -> LoneAgent:
    """Another agent takes over from one that has died."""
    agent.join()
    successor = LoneAgent(folder, **options)
    successor.__enter__()
    key = job.attempt.job_id, job.attempt.number
    until(lambda: key in successor._agent.attempts, "it has adopted the job")
    job.agent, job.attempt = successor, successor._agent.attempts[key]
    return successor


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("point", ["half-after", "told-before", "end-before", "adopt-after"])
def test_an_agent_that_dies_leaves_a_job_that_goes_on(tmp_path, point, gpus):
    folder = tmp_path / "agent"
    with LoneAgent(folder) as agent:
        alone = Job(agent, tmp_path / "alone", gpus)
        alone.succeeds()
        job = Job(agent, tmp_path / "job", gpus, *gates(3), fault=(f"stop:{point}", gpus - 1))
        if point == "adopt-after":
            assert job.vacates_at(3)["kept"] is None
            (job.out / "armed").touch()
            job.begin("resume", gpus=list(range(gpus)))
        else:
            (job.out / "armed").touch()
            job.until_at(3)
            job.begin("suspend", vacate=True)
            job.agent.heeded()
            (job.out / "go3").touch()
        until((job.out / "fault").exists, "it is there")
        agent.vanish()
        stopped = job.pids(gpus - 1)[-1]
        successor = next_agent(job, agent, folder)
    try:
        if point in ("half-after", "told-before"):
            os.kill(stopped, signal.SIGCONT)
        until(lambda: job.attempt.state == "suspended", "it is suspended")
        until(lambda: job.resumes()["type"] == "done", "it goes on")
        job.succeeds()
        for rank in range(gpus):
            assert not differences(job.end(rank), alone.end(rank))
    finally:
        successor.__exit__()


def test_an_agent_that_dies_while_it_spills_leaves_the_arena_and_no_other_file(
    tmp_path, monkeypatch
):
    copy_file = memory.copy_file
    reached = threading.Event()

    def copy(source, target):
        copy_file(source, target)
        target.rename(target.with_name(f"{target.name}.new"))  # it does not get further
        reached.set()
        raise OSError(errno.EIO, "the agent is dead")

    monkeypatch.setattr(memory, "copy_file", copy)
    folder = tmp_path / "agent"
    with crowded(tmp_path) as agent:
        job = Job(agent, tmp_path / "job", 1, *gates(3))
        suspends_at(job, 3)
        assert reached.wait(DEADLINE_S)
        agent.vanish()
        successor = next_agent(job, agent, folder)
    try:
        assert where(job) == "memory"
        assert job.resumes()["type"] == "done"
        job.succeeds()
    finally:
        successor.__exit__()


def test_a_new_agent_has_a_budget_for_the_jobs_that_it_finds_suspended(tmp_path):
    folder = tmp_path / "agent"
    with LoneAgent(folder) as agent:
        job = Job(agent, tmp_path / "job", 2, *gates(3))
        suspends_at(job, 3)
        agent.vanish()
        successor = next_agent(job, agent, folder, host_memory_bytes=0)
    try:
        until(lambda: is_spilled(job), "its arena is on the disk")
        assert job.resumes()["type"] == "done"
        job.succeeds()
    finally:
        successor.__exit__()


def test_an_agent_removes_the_arenas_of_attempts_that_are_over(tmp_path):
    folder = tmp_path / "agent"
    with LoneAgent(folder) as agent:
        arenas = agent._agent._arenas
        agent.vanish()
        agent.join()
    spilled = folder / "nodes" / "node0" / "jobs" / "7" / "1" / "7-1-0.arena"
    spilled.parent.mkdir(parents=True)
    arenas.mkdir(parents=True)
    orphans = [arenas / "7-1-0.arena", arenas / "8-2-1.arena.new", spilled]
    for orphan in orphans:
        orphan.touch()
    gone = Folder(tmp_path / "gone").create()
    homeless = gone.arenas("node0").parent
    gone.path.rmdir()
    with LoneAgent(folder):
        until(lambda: not any(orphan.exists() for orphan in orphans), "they are removed")
        until(lambda: not homeless.exists(), "and what is of a cluster that is gone")
    until(lambda: not arenas.parent.exists(), "and so is their folder")


def test_a_cluster_without_host_memory_for_them_keeps_suspended_jobs_on_the_disk(make_cluster):
    cluster = make_cluster(options=("--host-memory", "0"))
    alone = cluster.train("alone", "--steps", 120)
    cluster.ends(alone)
    vacated = []
    for out, gpus in [("job", 1), ("gang", 2)]:
        job = cluster.train(out, "--steps", 120, "--gate", 20, gpus=gpus)
        cluster.suspend_at(job, out, 20)
        until(
            lambda job=job: (cluster.show(job)["memory"] or {}).get("where") == "disk",
            "it is on the disk",
        )
        assert not cluster.of_job(job)
        vacated.append(job)
    plain = cluster.submit("sleep 1000")
    cluster.until_state(plain, "RUNNING")
    cluster.client.suspend(plain)
    kept = until(lambda: (cluster.show(plain)["memory"] or {}).get("error"), "it says why")
    assert kept.endswith("was stopped where it was, and not at a boundary")
    old = cluster.agent()
    cluster.kill(old)
    for job in vacated:
        cluster.client.resume(job)
        assert cluster.ends(job)["attempt"] == 1
    cluster.client.cancel(plain)
    assert equal(weights(cluster.base / "job"), weights(cluster.base / "alone"))
    assert len({line["pid"] for line in cluster.lines("job")}) == 2
    assert [line["what"] for line in cluster.lines("job")][:2] == ["start", "suspended"]


def test_jobs_take_turns_from_the_disk_and_end_with_the_weights_of_an_uninterrupted_run(
    make_cluster,
):
    options = ("--host-memory", "0")
    cluster = make_cluster("gandiva", gpus=1, quantum_s=1.0, pack="off", options=options)
    outs = [f"turns{i}" for i in range(3)]
    jobs = [cluster.train(out, "--until", "--steps", 10**6) for out in outs]

    def has_given_way(out: str) -> bool:
        return any(line["what"] == "suspended" for line in cluster.lines(out))

    until(lambda: all(map(has_given_way, outs)), "each has had a turn")
    for out in outs:
        (cluster.base / out / "enough").touch()
    for out, job in zip(outs, jobs, strict=True):
        show = cluster.ends(job)
        assert (show["attempt"], show["preemptions"] > 0) == (1, True)
        alone = cluster.train(f"{out}_alone", "--steps", cluster.step(out), "--pace", 0)
        cluster.ends(alone)
        assert equal(weights(cluster.base / out), weights(cluster.base / f"{out}_alone"))
    assert not list(cluster.folder.path.glob("nodes/*/jobs/*/*/*.arena*"))
