"""Damaged arenas, full disks, and commands that cross: one job has an error, the others none."""

import contextlib
import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.live.agent import memory
from rota.live.agent import restore_from_arena as returning
from rota.live.agent import spill_to_arena as vacating
from rota.live.agent.attempt_report import Account
from support.lone_agent import LoneAgent

from .conftest import DEADLINE_S, until
from .states import differences
from .test_vacating import Job, crowded, gates, is_spilled, next_agent, suspends_at, where

pytestmark = pytest.mark.usefixtures("holding")


def in_agent(agent: LoneAgent, call: Callable[..., object], *arguments: object) -> None:
    """Call something in the agent's own thread; returns when that has returned."""
    done = threading.Event()

    def do() -> None:
        call(*arguments)
        done.set()

    agent._loop.call_soon_threadsafe(do)
    assert done.wait(DEADLINE_S)


def leaves_nothing(job: Job) -> None:
    assert job.arenas() == []
    assert not any(rank.alive for rank in job.attempt.ranks)


# -- damaged arenas ---------------------------------------------------------------------------


def change_a_weight(arena: Path, other: Path) -> None:
    with open(arena, "r+b") as file:
        file.seek(4100)
        file.write(b"x")


def cut_short(arena: Path, other: Path) -> None:
    os.truncate(arena, 5000)


def remove(arena: Path, other: Path) -> None:
    arena.unlink()


def put_another_jobs_there(arena: Path, other: Path) -> None:
    shutil.copyfile(other, arena)


def lead_elsewhere(arena: Path, other: Path) -> None:
    arena.rename(other.with_name("elsewhere"))
    arena.symlink_to(other.with_name("elsewhere"))


def put_a_pipe_there(arena: Path, other: Path) -> None:
    arena.unlink()
    os.mkfifo(arena)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (change_a_weight, "is damaged"),
        (cut_short, "5000 bytes are left of"),
        (remove, "No such file"),
        (put_another_jobs_there, "or another job's"),
        (lead_elsewhere, "Too many levels of symbolic links"),
        (put_a_pipe_there, "it is no file"),
    ],
)
def test_a_damaged_arena_in_memory_is_not_gone_on_from_and_harms_no_other(launch, damage, says):
    job, other = launch(1, *gates(2)), launch(1, *gates(2))
    for each in (job, other):
        assert each.vacates_at(2)["kept"] is None
    (arena,), (others,) = job.arenas(), other.arenas()
    damage(arena, others)
    job.begin("resume", gpus=[0])
    until(lambda: job.attempt.ended is not None, "it ends")
    assert job.attempt.ended["type"] == "lost"
    assert says in job.attempt.ended["error"]
    leaves_nothing(job)
    with contextlib.suppress(FileNotFoundError):
        others.with_name("elsewhere").unlink()
    assert other.resumes()["type"] == "done", other.logs()
    other.succeeds()


def test_what_is_not_rotas_in_the_folder_of_arenas_keeps_no_agent_from_starting(tmp_path):
    with LoneAgent(tmp_path / "agent") as agent:
        arenas = agent._agent._arenas
        agent.vanish()
        agent.join()
    (arenas / "7-1-0.arena").mkdir(parents=True)
    (arenas / "..arena").symlink_to("/dev/zero")
    (arenas / "8-1-0.arena\n").touch()
    try:
        with LoneAgent(tmp_path / "agent") as agent:
            until(lambda: len(list(arenas.iterdir())) == 1, "the rest is removed")
            job = Job(agent, tmp_path / "job", 1, *gates(2))
            assert job.vacates_at(2)["kept"] is None
            assert job.resumes()["type"] == "done", job.logs()
            job.succeeds()
    finally:
        shutil.rmtree(arenas.parent)


# -- full disks -------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch) -> Iterator[set[str]]:
    """Ids of jobs whose record can't be written."""
    save, ids = Account.save, set()

    def refuse(attempt: Account, **options: bool) -> None:
        if attempt.job_id in ids:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(attempt, **options)

    monkeypatch.setattr(Account, "save", refuse)
    yield ids


