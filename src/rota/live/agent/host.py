"""CPU cores and memory of an agent's machine that jobs may use, by its control groups."""

import os
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def usable_millicores(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Thousandths of a CPU core that this process and its children may use together.

    They are the cores of its affinity, or less if a quota of a control group around it says so.
    """
    quotas = [1000 * len(os.sched_getaffinity(0))]
    for folder in _groups(mount, own, "cpu"):
        limit = _words(folder / "cpu.max")
        if not limit:
            limit = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(limit) == 2 and all(word.isdigit() for word in limit) and int(limit[1]) > 0:
            quotas.append(1000 * int(limit[0]) // int(limit[1]))
    return max(1, min(quotas))


def usable_memory_gb(mount: Path = MOUNT, own: Path = OWN) -> float:
    """Memory in 1e9 bytes: the machine's, or that of a control group around this process."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _groups(mount, own, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [int(word) for word in _words(folder / name) if word.isdigit()]
    return round(min(limits) / 1e9, 3)


def _groups(mount: Path, own: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups around this process, of version 2 and of version 1.

    In a container its own group may be the root of what it sees, whatever path it is told.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = mount / controllers
        group = root / path.lstrip("/")
        yield group
        yield from (outer for outer in group.parents if outer == root or root in outer.parents)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
