"""Who a process is, whatever the wall clock says, and what is below it."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rota.live.agent.processes import descendants, signal_below, started_at
from rota.live.agent.rank import Rank
from rota.live.wire.clock import boottime_s
from support.shortage import keep_spare, no_descriptors


def test_a_process_is_known_by_when_it_started_until_it_is_gone():
    before = boottime_s()
    with subprocess.Popen(["sleep", "60"]) as process:
        began = started_at(process.pid)
        assert before - 1 <= began <= boottime_s()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert started_at(process.pid) is None, "a zombie runs no more"
    assert started_at(process.pid) is None


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_the_shim_of_a_rank_is_found_after_the_wall_clock_was_set(tmp_path, monkeypatch, step_s):
    me = {"shim": os.getpid(), "worker": os.getpid(), "boottime_s": boottime_s()}
    (tmp_path / "rank0.pid").write_text(json.dumps(me))
    at_s = time.time() - step_s  # of the file, whose times the kernel writes by the wall clock
    os.utime(tmp_path / "rank0.pid", (at_s, at_s))
    rank = Rank(0, tmp_path)
    rank.find()
    assert rank.alive
    rank.close()


@pytest.mark.parametrize("told", [{"boottime_s": 0.0}, {}])
def test_a_process_that_has_the_pid_of_a_shim_that_is_gone_is_not_taken_for_it(tmp_path, told):
    me = {"shim": os.getpid(), "worker": os.getpid()}
    (tmp_path / "rank0.pid").write_text(json.dumps(me | told))
    os.utime(tmp_path / "rank0.pid", (0, 0))
    rank = Rank(0, tmp_path)
    rank.find()
    assert rank.gone


# A fork of a process of this size takes longer than to signal it. It tells when it begins one.
FORKS = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
pages = bytearray(b"x") * (400 << 20)
while True:
    os.write(1, b".")
    if os.fork() == 0:
        signal.pause()
        os._exit(0)
    os.read(0, 1)
"""


@pytest.fixture
def forks(tmp_path):
    """A process that forks whenever it is told to, below one that stands for the rank's shim."""
    words = ["bash", "-c", '"$0" -c "$1"; true', sys.executable, FORKS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(words, **pipes) as shim:
        yield shim
        rank = Rank(0, tmp_path)
        rank.shim = shim.pid
        while not rank.stop():
            pass
        signal_below(shim.pid, signal.SIGKILL)
        shim.kill()


def test_what_is_being_forked_while_a_rank_is_stopped_is_stopped_too(forks, tmp_path):
    """Five forks, each stopped as it begins: in the kernel it goes on to its end all the same."""
    rank = Rank(0, tmp_path)
    rank.shim = forks.pid
    for count in range(1, 6):
        assert forks.stdout.read(1) == b"."
        while not rank.stop():
            pass
        below = rank.below()
        assert len(below) in (count, count + 1)
        assert {psutil.Process(pid).status() for pid in below} == {psutil.STATUS_STOPPED}
        rank.signal(signal.SIGCONT)
        forks.stdin.write(b".")
        forks.stdin.flush()


def test_processes_are_found_and_killed_where_no_descriptor_is_left():
    keep_spare()
    with subprocess.Popen(["bash", "-c", "sleep 60 & echo ready; wait"], stdout=-1) as process:
        process.stdout.readline()
        before = descendants(process.pid)
        with no_descriptors():
            for _ in range(3):
                assert descendants(process.pid) == before
                assert started_at(process.pid) is not None
            signal_below(process.pid, signal.SIGKILL)
        process.wait(60)
    assert len(before) == 2


def test_an_end_that_was_written_down_is_read_where_no_descriptor_is_left(tmp_path):
    keep_spare()
    (tmp_path / "rank0.exit").write_text('{"code": 3, "at_s": 1.0}')
    rank = Rank(0, tmp_path)
    with no_descriptors():
        rank.read_exit()
    assert rank.exit["code"] == 3
