"""A job's setup: once for each command, folder, PATH and lock file, and never by halves."""

import os
import select
import subprocess

import pytest

from rota.live.agent.setup import LOCKS, SETUP, after_setup, digest


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
