"""The clock that a cluster's controller, agents and workers share.

Seconds since the epoch that pass as CLOCK_BOOTTIME does. Nobody can set that clock: jobs are
charged for the time that has passed, even if the wall clock is changed. The offset of the cluster's
time to CLOCK_BOOTTIME stays the same until the machine is rebooted.
"""

import contextlib
import json
import math
import os
import time
from pathlib import Path

VARIABLE = "ROTA_CLOCK"  # seconds by which the cluster's time is ahead of CLOCK_BOOTTIME
TOLERANCE_S = 0.1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_ahead_s: float | None = None  # in this process, once somebody has asked


def boot_id() -> str:
    """The name of this life of the machine, a new one after every reboot; "" if it has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def boottime_s() -> float:
    """Seconds since the machine was booted, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now_s() -> float:
    """The cluster's time; outside of a cluster the wall clock's, as it is at the first call."""
    return ahead_s() + boottime_s()


def ahead_s() -> float:
    """Seconds by which :func:`now_s` is ahead of CLOCK_BOOTTIME in this process."""
    global _ahead_s
    if _ahead_s is None:
        try:
            told_s = float(os.environ[VARIABLE])
        except (KeyError, ValueError):
            told_s = math.nan
        _ahead_s = told_s if math.isfinite(told_s) else wall_ahead_s()
    return _ahead_s


def wall_ahead_s() -> float:
    """Seconds by which the wall clock, as now set, is ahead of CLOCK_BOOTTIME."""
    return time.time() - boottime_s()


def corrected_ahead_s(ahead_s: float, asked_s: float, told_s: float, heard_s: float) -> float:
    """By how much a clock is ahead of CLOCK_BOOTTIME once it is set by another one.

    That one told its time, ``told_s``, between the moments ``asked_s`` and ``heard_s`` of
    CLOCK_BOOTTIME. A clock that is as right as this can show, give or take TOLERANCE_S, stays.
    """
    right_s = told_s - (asked_s + heard_s) / 2
    is_right = abs(right_s - ahead_s) <= (heard_s - asked_s) / 2 + TOLERANCE_S
    return ahead_s if is_right else right_s


def follow(ahead_s: float | None) -> None:
    """Set the offset of :func:`now_s` to CLOCK_BOOTTIME, here and in processes begun later.

    None stands for the wall clock's offset at this moment.
    """
    global _ahead_s
    _ahead_s = wall_ahead_s() if ahead_s is None else ahead_s
    os.environ[VARIABLE] = repr(_ahead_s)


def read_ahead_s(file: Path) -> float | None:
    """Seconds by which a controller's clock was ahead of CLOCK_BOOTTIME when it wrote the file.

    None if there is no such file, or if it was written before the machine was rebooted.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        told = json.loads(file.read_text())
        ahead_s = float(told["ahead_s"])
        if told["boot_id"] and told["boot_id"] == boot_id() and math.isfinite(ahead_s):
            return ahead_s
    return None


def keep_ahead_s(file: Path, ahead_s: float) -> None:
    """Write down for :func:`read_ahead_s` by how much the clock is ahead. Raises OSError."""
    draft = file.with_name(f"{file.name}.new")
    with open(draft, "w") as new:
        json.dump({"boot_id": boot_id(), "ahead_s": ahead_s}, new)
        new.flush()
        os.fsync(new.fileno())
    os.replace(draft, file)
