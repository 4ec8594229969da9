"""Shims stop what is below them while the lease of their node is over."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rota.live.agent.rank import Rank
from rota.live.wire import clock, tags
from rota.live.wire.lease import Lease

HOUR_S = 3600.0


def until(condition):
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


class Shim:
    """A shim of a real zygote, whose worker has a child; both write to its log as they run."""

    def __init__(self, folder: Path, lease: Path) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "rota.train.zygote", str(theirs.fileno())]
        self.zygote = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._words = ours.makefile("rb")
        assert self._words.readline() == b"ready\n"
        request: dict[str, object] = {
            "name": "rank0",
            "tag": None,
            "folder": str(folder),
            "log": str(folder / "log"),
            "env": dict(os.environ),
            "workdir": str(folder),
            "run": "while true; do echo child; sleep 0.01; done & "
            "while true; do echo worker; sleep 0.01; done",
            "argv": None,
            "fork": False,
            "cpus": [],
            "groups": [],
            "lease": str(lease),
        }
        ours.sendall(json.dumps(request).encode() + b"\n")
        self.process = psutil.Process(json.loads(self._words.readline())["pid"])
        self.ended, self.log = folder / "rank0.exit", folder / "log"
        self._ours = ours

    def end_zygote(self) -> None:
        self.zygote.kill()
        self.zygote.wait()

    @property
    def below(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)

    def stands(self) -> bool:
        """True if all below is stopped, or ended where a stopped parent can't see it."""
        still = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        try:
            return all(each.status() in still for each in self.below)
        except psutil.NoSuchProcess:  # a sleep has just ended: its parent runs
            return False

    def runs_on(self) -> bool:
        """Wait until worker and child have both written more."""
        seen = self.log.stat().st_size

        def both() -> bool:
            text = self.log.read_bytes()[seen:]
            return b"worker" in text and b"child" in text

        until(both)
        return True

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [*self.below, self.process]:
                each.kill()
        self.end_zygote()
        self._words.close()
        self._ours.close()


@pytest.fixture
def lease(tmp_path):
    made = Lease(tmp_path / "lease")
    yield made
    made.close()


@pytest.fixture
def shim(tmp_path, lease):
    lease.renew(clock.boottime_s() + HOUR_S)
    made = Shim(tmp_path, lease.path)
    until(made.log.exists)
    made.runs_on()
    yield made
    made.close()


def end(lease):
    """The lease is over now."""
    lease._words[0] = clock.boottime_s()


def test_a_new_lease_is_over_and_ends_no_sooner_once_renewed(lease):
    assert lease.left_s < 0
    until_s = clock.boottime_s() + HOUR_S
    lease.renew(until_s)
    lease.renew(until_s - 1)
    assert lease.until_s == until_s
    with_same_file = Lease(lease.path)
    assert with_same_file.until_s == until_s
    with_same_file.close()


def test_all_below_a_shim_stops_at_the_end_of_the_lease_and_goes_on_when_it_is_renewed(shim, lease):
    shim.end_zygote()  # nobody else is there
    lease._words[0] = clock.boottime_s() + 0.3  # it is looked at when it was to end
    shim.process.send_signal(signal.SIGCHLD)
    until(shim.stands)
    lease.renew(clock.boottime_s() + HOUR_S)
    assert shim.runs_on()


def test_under_a_lease_that_never_ends_a_job_runs_to_its_end(tmp_path, lease):
    lease.renew(float("inf"))
    shim = Shim(tmp_path, lease.path)
    try:
        until(shim.log.exists)
        shim.runs_on()
        shim.process.children()[0].kill()
        until(shim.ended.exists)
        assert json.loads(shim.ended.read_text())["code"] == -signal.SIGKILL
    finally:
        shim.close()


def test_what_was_stopped_before_stays_so_when_the_lease_is_renewed(shim, lease):
    worker = shim.process.children()[0]
    worker.suspend()
    until(lambda: worker.status() == psutil.STATUS_STOPPED)
    end(lease)
    shim.process.send_signal(signal.SIGCHLD)
    until(shim.stands)
    before = shim.log.read_bytes().count(b"worker")
    lease.renew(clock.boottime_s() + HOUR_S)
    until(lambda: not shim.stands())
    size = shim.log.stat().st_size
    until(lambda: shim.log.stat().st_size > size + 100)  # the child runs
    assert worker.status() == psutil.STATUS_STOPPED
    assert shim.log.read_bytes().count(b"worker") == before


