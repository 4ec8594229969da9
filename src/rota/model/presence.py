"""Time during which a process could hear others: their silence counts in that time alone."""

LATE = 2.0  # a look after more than so many times its pace is late: the process stood still


class Presence:
    """Notices that its process stood still: it was stopped, its machine slept, its disk hung.

    The process looks every ``pace_s`` seconds or more often, and tells the time of each look, by
    one clock that never goes back. Where a look is late, the process was absent for the rest.
    """

    def __init__(self, pace_s: float) -> None:
        self._pace_s = pace_s
        self._last_s: float | None = None
        self.absent_s = 0.0  # in all

    def at(self, now_s: float, pace_s: float | None = None) -> float:
        """The time without all absences so far: to measure the silence of others by.

        ``pace_s`` is for a look that may come later than the others.
        """
        pace_s = self._pace_s if pace_s is None else pace_s
        if self._last_s is not None and now_s - self._last_s > LATE * pace_s:
            self.absent_s += now_s - self._last_s - pace_s
        self._last_s = now_s if self._last_s is None else max(self._last_s, now_s)
        return now_s - self.absent_s
