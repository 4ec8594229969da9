"""Stopped processes go on: children first, and their parents once those have settled."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rota.live.agent.processes import signal_below
from rota.live.agent.rank import Rank
from rota.live.agent.waking import BRIEF_S, PATIENCE_S, Waking, waiting_below

# The shim; a main process that waits for its child, or computes; and the child, which does as told.
CHILD = """
import os, sys, time
while True:
    word = sys.stdin.readline().strip()
    if word == "write":
        os.write(1, b"written\\n")
    elif word == "compute":
        while True:
            pass
    elif word == "end":
        sys.exit()
"""
MAIN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=subprocess.PIPE, stdin=0)
print(child.pid, flush=True)
while sys.argv[1] == "computes":
    pass
child.stdout.readline()
child.wait()
"""
SHIM = """
import os, subprocess, sys
main = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], sys.argv[3]])
print(main.pid, flush=True)
main.wait()
"""


class Family:
    """A shim, its worker ``main`` that ``waits`` or ``computes``, and a ``child`` of that."""

    def __init__(self, folder, how):
        words = [sys.executable, "-c", SHIM, MAIN, how, CHILD]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.shim = subprocess.Popen(words, **pipes)
        self.main, self.child = int(self.shim.stdout.readline()), int(self.shim.stdout.readline())
        until(lambda: waits(self.child))
        if how == "waits":
            until(lambda: waits(self.main))
        pids = {"shim": self.shim.pid, "worker": self.main, "boottime_s": 1e9}
        (folder / "rank0.pid").write_text(json.dumps(pids))
        self.rank = Rank(0, folder)
        self.rank.shim = self.shim.pid
        self.waiting = waiting_below(self.shim.pid)
        until(self.rank.stop)
        self.waking = Waking(self.shim.pid, self.waiting)

    def tells(self, word):
        self.shim.stdin.write(f"{word}\n")
        self.shim.stdin.flush()

    def step(self, now_s):
        """One step; the processes that are stopped after it, by name."""
        is_over = self.waking.step(now_s)
        stopped = {name for name in ("main", "child") if is_stopped(getattr(self, name))}
        assert is_over == (not stopped)
        return stopped


def is_stopped(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def waits(pid):
    return pid in waiting_below(os.getpid())


def until(true):
    deadline_s = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


@pytest.fixture
def family(tmp_path):
    made = []

    def make(how):
        made.append(Family(tmp_path, how))
        return made[0]

    yield make
    for each in made:
        signal_below(each.shim.pid, signal.SIGKILL)
        each.shim.communicate(timeout=60.0)


def test_a_parent_that_waits_goes_on_once_its_child_has_written(family):
    it = family("waits")
    assert it.waiting == {it.main, it.child}
    assert it.step(0.0) == {"main"}
    assert it.step(0.0) == {"main"}
    it.tells("write")
    until(lambda: it.step(0.0) == set())


def test_a_parent_goes_on_once_its_child_is_idle(family):
    it = family("waits")
    assert it.step(0.0) == {"main"}
    until(lambda: waits(it.child))
    assert it.step(100.0) == set()


def test_a_child_that_computes_is_waited_for_but_not_for_ever(family):
    it = family("waits")
    assert it.step(0.0) == {"main"}
    it.tells("compute")
    until(lambda: not waits(it.child))
    assert it.step(1.0) == {"main"}
    assert it.step(PATIENCE_S - 0.01) == {"main"}
    assert it.step(PATIENCE_S) == set()


def test_a_child_that_ends_is_not_waited_for(family):
    it = family("waits")
    assert it.step(0.0) == {"main"}
    it.tells("end")
    until(lambda: it.step(0.0) == set() or it.shim.poll() is not None)


def test_a_parent_that_did_not_wait_goes_on_at_once_nearly(family):
    it = family("computes")
    assert it.waiting == {it.child}
    it.tells("compute")
    assert it.step(0.0) == {"main"}
    assert it.step(BRIEF_S) == set()


def test_all_go_on_if_the_agent_is_gone_before_the_last_one_does(family):
    it = family("waits")
    if (agent := os.fork()) == 0:
        it.waking.step(0.0)
        os._exit(0)
    os.waitpid(agent, 0)
    until(lambda: not is_stopped(it.main))
    assert not is_stopped(it.child)


def test_what_is_stopped_again_meanwhile_stays_so(family):
    it = family("waits")
    before = set(psutil.Process().children())
    assert it.step(0.0) == {"main"}
    (guard,) = set(psutil.Process().children()) - before
    it.waking.close()
    until(lambda: not guard.is_running())
    assert is_stopped(it.main)