@pytest.mark.parametrize("vacate", [False, True], ids=["in-place", "vacated"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_whose_record_cannot_be_written_stays_suspended_and_goes_on_later(
    launch, full, vacate, gpus
):
    """Going on without it, it would be taken for suspended by the next agent."""
    alone = launch(gpus)
    job = launch(gpus, *gates(3))
    if vacate:
        assert job.vacates_at(3)["kept"] is None
    else:
        suspends_at(job, 3)
    full.add(job.attempt.job_id)
    answer = job.resumes()
    assert answer["type"] == "failed"
    assert "No space left on device" in answer["error"]
    assert job.attempt.state == "suspended"
    assert where(job) == ("memory" if vacate else "processes")
    full.clear()
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    alone.succeeds()
    for rank in range(gpus):
        assert not differences(job.end(rank), alone.end(rank))


def test_a_job_on_its_way_back_whose_record_cannot_be_written_is_where_it_was(
    launch, full, monkeypatch
):
    """All its ranks are there, and the disk is full just then."""
    came = returning.Returning.came

    def fill(self: returning.Returning, slot: int) -> None:
        full.add(self._attempt.job_id)
        came(self, slot)

    alone = launch(2)
    job = launch(2, *gates(3))
    assert job.vacates_at(3)["kept"] is None
    with monkeypatch.context() as patch:
        patch.setattr(returning.Returning, "came", fill)
        answer = job.resumes()
    assert answer["type"] == "failed"
    assert "No space left on device" in answer["error"]
    until(lambda: not any(rank.alive for rank in job.attempt.ranks), "its processes are gone")
    full.clear()
    assert job.attempt.state == "suspended"
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    alone.succeeds()
    for rank in range(2):
        assert not differences(job.end(rank), alone.end(rank))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path, int], None]]:
    """Mount a file system of so many bytes on a folder. Skipped without the right to."""
    mounted: list[Path] = []

    def mount(folder: Path, size: int) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no right to mount a file system")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_without_room_for_an_arena_is_left_alone_and_the_state_kept(tmp_path, small_disk):
    least: list[int] = []
    copy_file = memory.copy_file

    def watched(source: Path, target: Path) -> None:
        try:
            copy_file(source, target)
        finally:
            status = os.statvfs(target.parent)
            least.append(status.f_bavail * status.f_frsize)

    with pytest.MonkeyPatch.context() as patch, LoneAgent(tmp_path / "agent") as agent:
        patch.setattr(memory, "copy_file", watched)
        jobs = [Job(agent, tmp_path / f"job{i}", 1, *gates(2)) for i in range(2)]
        disk = jobs[0].attempt.folder.with_name("disk")
        disk.mkdir()
        small_disk(disk, 16384)
        for job in jobs:
            assert job.vacates_at(2)["kept"] is None
        folder, jobs[0].attempt.folder = jobs[0].attempt.folder, disk
        agent._agent._memory.budget_bytes = 0
        in_agent(agent, agent._agent._memory.look)
        until(lambda: is_spilled(jobs[1]), "the other is on the disk")
        told = jobs[0].attempt.memory()["memory"]
        assert told["where"] == "memory"
        assert "No space left on device" in told["error"]
        assert least[0] > 8192
        assert list(disk.iterdir()) == []
        jobs[0].attempt.folder = folder
        for job in jobs:
            assert job.resumes()["type"] == "done", job.logs()
            job.succeeds()


# -- crossing commands ------------------------------------------------------------------------


def test_a_job_that_has_suspended_again_is_not_gone_on_from_an_older_copy(tmp_path, monkeypatch):
    """It is spilled slowly, goes on meanwhile, and is vacated again before that has ended."""
    copy_file, begun, go = memory.copy_file, threading.Event(), threading.Event()
    older: list[bytes] = []

    def slow(source: Path, target: Path) -> None:
        copy_file(source, target)
        older.append(target.read_bytes())
        begun.set()
        assert go.wait(DEADLINE_S)

    with LoneAgent(tmp_path / "agent") as agent:
        alone = Job(agent, tmp_path / "alone", 1)
        alone.succeeds()
        job = Job(agent, tmp_path / "job", 1, *gates(3, 6))
        assert job.vacates_at(3)["kept"] is None
        monkeypatch.setattr(memory, "copy_file", slow)
        agent._agent._memory.budget_bytes = 0
        in_agent(agent, agent._agent._memory.look)
        assert begun.wait(DEADLINE_S)
        assert job.resumes()["type"] == "done", job.logs()
        assert job.vacates_at(6)["kept"] is None
        monkeypatch.setattr(memory, "copy_file", copy_file)
        go.set()
        until(lambda: is_spilled(job), "the newer one is on the disk")
        assert [arena.read_bytes() for arena in job.arenas()] != older
        assert job.resumes()["type"] == "done", job.logs()
        job.succeeds()
        assert not differences(job.end(), alone.end())


