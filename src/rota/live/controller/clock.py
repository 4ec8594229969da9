"""The clock of a controller, which the next controller of the state folder continues."""

import json
import logging
import os
import time
from pathlib import Path

from rota.live.wire.clock import boot_id, boottime_s, read_ahead_s, wall_ahead_s

SMALLEST_STEP_S = 1e-6

log = logging.getLogger("rota.controller")


class Clock:
    """Seconds since the epoch, strictly rising from call to call, whatever the system clock does.

    Until the machine is rebooted, this clock passes as CLOCK_BOOTTIME does, also from one
    controller to the next: ``file`` has the seconds by which it is ahead of that. After a reboot,
    and without such a file, it is set by the wall clock. ``after_s`` is a time that every reading
    must exceed: the last one in the event log.
    """

    def __init__(self, file: Path, after_s: float = 0.0) -> None:
        self._last_s = after_s
        known_s = read_ahead_s(file)
        ahead_s = wall_ahead_s() if known_s is None else known_s
        self._ahead_s = max(ahead_s, after_s - boottime_s())
        if self._ahead_s != known_s:
            _write(file, self._ahead_s)

    def now_s(self) -> float:
        """The time, later than every time read before."""
        now_s = self._ahead_s + boottime_s()
        self._last_s = max(now_s, self._last_s + SMALLEST_STEP_S)
        return self._last_s


def _write(file: Path, ahead_s: float) -> None:
    draft = file.with_name(f"{file.name}.new")
    try:
        with open(draft, "w") as new:
            json.dump({"boot_id": boot_id(), "ahead_s": ahead_s}, new)
            new.flush()
            os.fsync(new.fileno())
        os.replace(draft, file)
    except OSError as error:
        log.warning("%s can't be written: %s; the next controller's time may differ", file, error)


def local_time(at_s: float, now_s: float) -> str:
    """A time of a clock that now shows ``now_s``, as a wall clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s - now_s + time.time()))
