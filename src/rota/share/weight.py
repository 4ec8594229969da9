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
BURNER = "while True: pass"
ENOUGH_CPU_S = 0.25  # of both burners together
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
    """Two control groups below ``top``: one of the least weight, and one of the usual."""

    name = "cgroup"

    def __init__(self, top: Path) -> None:
        self._top = top
        self._low = top / f"rota-background-{os.getpid()}"
        self._usual = top / f"rota-foreground-{os.getpid()}"

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
    with ExitStack() as stack:
        stack.callback(way.close)
        usual, lowered = (_burner(core, stack) for _ in range(2))
        try:
            if isinstance(way, CgroupWeight):
                way.restore(usual.pid)
            way.lower(lowered.pid)
        except OSError as error:
            return Measured(way.name, None, f"{error.filename or way.name}: {error.strerror}")
        began = [cpu_s(each.pid) for each in (usual, lowered)]
        deadline_s = clock() + PATIENCE_S
        while True:
            foreground_s, background_s = (
                cpu_s(each.pid) - before
                for each, before in zip((usual, lowered), began, strict=True)
            )
            if foreground_s + background_s >= ENOUGH_CPU_S and foreground_s > 0:
                return Measured(way.name, background_s / foreground_s)
            if clock() > deadline_s:
                return Measured(way.name, None, "its burners had too little of the CPU to tell")
            time.sleep(LOOK_EVERY_S)


def _burner(core: int, stack: ExitStack) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-IS", "-c", BURNER], start_new_session=True)
    stack.callback(child.wait)
    stack.callback(child.kill)
    os.sched_setaffinity(child.pid, {core})
    return child


def cpu_s(pid: int) -> float:
    """CPU time of the first thread of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _write(file: Path, text: str) -> None:
    with open(file, "w") as opened:
        opened.write(text)
