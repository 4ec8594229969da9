"""Steps that take as long as they are meant to, on average, whatever else the machine does."""

import fcntl
import os
import time
from pathlib import Path

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


class Company:
    """Tells whether another training with the same ``path`` is in a step: ``with company as met``.

    Each locks a file of its own during its steps, and waits for nobody: who must wait for a lock
    may do so for long while the other takes it again and again.
    """

    def __init__(self, path: str) -> None:
        self._own = Path(f"{path}.job{os.environ['ROTA_JOB_ID']}")
        self._file = self._own.open("a")

    def __enter__(self) -> bool:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        others = set(self._own.parent.glob(f"{self._own.stem}.job*")) - {self._own}
        return any(map(_is_locked, others))

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


def _is_locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
