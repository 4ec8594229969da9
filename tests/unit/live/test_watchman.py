"""What outlives its shim ends with the lease of its node, also where nobody else is left to see."""

import asyncio
import contextlib
import errno
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

from rota.live import watchman
from rota.live.agent.processes import tag_of
from rota.live.agent.watchman_link import WatchmanLink
from rota.live.wire import clock, tags
from rota.live.wire.lease import Lease
from support.forked_ranks import rank_request

HOUR_S = 3600.0
# A process of a session of its own, whose parents are gone. It writes down that it runs.
ORPHAN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            with open(sys.argv[1], "a") as ledger:
                ledger.write(f"{os.getpid()}\\n")
            time.sleep(0.01)
    os._exit(0)
time.sleep(1000)
"""


def until(condition):
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


class Zygote:
    """A zygote that shims of several nodes are forked from."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        command = [sys.executable, "-m", "rota.train.zygote", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._words = self._link.makefile("rb")
        assert self._words.readline() == b"ready\n"

    def fork(self, request: dict[str, object]) -> psutil.Process:
        """Fork a shim."""
        self._link.sendall(json.dumps(request).encode() + b"\n")
        return psutil.Process(json.loads(self._words.readline())["pid"])

    def close(self) -> None:
        self._words.close()
        self._link.close()
        self._process.wait()


class Node:
    """The folder of a node, with its lease and what an agent starts there."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self.folder, self._zygote = folder, zygote
        folder.mkdir()
        self.lease = Lease(folder / "lease")
        self.lease.renew(clock.boottime_s() + HOUR_S)
        self.link = WatchmanLink(folder, folder.name, self.lease.path, [folder / "groups"])
        self.secret = tags.new_secret(folder)
        self.processes: list[psutil.Process] = []

    def watchman(self) -> subprocess.Popen[bytes]:
        """Start one; returns when it is there."""
        started = self.link._start()
        self.processes.append(psutil.Process(started.pid))
        until(lambda: tags.key_in(tags.tag_or_limit(started.pid)) is not None)
        return started

    def run(
        self, number: int, *, tagged: bool = True, **env: str
    ) -> tuple[psutil.Process, psutil.Process]:
        """A job's shim, and a process of the job that outlives it, with a number unless told."""
        folder = self.folder / "jobs" / str(number) / "1"
        folder.mkdir(parents=True)
        script, ledger = folder / "orphan.py", folder / "ledger"
        script.write_text(ORPHAN)
        request = rank_request(
            folder,
            tag=tag_of(self.secret, f"{number}/rank0") if tagged else None,
            log=str(folder / "rank0.log"),
            env=dict(os.environ) | env,
            run=f"exec {sys.executable} {script} {ledger}",
            lease=str(self.lease.path),
        )
        shim = self._zygote.fork(request)
        self.processes.append(shim)
        until(lambda: ledger.exists() and ledger.read_text().endswith("\n"))
        self.processes.append(psutil.Process(int(ledger.read_text().split()[0])))
        return shim, self.processes[-1]

    @property
    def log(self) -> str:
        return (self.folder / "watchman.log").read_text()

    def end_lease(self, watchman: subprocess.Popen[bytes]) -> None:
        """Have the lease end soon: no lease ever ends sooner than it was to, so wake all."""
        self.lease._words[0] = clock.boottime_s() + 0.5
        watchman.stdin.close()  # the agent is killed
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCHLD)

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.lease.close()


@pytest.fixture(scope="module")
def zygote():
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def nodes(tmp_path, zygote):
    made = [Node(tmp_path / name, zygote) for name in ("gpu1", "gpu2")]
    yield made
    for each in made:
        each.close()


def ends(process):
    """Wait until a process of nobody's has ended."""
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_what_outlives_its_shim_is_killed_by_the_end_of_the_lease_and_nothing_else_is(nodes):
    first, other = nodes
    watchman = first.watchman()
    shim, orphan = first.run(1)
    living_shim, kept = first.run(2)
    shim_of_other, of_other = other.run(1)
    for each in (shim, shim_of_other):
        each.kill()
    first.end_lease(watchman)
    ends(orphan)
    until(lambda: f"killed {orphan.pid}, which had outlived its shim" in first.log)
    until(lambda: kept.status() == psutil.STATUS_STOPPED)  # by its own shim
    living_shim.kill()  # also while the lease is over
    ends(kept)
    assert watchman.wait(60) == 0  # nobody is left to watch over
    assert of_other.is_running()


def test_a_shim_that_is_stopped_or_oversleeps_is_woken_at_the_end_of_the_lease(nodes):
    node = nodes[0]
    watchman = node.watchman()
    shim, orphan = node.run(1)
    shim.suspend()
    node.end_lease(watchman)
    until(lambda: orphan.status() == psutil.STATUS_STOPPED)
    node.lease.renew(clock.boottime_s() + HOUR_S)
    shim.send_signal(signal.SIGCHLD)
    until(lambda: orphan.status() != psutil.STATUS_STOPPED)


def test_a_process_without_a_tag_is_known_by_its_environment_or_its_control_group(nodes):
    node = nodes[0]
    watchman = node.watchman()
    pulse = str(node.folder / "jobs" / "1" / "1" / "rank0.pulse")
    shim, by_environment = node.run(1, tagged=False, ROTA_PULSE=pulse)
    _, guarded = node.run(2, tagged=False, ROTA_PULSE=pulse.replace("1/1", "2/1"))
    group_shim, by_group = node.run(3, tagged=False)
    unknown_shim, unknown = node.run(4, tagged=False)
    for name, member in (("3.1", by_group), ("0.0", unknown)):
        (node.folder / "groups" / name).mkdir(parents=True)
        (node.folder / "groups" / name / "cgroup.procs").write_text(f"{member.pid}\n")
    for each in (shim, group_shim, unknown_shim):
        each.kill()
    node.end_lease(watchman)
    ends(by_environment)
    ends(by_group)
    until(lambda: guarded.status() == psutil.STATUS_STOPPED)
    assert unknown.is_running()


