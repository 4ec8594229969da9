"""A node's watchman: a second fence around its jobs, which needs neither the agent nor a shim.

A shim stops what is below it at the end of the node's lease, and its agent removes what a killed
shim has left behind. If both are killed, what a job has started beside its worker runs on, while
the job may begin anew elsewhere. The watchman is a process of its own: it sleeps until the lease is
over, kills what has outlived its shim then, and wakes the shims, since they may be stopped, or the
machine may have slept. It ends once the agent is gone and no process of a job is left.

It knows the processes of the node's jobs by their tags (:mod:`rota.live.wire.tags`), by their
control groups, and by the environment that they were executed with.
"""

import ctypes
import os
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rota.live.wire import clock, tags
from rota.live.wire.lease import Lease
from rota.live.wire.procfs import ENDED, PARENT, STATE, stat_of
from rota.live.wire.title import title

EARLY_S = 0.25  # before the end of the lease it begins, to be done by then
LOOK_S = 1.0  # while the lease is over
LOOK_AGAIN_S = 0.05  # at what was killed
LONGEST_S = 3600.0
AGENT = 0  # the descriptor of a pipe whose other end the agent has
OF_A_JOB = re.compile(r"(?!0\.0$)[0-9]+\.[0-9]+")  # a control group; 0.0 is a trial's
CLOCK_BOOTTIME, TFD_TIMER_ABSTIME = 7, 1
MOST_NAMED = 80  # characters of the command of a process that was killed

LIBC = ctypes.CDLL(None, use_errno=True)


