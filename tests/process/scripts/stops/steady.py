"""Steps that take as long as they are meant to, on average, whatever else the machine does."""

import time

MOST_LATE_S = 0.5  # that is made up for


class Steady:
    """A clock of steps: what one takes too long the next ones make up for.

    So a policy that compares speeds finds what the test means, and not how busy the machine was.
    Time between two steps, in suspensions for example, does not count.
    """

    def __init__(self) -> None:
        self._late_s = 0.0
        self._began_s = time.monotonic()

    def begin(self) -> None:
        """A step begins, or what counts of it."""
        self._began_s = time.monotonic()

    def end(self, seconds: float) -> None:
        """Wait until the step has taken so many seconds, less what is to be made up for."""
        left_s = self._began_s + seconds - self._late_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        late_s = self._late_s + time.monotonic() - self._began_s - seconds
        self._late_s = min(max(late_s, 0.0), MOST_LATE_S)

    def end_late(self, seconds: float, times: int) -> None:
        """Wait ``times`` as long as the step has taken, or was to take, which nothing makes up for.

        So it is slower than the other steps of its time, however slow these are.
        """
        time.sleep(times * max(seconds, time.monotonic() - self._began_s))
        self._late_s = 0.0
