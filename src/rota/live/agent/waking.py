"""Lets stopped processes go on, children before their parents.

A parent may be waiting for its children with a time limit that was over while all were stopped: a
loader's ``timeout``, ``queue.get(timeout)``, ``Popen.wait(timeout)``, a heartbeat. What it
waits for has to be there before it looks. So each process goes on once its children have *settled*.
A child has settled when it has ended, has written something since it goes on, or is idle; and after
``PATIENCE_S`` in any case. For a parent that was not waiting it is enough that its children run.

Should the agent be gone before the last one goes on, a guard lets all of them go on at once.
"""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rota.live.agent.processes import children_below, descendants
from rota.live.wire.procfs import ENDED, STATE, STOPPED, stat_of
from rota.share.stop import Waker

PATIENCE_S = 10.0  # with a child that works on and has written nothing yet
BRIEF_S = 0.5  # the same, if its parent was not waiting
IDLE_S = 0.5  # without CPU time, sleep or disk after which a child is idle
IDLE_SHARE = 0.05  # of a CPU that an idle process may use: it looks around now and then
SLEEPS, WAITS_FOR_CHILD = "nanosleep", "do_wait"  # in the kernel's names of places to wait


class Sample(NamedTuple):
    """One look at a process: CPU time of its threads, number of writes, True if it works."""

    at_s: float
    cpu_s: float
    writes: int
    works: bool


class Waking:
    """The processes below one shim go on.

    ``waiting`` are those that were waiting as they were stopped; None if that is not known.
    """

    def __init__(self, shim: int, waiting: frozenset[int] | None) -> None:
        self._shim, self._waiting = shim, waiting
        self._woken: dict[int, Sample] = {}  # as each went on
        self._busy: dict[int, Sample] = {}  # when each was last seen at work
        self._called = False  # True once those that do not seem to be stopped had their signal
        self._guard: Waker | None = None  # while some are stopped

    def step(self, now_s: float) -> bool:
        """Let those go on whose children have settled; True once none is stopped any more."""
        children = children_below(self._shim)
        if not self._called:
            self._called = True
            for pid in children:
                if pid != self._shim and not _has_stopped(pid):
                    _go_on(pid)  # its stop may be yet to come: it waits for a disk
        left = [pid for pid in children if pid != self._shim and _has_stopped(pid)]
        for pid in reversed(left):  # children come after their parents
            if pid in self._woken or all(self._has_settled(c, pid, now_s) for c in children[pid]):
                self._wake(pid, now_s)
        is_over = self._woken.keys() >= set(left)
        if is_over:
            self.close()
        elif self._guard is None:
            with contextlib.suppress(OSError):  # no memory: the next agent lets them go on
                self._guard = Waker([self._shim])
        return is_over

    def close(self) -> None:
        """Leave stopped what still is."""
        if self._guard is not None:
            self._guard.call_off()
            self._guard = None

    def _wake(self, pid: int, now_s: float) -> None:
        _go_on(pid)
        self._woken.setdefault(pid, _sample(pid, now_s))
        self._busy.setdefault(pid, self._woken[pid])

    def _has_settled(self, pid: int, parent: int, now_s: float) -> bool:
        woken = self._woken.get(pid)
        if woken is None:  # it is stopped, or never was
            return not _has_stopped(pid)
        if _state(pid) in ENDED:
            return True
        now = _sample(pid, now_s)
        if self._waiting is not None and parent not in self._waiting:
            return (now.cpu_s > woken.cpu_s and not now.works) or now_s >= woken.at_s + BRIEF_S
        busy = self._busy[pid]
        if now.works or now.cpu_s - busy.cpu_s > IDLE_SHARE * (now_s - busy.at_s):
            self._busy[pid] = now
        is_idle = now_s >= self._busy[pid].at_s + IDLE_S
        return is_idle or now.writes > woken.writes or now_s >= woken.at_s + PATIENCE_S


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGCONT)


def waiting_below(shim: int) -> frozenset[int]:
    """The processes below a shim that wait for something but the end of a child."""
    return frozenset(pid for pid in descendants(shim)[1:] if _waits(pid))


def _waits(pid: int) -> bool:
    states = [state for state, _ in _threads(pid)]
    return bool(states) and "R" not in states and not _is_in(pid, WAITS_FOR_CHILD)


def _has_stopped(pid: int) -> bool:
    return _state(pid) in STOPPED


def _state(pid: int) -> str:
    try:
        return stat_of(pid)[STATE]
    except (OSError, IndexError):
        return "X"


def _sample(pid: int, now_s: float) -> Sample:
    threads = list(_threads(pid))
    works = any(state in ("R", "D") for state, _ in threads) or _is_in(pid, SLEEPS)
    writes = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/io").read_text()
        writes = int(text.partition("syscw:")[2].split(maxsplit=1)[0])
    return Sample(now_s, sum(cpu_s for _, cpu_s in threads), writes, works)


def _threads(pid: int) -> Iterable[tuple[str, float]]:
    """The state of each thread of a process, and its CPU time; none if the process is gone."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                ran_ns = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
                yield stat_of(pid, thread)[STATE], ran_ns / 1e9


def _is_in(pid: int, place: str) -> bool:
    """True if the first thread of a process waits in a place of the kernel."""
    try:
        return place in Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False
