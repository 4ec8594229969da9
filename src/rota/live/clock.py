"""The live cluster's clock: wall time that never stands still and never goes back."""

import time

SMALLEST_STEP_S = 1e-6


class Clock:
    """Seconds since the epoch, strictly rising from call to call, whatever the system clock does.

    It is set once and then counts by the monotonic clock. ``after_s`` is a time that every reading
    must exceed: the last one in the event log.
    """

    def __init__(self, after_s: float = 0.0) -> None:
        self._last_s = after_s
        self._offset_s = max(time.time(), after_s) - time.monotonic()

    def now_s(self) -> float:
        """The time, later than every time read before."""
        now_s = self._offset_s + time.monotonic()
        self._last_s = max(now_s, self._last_s + SMALLEST_STEP_S)
        return self._last_s
