"""The clock of a controller, which the next controller of the state folder continues."""

import logging
import time
from pathlib import Path

from rota.live.wire.clock import boottime_s, keep_ahead_s, read_ahead_s, wall_ahead_s

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
            try:
                keep_ahead_s(file, self._ahead_s)
            except OSError as error:
                text = "%s can't be written: %s; the next controller's time may differ"
                log.warning(text, file, error)

    def now_s(self) -> float:
        """The time, later than every time read before."""
        now_s = self._ahead_s + boottime_s()
        self._last_s = max(now_s, self._last_s + SMALLEST_STEP_S)
        return self._last_s


def local_time(at_s: float, now_s: float) -> str:
    """A time of a clock that now shows ``now_s``, as a wall clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s - now_s + time.time()))
