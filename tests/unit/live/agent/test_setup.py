"""A job's setup: once for each command, folder, PATH and lock file, and never by halves."""

import os
import select
import subprocess

import pytest

from rota.live.agent.setup import LOCKS, SETUP, after_setup, after_setup_of_snapshot, digest


def run(workdir, marks, setup="echo x >> times", command="cat times", **more):
    line = after_setup(command, marks)
    environment = {"PATH": os.environ["PATH"], SETUP: setup} | more
    return subprocess.run(
        ["bash", "-c", line],
        cwd=workdir,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def until_unread(writer):
    """Wait until nobody has the pipe open to read."""
    poll = select.poll()
    poll.register(writer, 0)
    assert poll.poll(60_000) == [(writer, select.POLLERR)]


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_it_runs_once_and_the_command_each_time(workdir, tmp_path):
    for _ in range(2):
        done = run(workdir, tmp_path / "marks")
        assert (done.returncode, done.stdout) == (0, "x\n")


def test_it_fails_with_its_exit_code_and_is_run_again(workdir, tmp_path):
    for _ in range(2):
        done = run(workdir, tmp_path / "marks", setup="echo x >> times; exit 7")
        assert (done.returncode, done.stdout) == (7, "")
        assert "rota: setup failed with exit code 7" in done.stderr
    assert (workdir / "times").read_text() == "x\nx\n"
    assert run(workdir, tmp_path / "marks", setup="kill -9 $$").returncode == 137


def test_the_exit_code_of_the_command_is_its_own(workdir, tmp_path):
    assert run(workdir, tmp_path / "marks", command="exit 5").returncode == 5


def test_another_command_folder_path_or_lock_file_is_another_setup(workdir, tmp_path):
    known = {digest("a", workdir, "/bin")}
    known |= {digest("b", workdir, "/bin"), digest("a", tmp_path, "/bin")}
    known |= {digest("a", workdir, "/usr/bin")}
    for name in LOCKS:
        for text in ("1", "2"):
            (workdir / name).write_text(text)
            known.add(digest("a", workdir, "/bin"))
    assert len(known) == 4 + 2 * len(LOCKS)
    before = digest("a", workdir, "/bin")
    (workdir / "train.py").write_text("")
    assert digest("a", workdir, "/bin") == before


def test_one_that_is_killed_is_not_done_and_others_wait_for_one_that_runs(workdir, tmp_path):
    marks, pipe = tmp_path / "marks", workdir / "pipe"
    os.mkfifo(pipe)
    environment = {"PATH": os.environ["PATH"], SETUP: "echo x >> times; cat pipe"}
    line = after_setup("true", marks)

    def start():
        return subprocess.Popen(
            ["bash", "-c", line], cwd=workdir, env=environment, start_new_session=True
        )

    first = start()
    writer = os.open(pipe, os.O_WRONLY)  # it has come so far
    os.killpg(first.pid, 9)
    first.wait()
    until_unread(writer)  # its cat may outlive it, and would stand for the second one's
    os.close(writer)
    second = start()
    writer = os.open(pipe, os.O_WRONLY)
    third = start()
    assert (workdir / "times").read_text() == "x\nx\n"
    os.close(writer)
    assert (second.wait(60), third.wait(60)) == (0, 0)
    assert (workdir / "times").read_text() == "x\nx\n"


class OfSnapshot:
    """A node's folder of a snapshot with one file, and jobs that run in copies of it."""

    def __init__(self, place):
        self.place = place / "snapshot"
        (self.place / "tree").mkdir(parents=True)
        (self.place / "tree" / "given").write_text("1\n")
        self.times = place / "times"
        self._jobs = place / "jobs"

    def start(self, name, setup, command="cat made", path=os.environ["PATH"]):
        workdir = self._jobs / name / "workdir"
        workdir.mkdir(parents=True, exist_ok=True)
        line = after_setup_of_snapshot(command, self.place, workdir)
        environment = {"PATH": path, SETUP: setup, "TIMES": str(self.times)}
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=workdir,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments, **more):
        process = self.start(*arguments, **more)
        printed, _ = process.communicate(timeout=60)
        return process.returncode, printed

    @property
    def count(self):
        return len(self.times.read_text().splitlines())


@pytest.fixture
def snapshot(tmp_path):
    return OfSnapshot(tmp_path)


MAKE = 'echo x >> "$TIMES"; cp given made; '


def test_in_a_snapshot_it_runs_once_and_each_job_has_a_copy_of_what_it_made(snapshot):
    for name in ("1", "2"):
        assert snapshot.run(name, MAKE, command="cat made; echo 2 > made") == (0, "1\n")
    assert snapshot.run("1", MAKE) == (0, "2\n")  # the copy stays the attempt's
    assert snapshot.count == 1
    assert not (snapshot.place / "tree" / "made").exists()
    assert snapshot.run("3", MAKE + "true", path="/usr/bin:/bin") == (0, "1\n")
    assert snapshot.run("4", MAKE + "true", path="/usr/bin:/bin:/sbin") == (0, "1\n")
    assert snapshot.count == 3


def test_in_a_snapshot_one_that_fails_begins_with_fresh_files(snapshot):
    setup = MAKE + "test ! -e spoilt; code=$?; touch spoilt; echo no room; exit $((code + 7))"
    for _ in range(2):
        code, printed = snapshot.run("1", setup)
        assert code == 7
        assert printed.startswith("no room\nrota: setup failed with exit code 7: ")
    assert snapshot.count == 2
    (snapshot.place / "tree" / "given").unlink()
    (snapshot.place / "tree").rmdir()
    code, printed = snapshot.run("2", setup)
    assert code == 1
    assert "rota: the folder of the setup can't be made" in printed


def test_in_a_snapshot_one_that_is_killed_is_run_again_and_others_wait_for_it(snapshot):
    pipe = snapshot.place.parent / "pipe"
    os.mkfifo(pipe)
    setup = f"{MAKE} test ! -e half || exit 9; touch half; cat {pipe}"
    first = snapshot.start("1", setup)
    writer = os.open(pipe, os.O_WRONLY)  # it has come so far
    os.killpg(first.pid, 9)
    first.communicate()
    until_unread(writer)
    os.close(writer)
    second = snapshot.start("1", setup)
    writer = os.open(pipe, os.O_WRONLY)
    third = snapshot.start("2", setup)
    assert snapshot.count == 2
    os.close(writer)
    assert [each.communicate(timeout=60)[0] for each in (second, third)] == ["1\n", "1\n"]
    assert snapshot.count == 2
