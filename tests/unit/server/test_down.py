"""Which processes belong to a cluster, by what its folder and they themselves say."""

import contextlib
import errno
import json
import os
import subprocess
import sys

import pytest

from rota.errors import ServerError, UnreachableError
from rota.folder import Folder
from rota.live.wire.clock import boot_id, boottime_s
from rota.server import down
from rota.server.down import end_by_force, kill_all, living

SLEEPS = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]


@contextlib.contextmanager
def process(command=None, ready=True, **more):
    pipe = {"stdout": subprocess.PIPE} if ready else {}
    with subprocess.Popen(command or SLEEPS, **pipe, **more) as started:
        try:
            if ready:
                started.stdout.readline()
            yield started.pid
        finally:
            started.kill()


def marked(folder, job_id="7"):
    marks = {"ROTA_CHECKPOINT_DIR": str(folder.checkpoints(job_id)), "ROTA_JOB_ID": job_id}
    return os.environ | marks


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "home").create()


@pytest.mark.process
def test_processes_are_known_by_their_variables_and_those_of_other_clusters_left_alone(
    folder, tmp_path
):
    other = Folder(tmp_path / "home2").create()
    with process(env=marked(folder)) as mine, process(env=marked(other)) as theirs:
        assert {pid: each.job_id for pid, each in living(folder).items()} == {mine: "7"}
        assert kill_all(folder) == []
        assert living(other).keys() == {theirs}


@pytest.mark.process
@pytest.mark.parametrize("value", ["", "checkpoints"])
def test_programs_with_a_checkpoint_folder_of_their_own_are_left_alone(folder, monkeypatch, value):
    monkeypatch.chdir(folder.path)
    with process(env=os.environ | {"ROTA_CHECKPOINT_DIR": value}):
        assert living(folder) == {}


@pytest.mark.process
def test_a_folder_may_be_reached_by_a_link_and_checkpoints_may_lie_elsewhere(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder.path)
    (tmp_path / "elsewhere").mkdir()
    folder.checkpoints("7").parent.mkdir()
    folder.checkpoints("7").symlink_to(tmp_path / "elsewhere")
    with process(env=marked(folder)) as mine:
        assert living(Folder(tmp_path / "link")).keys() == {mine}


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "job_id"), [("nodes/here/zygote.log", ""), ("nodes/here/jobs/3/1/rank0.log", "3")]
)
def test_processes_are_known_by_the_log_that_they_write(folder, file, job_id):
    log = folder.path / file
    log.parent.mkdir(parents=True)
    with log.open("w") as output, process(stderr=output, cwd=log.parent) as mine:
        assert {pid: each.job_id for pid, each in living(folder).items()} == {mine: job_id}


@pytest.mark.process
def test_agents_are_known_by_their_command_line(folder, tmp_path):
    words = ["rota.live.agent", "--home", str(folder.path), "--node", "here"]
    others = ["rota.live.agent", "--home", str(tmp_path), "--node", "here"]
    with process([*SLEEPS, *words]) as mine, process([*SLEEPS, *others]):
        assert living(folder).keys() == {mine}


@pytest.mark.process
def test_what_they_have_started_belongs_to_them(folder):
    script = "import os, sys, subprocess, time; os.environ.clear();"
    script += "subprocess.Popen([sys.executable, '-c', 'import time; print(flush=True);"
    script += "time.sleep(1000)'], env={}, start_new_session=True); time.sleep(1000)"
    with process([sys.executable, "-c", script], env=marked(folder)) as mine:
        found = living(folder)
        assert len(found) == 2
        assert {each.job_id for each in found.values()} == {"7"}
        assert mine in found
        assert kill_all(folder) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UnreachableError, match="no cluster has run on "):
        end_by_force(Folder(tmp_path / "nowhere"))


def test_a_folder_in_which_no_cluster_has_run_is_left_as_it_is(folder):
    with pytest.raises(UnreachableError, match="no cluster has run on "):
        end_by_force(folder)
    assert list(folder.path.iterdir()) == []


def test_where_nothing_lives_there_is_nothing_to_end(folder):
    folder.node("here").mkdir(parents=True)
    folder.reserve.touch()
    assert end_by_force(folder) == []
    assert not folder.database.exists()
    assert not folder.reserve.exists()


@pytest.mark.process
def test_in_a_folder_that_can_not_be_written_all_is_killed_and_that_is_said(folder, monkeypatch):
    def is_read_only(path):
        raise OSError(errno.EROFS, "Read-only file system")

    folder.database.touch()
    monkeypatch.setattr(down, "hold_lock", is_read_only)
    with process(env=marked(folder)) as mine:
        assert living(folder).keys() == {mine}
        with pytest.raises(ServerError, match=r"Read-only file system; .* been killed; make the"):
            end_by_force(folder)
        assert living(folder) == {}


def claim(folder, shim, boot):
    """Have a process stand in the folder as a shim, in a file that was written in 1970."""
    at = folder.path / "nodes/here/jobs/3/1"
    at.mkdir(parents=True)
    (at / "attempt.json").write_text(json.dumps({"slots": 1, "boot_id": boot}))
    told = {"shim": shim, "worker": 0, "boottime_s": boottime_s()}
    (at / "rank0.pid").write_text(json.dumps(told))
    os.utime(at / "rank0.pid", (0, 0))


@pytest.mark.process
def test_sessions_are_known_by_their_shims_wherever_the_wall_clock_has_gone(folder):
    with process(start_new_session=True) as shim:
        claim(folder, shim, boot_id())
        assert {pid: each.job_id for pid, each in living(folder).items()} == {shim: "3"}


@pytest.mark.process
def test_a_pid_from_before_a_reboot_is_somebody_elses(folder):
    with process(start_new_session=True) as stranger:
        claim(folder, stranger, "another boot")
        assert living(folder) == {}