def test_a_watchman_goes_with_its_agent_once_no_job_is_left(nodes):
    async def story():
        node = nodes[0]
        idle = WatchmanLink(node.folder, "gpu1", node.lease.path, [])
        task = asyncio.create_task(idle.run())
        while idle._process is None:
            await asyncio.sleep(0)
        task.cancel()
        await idle.close()
        assert idle._process.returncode == 0

    asyncio.run(story())
    node = nodes[0]
    busy = node.watchman()
    shim, orphan = node.run(1)
    busy.stdin.close()
    os.kill(busy.pid, signal.SIGTERM)
    shim.children()[0].kill()  # the shim ends what is left
    assert busy.wait(60) == 0
    assert not orphan.is_running()


def test_the_next_agent_s_watchman_takes_the_place_of_the_one_before(nodes):
    first, other = nodes
    of_other, before = other.watchman(), first.watchman()
    shim, orphan = first.run(1)
    before.stdin.close()
    after = first.watchman()
    assert before.wait(60) == -signal.SIGKILL
    assert of_other.poll() is None
    shim.kill()
    first.end_lease(after)
    ends(orphan)
    assert after.wait(60) == 0


def test_another_watchman_is_started_when_one_is_killed_and_its_command_tells_who_it_is(
    nodes, monkeypatch
):
    monkeypatch.setattr("rota.live.agent.watchman_link.AGAIN_S", 0.0)

    async def story():
        link = nodes[0].link
        task = asyncio.create_task(link.run())
        while link._process is None:
            await asyncio.sleep(0.01)
        first = link._process
        title = Path(f"/proc/{first.pid}/cmdline")
        while title.read_bytes().strip(b"\0") != b"lease watchman of gpu1":
            await asyncio.sleep(0.01)
        first.kill()
        while link._process is first:
            await asyncio.sleep(0.01)
        task.cancel()
        await link.close()
        assert first.returncode == -signal.SIGKILL
        assert link._process.returncode == 0

    asyncio.run(story())


def test_a_watchman_that_can_not_look_looks_again(tmp_path, monkeypatch):
    looks = iter([OSError(errno.ENFILE, "no descriptors"), OSError(errno.ENFILE, "again")])

    def pids():
        if (error := next(looks, None)) is not None:
            raise error
        return []

    monkeypatch.setattr(watchman, "_pids", pids)
    monkeypatch.setattr(watchman, "LOOK_S", 0.001)
    lease = Lease(tmp_path / "lease")  # it is over
    made = watchman.Watchman(tmp_path, lease, 1)
    made._has_agent = False
    made.run()  # until nothing is left
    assert next(looks, None) is None
    os.close(made._alarm)
    lease.close()


def test_a_watchman_whose_log_takes_nothing_kills_all_that_has_outlived_its_shim(
    tmp_path, monkeypatch
):
    left, killed = {101, 102, 103}, []

    def send(pid, number):
        killed.append(pid)
        left.discard(pid)
        return True

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no room")

    lease = Lease(tmp_path / "lease")
    made = watchman.Watchman(tmp_path, lease, 1)
    monkeypatch.setattr(watchman, "_send", send)
    monkeypatch.setattr("builtins.print", full)
    monkeypatch.setattr(made, "_orphans", lambda: set(left))
    assert made._end_orphans()
    assert sorted(killed) == [101, 102, 103]
    os.close(made._alarm)
    lease.close()


class Lineage:
    """Parents of processes; some of them end once they have been looked at so often."""

    def __init__(self, parents, ends=()):
        self.parents, self.ends = dict(parents), dict(ends)

    def stat_of(self, pid):
        found = ["S", str(self.parents[pid])] if pid in self.parents else []
        for parent, (child, new_parent) in list(self.ends.items()):
            if pid == child:  # the parent ends between the look at its child and that at itself
                del self.ends[parent]
                self.parents.pop(parent, None)
                self.parents[child] = new_parent
        return found


@pytest.mark.parametrize(
    ("parents", "ends", "is_spared"),
    [
        ({9: 8, 8: 7, 7: 5, 5: 1}, {}, True),
        ({9: 8, 8: 7, 7: 1}, {}, False),
        ({9: 8, 8: 5, 5: 1}, {8: (9, 5)}, True),  # handed on to the guard
        ({9: 8, 8: 7, 7: 5, 5: 1}, {7: (8, 5)}, True),
        ({9: 8, 8: 7, 7: 5, 5: 1}, {8: (9, 7), 7: (9, 5)}, True),
        ({9: 8, 8: 7, 7: 1}, {8: (9, 1)}, False),  # handed on to init
        ({9: 4}, {}, False),  # its parent is there, but hidden
        ({9: 8, 8: 4}, {}, False),
        ({}, {}, True),  # gone itself: its number may be another's by now
    ],
)
def test_a_parent_that_ends_meanwhile_hides_no_guard(monkeypatch, parents, ends, is_spared):
    monkeypatch.setattr(watchman, "stat_of", Lineage(parents, ends).stat_of)
    assert watchman._has_guard(9, [5]) is is_spared
