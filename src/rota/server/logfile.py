"""The controller's log: what goes wrong again and again is told once a minute, with how often."""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rota.live.logline import TEXT, formatter

REPEATED_S = 60.0
MOST_KNOWN = 1000  # different warnings and errors at a time
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class _Repeated:
    """A warning or error that has been written, and how often it has come since."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.count = 0


class LogFile(logging.FileHandler):
    """A log in which each warning and error stands once in ``REPEATED_S``, then its number."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, log_format: str = TEXT
    ) -> None:
        """``log_format`` is one of :data:`rota.live.logline.FORMATS`."""
        super().__init__(path)
        self.setFormatter(formatter(log_format, FORMAT, process="controller"))
        self._clock = clock
        self._repeated: dict[tuple[str, int, str, str], _Repeated] = {}  # the oldest first

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, or count it."""
        now_s = self._clock()
        self._tell_repetitions(now_s)
        if record.levelno >= logging.WARNING:
            error = repr(record.exc_info[1]) if record.exc_info else ""
            key = (record.name, record.levelno, record.getMessage(), error)
            known = self._repeated.get(key)
            if known is not None:
                known.count += 1
                return
            self._repeated[key] = _Repeated(now_s + REPEATED_S)
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave out what has no room on the disk, without a word on the terminal."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Tell what has not been told."""
        self._tell_repetitions(float("inf"))
        super().close()

    def _tell_repetitions(self, now_s: float) -> None:
        while self._repeated:
            key, known = next(iter(self._repeated.items()))
            if known.until_s > now_s and len(self._repeated) < MOST_KNOWN:
                return
            del self._repeated[key]
            if known.count:
                name, level, message, error = key
                times = "once" if known.count == 1 else f"{known.count} times"
                first = message.splitlines()[0] if message else ""
                text = f"{times} more: {first}{f': {error:.200}' if error else ''}"
                super().emit(logging.LogRecord(name, level, "", 0, text, None, None))
