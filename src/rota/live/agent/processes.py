"""Signals, bindings, CPU times and identities of processes, children of this one or not."""

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Awaitable, Collection, Iterable
from itertools import count
from typing import TypeVar

import psutil

from rota.live.wire import tags
from rota.live.wire.procfs import (
    CPU_TICKS,
    ENDED,
    PARENT,
    SPARE,
    STARTED,
    STATE,
    STOPPED,
    below,
    stat_of,
)

MOST_LOOKS = 5  # at processes that may continue to fork
TICKS = os.sysconf("SC_CLK_TCK")  # in a second
LOOK_AGAIN_S = 0.02  # a killed process takes a moment to end
Answer = TypeVar("Answer")


def descendants(pid: int) -> list[int]:
    """``pid`` and everything below it, parents before children; empty if it is gone."""
    found = [pid, *below(pid)]
    return found if os.path.exists(f"/proc/{pid}") else []


def children_below(pid: int) -> dict[int, list[int]]:
    """``pid`` and everything below it, parents before children, each with its children."""
    found: dict[int, list[int]] = {each: [] for each in descendants(pid)}
    for each in list(found)[1:]:
        with contextlib.suppress(OSError):
            if fields := stat_of(each):
                found.get(int(fields[PARENT]), []).append(each)
    return found


def signal_below(pid: int, number: signal.Signals, spared: int = 0) -> list[int]:
    """Send a signal to all descendants of a process, including those that are being forked.

    One process may be ``spared``; its descendants are not. Returns those that did not get it,
    because they run as another user.

    A killed process forks no more, so all are found in the end. After other signals a program may
    fork without end: processes that appear after the last look do not get it. A process that is
    being stopped may be in a fork: see :meth:`rota.live.agent.rank.Rank.stop`.
    """
    ends = number in (signal.SIGSTOP, signal.SIGKILL)
    done, refused = {spared}, []
    for _ in count() if ends else range(MOST_LOOKS):
        new = [each for each in descendants(pid)[1:] if each not in done]
        if not new:
            break
        done.update(new)
        for each in new:
            try:
                os.kill(each, number)
            except PermissionError:
                refused.append(each)
            except ProcessLookupError:
                pass
    return refused


def have_stopped(pids: Iterable[int]) -> bool:
    """True if all of these processes are stopped in all threads, or dead."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in SPARE.use(os.listdir, f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    fields = stat_of(pid, thread)
                    if fields and fields[STATE] not in STOPPED + ENDED:
                        return False
    return True


def bind(pid: int, cores: Collection[int], *, widens: bool = True) -> None:
    """Restrict a process, its descendants and all their threads to these cores.

    What is forked meanwhile may have the old ones, and is looked for again. Unless it ``widens``,
    threads that are restricted to some of the cores stay so.
    """
    chosen = set(cores)
    for _ in range(MOST_LOOKS):
        found = False
        for each in descendants(pid):
            with contextlib.suppress(OSError):
                for thread in map(int, os.listdir(f"/proc/{each}/task")):
                    with contextlib.suppress(OSError):
                        now = os.sched_getaffinity(thread)
                        if now != chosen and (widens or not now <= chosen):
                            os.sched_setaffinity(thread, chosen)
                            found = True
        if not found:
            return


def started_at(pid: int) -> float | None:
    """Start time of the process, in seconds of CLOCK_BOOTTIME; None if it is gone, or a zombie.

    The start time tells a process from another one with the same pid, and does not change when the
    wall clock is set. Raises OSError.
    """
    fields = stat_of(pid)
    return None if not fields or fields[STATE] in ENDED else int(fields[STARTED]) / TICKS


def tag_of(secret: str | None, name: str) -> int | None:
    """The tag of the processes of one life of a rank: see :mod:`rota.live.wire.tags`.

    ``secret`` and ``name`` are those of its attempt and of its files. None for an attempt of an
    older agent, which gave it none.
    """
    if secret is None:
        return None
    own = int.from_bytes(hashlib.sha256(f"{secret}/{name}".encode()).digest()[:7])
    key, has_key, _ = secret.partition("-")
    return tags.tag_on_node(int(key, 16), own) if has_key else tags.TAG | own


def rank_tag_of(pid: int) -> int | None:
    """The tag of a process, of a shim that of its rank; None if it is gone or another user's."""
    tag = tags.tag_or_limit(pid)
    return tag & ~tags.GUARD if tag is not None and tag >= tags.TAG else tag


def kill_remains(
    shims: Iterable[int], tags: Iterable[int | None], marks: dict[str, str] | None = None
) -> int:
    """Kill the processes that dead shims have left behind. Returns their number.

    They are known by their tag. A process that could be given none is known by its session, which
    keeps the shim's pid from being used again, or by these variables in the environment that it was
    executed with; without ``marks`` the environment is not looked at.
    """
    wanted = {tag for tag in tags if tag is not None}
    sessions = {pid for pid in shims if pid and started_at(pid) is None}
    killed = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            remains = rank_tag_of(process.pid) in wanted or os.getsid(process.pid) in sessions
            if not remains and marks is not None:
                environment = process.environ()
                remains = all(environment.get(key) == value for key, value in marks.items())
            if remains:
                process.kill()
                killed += 1
    return killed


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of these processes and all their descendants, ended ones included."""
    ticks = 0
    for pid in pids:
        for each in descendants(pid):
            with contextlib.suppress(OSError):
                ticks += sum(map(int, stat_of(each)[CPU_TICKS]))
    return ticks / TICKS


def own_cpu_seconds(pid: int) -> float:
    """CPU time of a process without its children; 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        used = psutil.Process(pid).cpu_times()
        return float(used.user + used.system)
    return 0.0


async def while_it_works(answer: Awaitable[Answer], pid: int, idle_s: float) -> Answer:
    """Wait for what a process answers; TimeoutError if it has used no CPU for ``idle_s``.

    On a busy machine a process may take minutes to load what it needs. What its children use does
    not count: they may be jobs.
    """
    task, used_s = asyncio.ensure_future(answer), -1.0
    try:
        while (now_s := own_cpu_seconds(pid)) > used_s:
            used_s = now_s
            if (await asyncio.wait([task], timeout=idle_s))[0]:
                return task.result()
    finally:
        task.cancel()
    raise TimeoutError