@pytest.mark.parametrize("told", ["stop", "kill", "drop"])
def test_a_job_that_ends_while_its_arenas_are_checked_ends_once_and_leaves_nothing(
    tmp_path, monkeypatch, told
):
    check, begun, go = returning.read_table, threading.Event(), threading.Event()

    def slow(path: Path) -> object:
        begun.set()
        assert go.wait(DEADLINE_S)
        return check(path)

    monkeypatch.setattr(returning, "read_table", slow)
    with LoneAgent(tmp_path / "agent") as agent:
        job = Job(agent, tmp_path / "job", 2, *gates(3))
        assert job.vacates_at(3)["kept"] is None
        job.begin("resume", gpus=[0, 1])
        assert begun.wait(DEADLINE_S)
        key = {"job_id": job.attempt.job_id, "attempt": job.attempt.number}
        if told == "stop":
            job.begin("stop")
        else:
            in_agent(agent, agent._agent._obey, {"type": told, **key})
        go.set()
        until(lambda: job.attempt.ended is not None, "it ends")
        until(lambda: not job.attempt.tasks, "nothing is under way")
        ends = [m for m in agent.said if m["type"] in ("ended", "lost") and m["job_id"] == "1"]
        assert [end["exit_code"] for end in ends] == ([] if told == "drop" else [-15])
        assert len(job.pids()) == 1
        leaves_nothing(job)


def test_an_agent_that_is_told_to_end_while_it_spills_leaves_no_file(tmp_path, monkeypatch):
    copy_file, begun, go = memory.copy_file, threading.Event(), threading.Event()

    def slow(source: Path, target: Path) -> None:
        begun.set()
        assert go.wait(DEADLINE_S)
        shutil.copyfile(tmp_path / "safe", source)  # as if it had been open all the time
        copy_file(source, target)
        source.unlink()

    with crowded(tmp_path) as agent:
        monkeypatch.setattr(memory, "copy_file", slow)
        job = Job(agent, tmp_path / "job", 1, *gates(3))
        suspends_at(job, 3)
        assert begun.wait(DEADLINE_S)
        shutil.copyfile(job.arenas()[0], tmp_path / "safe")

        def end() -> None:
            job.attempt.stop()
            agent._agent._ending.set()

        in_agent(agent, end)
        go.set()
        agent.join()
        assert job.arenas() == []


def test_two_commands_to_go_on_and_one_to_suspend_meanwhile_do_so_once(launch):
    alone = launch(1)
    job = launch(1, *gates(3, 8))
    assert job.vacates_at(3)["kept"] is None
    together = threading.Event()
    job.agent._loop.call_soon_threadsafe(together.wait, DEADLINE_S)
    first, second = (job.begin("resume", gpus=[0]) for _ in range(2))
    crossing = job.begin("suspend")
    together.set()
    assert job.agent.answer(crossing)["type"] == "failed"
    assert job.agent.answer(second)["type"] == "done", (first, job.logs())
    assert len(job.pids()) == 2
    assert job.vacates_at(8)["kept"] is None
    assert job.resumes()["type"] == "done", job.logs()
    job.succeeds()
    alone.succeeds()
    assert not differences(job.end(), alone.end())


@pytest.mark.parametrize("written", [False, True], ids=["before", "after"])
def test_an_agent_that_dies_as_a_spill_ends_leaves_one_copy_and_a_true_budget(
    tmp_path, monkeypatch, written
):
    """Before or after it is written down that the state is on the disk, now."""
    moved, reached = vacating.Vacating.moved, threading.Event()

    def die(self: vacating.Vacating, *arguments: object) -> bool:
        if written:
            moved(self, *arguments)
        arenas = self._attempt.record.vacated.arenas.values()
        kept.update({Path(path): Path(path).read_bytes() for path in arenas})
        kept.update({path: path.read_bytes() for path in job.arenas()})
        reached.set()
        raise OSError(errno.EIO, "the agent is dead")

    kept: dict[Path, bytes] = {}
    folder = tmp_path / "agent"
    with crowded(tmp_path) as agent:
        monkeypatch.setattr(vacating.Vacating, "moved", die)
        job = Job(agent, tmp_path / "job", 1, *gates(3))
        suspends_at(job, 3)
        assert reached.wait(DEADLINE_S)
        agent.vanish()
        agent.join()
        monkeypatch.setattr(vacating.Vacating, "moved", moved)
        assert len(kept) == 2
        for path, data in kept.items():  # what the dead agent would not have removed
            path.write_bytes(data)
        successor = next_agent(job, agent, folder)
    try:
        assert where(job) == ("disk" if written else "memory")
        assert len(job.arenas()) == 1
        in_memory = [file.stat().st_blocks * 512 for file in job.arenas() if not written]
        assert successor._agent._memory.held_bytes() == sum(in_memory)
        assert job.resumes()["type"] == "done", job.logs()
        job.succeeds()
    finally:
        successor.__exit__()