class Watchman:
    """See the module. ``trees`` have the control groups of the node's jobs, if they have any."""

    def __init__(self, folder: Path, lease: Lease, key: int, trees: Sequence[Path] = ()) -> None:
        self._folder, self._lease, self._key, self._trees = folder, lease, key, trees
        self._pulse = b"ROTA_PULSE=" + os.fsencode(folder / "jobs") + b"/"
        self._has_agent = True
        self._alarm = LIBC.timerfd_create(CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        """Watch until there is neither an agent nor a process of a job."""
        while True:
            left_s = self._lease.left_s - EARLY_S
            guards, again_s = list[int](), left_s
            try:
                if left_s <= 0:
                    again_s = LOOK_AGAIN_S if self._end_orphans() else LOOK_S
                if left_s <= 0 or not self._has_agent:
                    guards, others = self._living()
                    if not (self._has_agent or guards or others):
                        return
            except OSError:  # the machine has no descriptor for /proc now
                again_s = LOOK_S
            if left_s <= 0:
                for guard in guards:  # it may have been stopped, or sleep as if no time had passed
                    _send(guard, signal.SIGCONT)
                    _send(guard, signal.SIGCHLD)
            self._wait(min(again_s, LONGEST_S), guards)

    # -- the processes of the node's jobs ------------------------------------------------------

    def _living(self) -> tuple[list[int], dict[int, bool]]:
        """The living guards of the node, and its jobs' other processes: True for tagged ones."""
        guards, others = list[int](), dict[int, bool]()
        for pid in _pids():
            tag = tags.tag_or_limit(pid)
            if tag is not None and tags.key_in(tag) == self._key:
                if tag & tags.WATCHMAN or not _lives(pid):
                    continue
                if tag & tags.GUARD:
                    guards.append(pid)
                else:
                    others[pid] = True
            elif self._has_pulse(pid) and _lives(pid):
                others[pid] = False
        for pid in self._in_groups():
            if _lives(pid):
                others.setdefault(pid, False)
        return guards, others

    def _has_pulse(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return environment.startswith(self._pulse) or b"\0" + self._pulse in environment

    def _in_groups(self) -> Iterator[int]:
        for tree in self._trees:
            for group in tree.glob("*"):
                if OF_A_JOB.fullmatch(group.name):
                    for file in group.rglob("cgroup.procs"):
                        with suppress(OSError):
                            yield from map(int, file.read_text().split())

    def _orphans(self) -> set[int]:
        """Processes of jobs with no guard above them."""
        guards, others = self._living()
        orphans = {pid for pid in others if not _has_guard(pid, guards)}
        if any(not others[pid] for pid in orphans):  # older agents' shims are no guards
            shims = self._claimed()
            orphans = {pid for pid in orphans if others[pid] or not _has_guard(pid, shims)}
        return orphans

    def _claimed(self) -> list[int]:
        """The pids that shims have written down; some of these shims may be gone."""
        found = []
        for file in self._folder.glob("jobs/*/*/rank*.pid"):
            with suppress(OSError, ValueError):
                words = re.search(r'"shim": *([0-9]+)', file.read_text())
                found.append(int(words[1]) if words is not None else 0)
        return found

    # -- killing and waiting -------------------------------------------------------------------

    def _end_orphans(self) -> bool:
        """Kill all processes that have outlived their shim. True if there were any."""
        ended = set[int]()
        while new := self._orphans() - ended:
            for pid in new:
                name = _name_of(pid)
                if _send(pid, signal.SIGKILL):
                    at = time.strftime("%Y-%m-%d %H:%M:%S")
                    with suppress(OSError):  # a full disk
                        print(f"{at} killed {pid}, which had outlived its shim: {name}", flush=True)
            ended |= new
        return bool(ended)

    def _wait(self, seconds: float, guards: Iterable[int]) -> None:
        """Wait for so long, or until a guard or the agent ends; sleep of the machine counts."""
        until_s = clock.boottime_s() + seconds
        whole_s = int(until_s)
        times = struct.pack("qqqq", 0, 0, whole_s, int((until_s - whole_s) * 1e9))
        LIBC.timerfd_settime(self._alarm, TFD_TIMER_ABSTIME, times, None)
        poll, opened = select.poll(), list[int]()
        poll.register(self._alarm, select.POLLIN)
        if self._has_agent:
            poll.register(AGENT, 0)  # tells that it was closed at the other end
        try:
            for guard in guards:
                with suppress(OSError):
                    opened.append(os.pidfd_open(guard))
                    poll.register(opened[-1], select.POLLIN)
            came = dict(poll.poll())
        finally:
            for descriptor in opened:
                os.close(descriptor)
        if AGENT in came:
            self._has_agent = False


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _lives(pid: int) -> bool:
    fields = stat_of(pid)
    return bool(fields) and fields[STATE] not in ENDED


def _has_guard(pid: int, guards: Sequence[int]) -> bool:
    """True if one of the guards is above a process, or is the process, or if the process is gone.

    A parent may end between two looks, and its children are handed on, perhaps to a guard: then the
    way up begins again. A parent that its children still name is not gone but hidden.
    """
    above, ended = pid, 0
    while above > 1 and above not in guards:
        if fields := stat_of(above):
            above = int(fields[PARENT])
        elif above in (pid, ended):
            return above == pid
        else:
            above, ended = pid, above
    return above > 1


def _name_of(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
        return ascii(words.decode(errors="replace"))[1:-1][:MOST_NAMED]
    return "?"


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def _take_over(key: int) -> None:
    """Take the place of the watchman of an earlier agent."""
    for pid in _pids():
        tag = tags.tag_or_limit(pid)
        if tag is not None and tags.key_in(tag) == key and tag & tags.WATCHMAN:
            _send(pid, signal.SIGKILL)


def main() -> None:
    """``FOLDER LEASE KEY TITLE [TREE]...``: watch over the node with this folder."""
    folder, lease, key, words, *trees = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    title(words)  # without "rota": `pkill -f rota` is not to end it
    tags.set_tag(tags.tag_on_node(int(key), 0) | tags.WATCHMAN)
    watchman = Watchman(Path(folder), Lease(Path(lease)), int(key), [Path(tree) for tree in trees])
    _take_over(int(key))
    watchman.run()
