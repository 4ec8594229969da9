"""A bound on the time that a policy may take for one decision."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_DECISION_S = 60.0


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block once it has run for so long.

    Python code is interrupted where it is, again and again should it catch the error; a call of a
    compiled library, once it returns. Signals reach the main thread alone: in another one there is
    no limit. An alarm that was set before comes as it would have.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    runs = True

    def interrupt(*_: object) -> None:
        if runs:
            raise TimeoutError(f"it has not decided within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    delay_s, interval_s = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    began_s = time.perf_counter()
    try:
        yield
    finally:
        runs = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if delay_s:
            left_s = delay_s - (time.perf_counter() - began_s)
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 1e-3), interval_s)