def test_what_the_agent_stops_while_the_lease_is_over_stays_so_when_it_is_renewed(
    shim, lease, tmp_path
):
    worker = shim.process.children()[0]
    child = min(worker.children(), key=psutil.Process.create_time)  # the other is a sleep
    end(lease)
    shim.process.send_signal(signal.SIGCHLD)
    until(shim.stands)
    rank = Rank(0, tmp_path, lease=lease)
    rank.find()
    until(lambda: rank.stop(spared=child.pid))
    lease.renew(clock.boottime_s() + HOUR_S)
    until(lambda: child.status() != psutil.STATUS_STOPPED)
    until(lambda: shim.process.status() == psutil.STATUS_SLEEPING)  # it has seen to all
    assert worker.status() == psutil.STATUS_STOPPED
    rank.signal(signal.SIGCONT)
    rank.close()
    assert shim.runs_on()


def test_an_agent_lets_processes_go_on_only_once_the_lease_is_renewed(shim, lease, tmp_path):
    async def story():
        rank = Rank(0, tmp_path, lease=lease)
        rank.find()
        until(rank.stop)
        end(lease)
        rank.signal(signal.SIGCONT)
        assert shim.stands()
        lease.renew(clock.boottime_s() + HOUR_S)
        while shim.stands():
            await asyncio.sleep(0.005)
        rank.close()

    asyncio.run(story())
    assert shim.runs_on()


def test_a_worker_does_nothing_before_the_lease_is_renewed(tmp_path, lease):
    shim = Shim(tmp_path, lease.path)
    try:
        until(lambda: shim.below and shim.stands())
        (worker,) = shim.below
        assert "zygote" in " ".join(worker.cmdline())  # its program has not begun
        lease.renew(clock.boottime_s() + HOUR_S)
        until(shim.log.exists)
        assert shim.runs_on()
    finally:
        shim.close()


def test_the_end_of_a_worker_is_recorded_while_the_lease_is_over(shim, lease):
    end(lease)
    shim.process.send_signal(signal.SIGCHLD)
    until(shim.stands)
    shim.process.children()[0].kill()
    until(shim.ended.exists)
    assert json.loads(shim.ended.read_text())["code"] == -signal.SIGKILL


HOST = """
import os, sys, time
if os.fork() == 0:
    while True:
        os.write(1, b"worker\\n")
        time.sleep(0.01)
while True:
    os.write(2, b"host\\n")
    time.sleep(0.01)
"""


def test_a_host_behind_a_fence_goes_on_while_its_workers_are_stopped(tmp_path, lease):
    lease.renew(clock.boottime_s() + HOUR_S)
    number = tags.tag_on_node(7, 0)
    command = [sys.executable, "-m", "rota.train.fence", str(lease.path), str(number)]
    logs = tmp_path / "worker.log", tmp_path / "host.log"
    with open(logs[0], "wb") as out, open(logs[1], "wb") as error:
        fence = subprocess.Popen([*command, sys.executable, "-c", HOST], stdout=out, stderr=error)

    def writes(log):
        seen = log.stat().st_size
        until(lambda: log.stat().st_size > seen)
        return True

    try:
        assert writes(logs[0])
        (host,) = psutil.Process(fence.pid).children()
        (worker,) = host.children()
        end(lease)
        fence.send_signal(signal.SIGCHLD)
        until(lambda: worker.status() == psutil.STATUS_STOPPED)
        assert writes(logs[1])
        assert worker.status() == psutil.STATUS_STOPPED
        lease.renew(clock.boottime_s() + HOUR_S)
        assert writes(logs[0])
        assert tags.tag_or_limit(fence.pid) == number | tags.GUARD  # and nothing below it has that
        assert tags.key_in(tags.tag_or_limit(host.pid)) is None
        host.kill()
        assert fence.wait(60) == 128 + signal.SIGKILL
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    finally:
        fence.kill()
        fence.wait()


def test_a_host_ends_with_its_fence(lease):
    command = [sys.executable, "-m", "rota.train.fence", str(lease.path), "0", "sleep", "1000"]
    fence = subprocess.Popen(command)
    children = psutil.Process(fence.pid).children
    until(lambda: [each for each in children() if each.name() == "sleep"])
    (host,) = children()
    fence.kill()
    fence.wait()
    host.wait(60)


def test_a_fence_ends_as_its_program_does(lease):
    command = [sys.executable, "-m", "rota.train.fence", str(lease.path), "0"]
    assert subprocess.run([*command, "bash", "-c", "exit 3"]).returncode == 3
