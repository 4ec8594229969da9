"""What the kernel says of processes and of the cores that they run on: CPU time, run delay."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
BUSY = (0, 1, 2, 5, 6, 7)  # of a core's line: user, nice, system, irq, softirq, steal


class Used(NamedTuple):
    """CPU seconds of processes, and for how long they waited for a core meanwhile."""

    cpu_s: float
    delay_s: float


def used(pids: Collection[int]) -> Used:
    """CPU time of all threads of these processes, run delay of the first thread of each.

    Other threads wait for the first one, where they are bound to the same core. Those that have
    ended are not in it: ask about processes that keep theirs. It is 0 for processes that are gone.
    """
    cpu_ns = delay_ns = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            try:
                on_core, waiting, _ = (thread / "schedstat").read_text().split()
            except (OSError, ValueError):
                continue
            cpu_ns += int(on_core)
            delay_ns += int(waiting) if thread.name == str(pid) else 0
    return Used(cpu_ns / 1e9, delay_ns / 1e9)


def busy_s(cores: Collection[int]) -> float:
    """CPU seconds of whoever ran on these cores, and what a hypervisor took of them."""
    found = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *times = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            found += sum(int(times[at]) for at in BUSY)
    return found / TICKS


def cores_of(pids: Collection[int]) -> set[int]:
    """The cores that these processes are bound to."""
    return {core for pid in pids for core in os.sched_getaffinity(pid)}
