"""Gives a background little of the CPU where a foreground wants it, and measures that it does.

Linux puts every session into an autogroup, which is what the scheduler weighs: in a session of its
own, as process managers start them, a process has the same share whatever its nice value or
SCHED_IDLE. What counts there is the nice value of the autogroup, or a control group's weight.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

LEAST_NICE = 19
LEAST_SHARES, NORMAL_SHARES = "2", "1024"  # cpu.shares, of version 1
LEAST_WEIGHT, NORMAL_WEIGHT = "1", "100"  # cpu.weight, of version 2
# It ends with whoever measures.
BURNER = "import os, sys\nparent = int(sys.argv[1])\nwhile os.getppid() == parent: pass"
ENOUGH_CPU_S, SETTLE_CPU_S = 0.25, 0.1  # of both burners together
PATIENCE_S = 20.0
WORKS_BELOW = 0.5  # of the foreground's CPU time: both have as much where a way does nothing
LOOK_EVERY_S = 0.01


class Way(Protocol):
    """One way of giving processes less weight. Methods raise OSError for what is refused."""

    name: str

    def lower(self, pid: int) -> None:
        """Give the session, or the group, of this process the least weight."""

    def restore(self, pid: int) -> None:
        """Give it the usual weight."""

    def close(self) -> None:
        """Undo what was made for it, once no process needs it."""


class Autogroup:
    """The nice value of a session's autogroup: for all processes that share its session."""

    name = "autogroup"

    def lower(self, pid: int) -> None:
        """See :class:`Way`; the kernel lets a user without rights write it ten times a second."""
        _write(Path(f"/proc/{pid}/autogroup"), str(LEAST_NICE))

    def restore(self, pid: int) -> None:
        """See :class:`Way`; only a privileged process may raise a weight again."""
        _write(Path(f"/proc/{pid}/autogroup"), "0")

    def close(self) -> None:
        """Nothing was made."""


class Nice:
    """The nice value of one process, which is void between sessions where there are autogroups."""

    name = "nice"

    def lower(self, pid: int) -> None:
        """See :class:`Way`."""
        os.setpriority(os.PRIO_PROCESS, pid, LEAST_NICE)

    def restore(self, pid: int) -> None:
        """See :class:`Way`."""
        os.setpriority(os.PRIO_PROCESS, pid, 0)

    def close(self) -> None:
        """Nothing was made."""


class CgroupWeight:
    """Two control groups below ``top``: one of the least weight, and one of the usual.

    ``whose`` tells their names from those of others.
    """

    name = "cgroup"

    def __init__(self, top: Path, whose: str) -> None:
        self._top = top
        self._low = top / f"{whose}-background"
        self._usual = top / f"{whose}-foreground"

    def lower(self, pid: int) -> None:
        """See :class:`Way`."""
        self._put(pid, self._low, background=True)

    def restore(self, pid: int) -> None:
        """See :class:`Way`."""
        self._put(pid, self._usual, background=False)

    def close(self) -> None:
        """Remove the groups; processes in them go back to the one above."""
        for group in (self._low, self._usual):
            with suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    with suppress(OSError):
                        _write(self._top / "cgroup.procs", pid)
            with suppress(OSError):
                group.rmdir()

    @staticmethod
    def _put(pid: int, group: Path, *, background: bool) -> None:
        group.mkdir(exist_ok=True)
        weigh(group, background=background)
        _write(group / "cgroup.procs", str(pid))


def weigh(group: Path, *, background: bool) -> None:
    """Give a control group, of either version, the least weight or the usual one. OSError."""
    if (group / "cpu.shares").exists():
        _write(group / "cpu.shares", LEAST_SHARES if background else NORMAL_SHARES)
    else:
        _write(group / "cpu.weight", LEAST_WEIGHT if background else NORMAL_WEIGHT)


class Measured(NamedTuple):
    """What a way does: CPU time of a lowered process for each second of one that is not."""

    name: str
    ratio: float | None  # None: it could not be measured
    why: str = ""

    @property
    def works(self) -> bool:
        """True if a background gives way."""
        return self.ratio is not None and self.ratio < WORKS_BELOW


def measure(
    way: Way, core: int | None = None, clock: Callable[[], float] = time.monotonic
) -> Measured:
    """Let two processes burn one ``core``, each in a session of its own, one of them lowered.

    By their CPU time, so that others on that core don't matter. It takes about half a second where
    there are none, and 20 s at most.
    """
    core = min(os.sched_getaffinity(0)) if core is None else core
    deadline_s = clock() + PATIENCE_S
    with ExitStack() as stack:
        stack.callback(way.close)
        pids = _burners(core, stack)
        try:
            if isinstance(way, CgroupWeight):
                way.restore(pids[0])
            way.lower(pids[1])
        except OSError as error:
            return Measured(way.name, None, f"{error.filename or way.name}: {error.strerror}")
        # What they did before is still weighed for a moment.
        if _burn(pids, SETTLE_CPU_S, deadline_s, clock) is not None:
            burnt = _burn(pids, ENOUGH_CPU_S, deadline_s, clock)
            if burnt is not None:
                return Measured(way.name, burnt[1] / burnt[0])
    return Measured(way.name, None, "its burners had too little of the CPU to tell")


def _burners(core: int, stack: ExitStack) -> tuple[int, int]:
    """Two processes that have been on this core alone from their beginning.

    One that comes from another core counts there as well for a while, and has less here.
    """
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return _burner(stack), _burner(stack)
    finally:
        os.sched_setaffinity(0, own)


def _burner(stack: ExitStack) -> int:
    words = [sys.executable, "-IS", "-c", BURNER, str(os.getpid())]
    child = subprocess.Popen(words, start_new_session=True)
    stack.callback(child.wait)
    stack.callback(child.kill)
    return child.pid


def _burn(
    pids: tuple[int, int], enough_s: float, deadline_s: float, clock: Callable[[], float]
) -> tuple[float, float] | None:
    """CPU time of both from now on, once it is enough together; None if time is up."""
    began = [cpu_s(pid) for pid in pids]
    while clock() < deadline_s:
        first_s, second_s = (cpu_s(pid) - s for pid, s in zip(pids, began, strict=True))
        if first_s + second_s >= enough_s and first_s > 0:
            return first_s, second_s
        time.sleep(LOOK_EVERY_S)
    return None


def cpu_s(pid: int) -> float:
    """CPU time of the first thread of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _write(file: Path, text: str) -> None:
    with open(file, "w") as opened:
        opened.write(text)
