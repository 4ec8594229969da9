"""Which processes belong to a cluster, by what its folder and they themselves say."""

import contextlib
import os
import subprocess
import sys

import pytest

from rota.errors import UnreachableError
from rota.folder import Folder
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


def test_where_nothing_lives_there_is_nothing_to_end(folder):
    assert end_by_force(folder) == []
    assert not folder.database.exists()
