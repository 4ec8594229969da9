"""Waiting for a change of the cluster with a time limit, in a thread that does nothing else."""

import threading
from collections.abc import Callable
from typing import Self

from rota.client.events import Busy, Connected, Events, Logged, Resync, Told
from rota.errors import RotaError


def concerns(job_id: str | None, told: Told) -> bool:
    """True if the job, or with None any, may have changed, or events may have been missed."""
    if isinstance(told, Logged):
        return job_id in (None, told.job_id, *(line.job_id for line in told.lines))
    return isinstance(told, Connected | Resync | Busy)


class Changes:
    """Changes that a stream tells of, heard in a thread while the ``with`` statement lasts."""

    def __init__(self, events: Events, is_one: Callable[[Told], bool]) -> None:
        self._events, self._is_one = events, is_one
        self._something = threading.Event()
        self._error: RotaError | None = None
        self._thread = threading.Thread(target=self._listen, name="changes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._events.stop()
        self._thread.join()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change since the last call; returns False if there is none in ``timeout_s``.

        Raises the error by which the stream has ended.
        """
        is_told = self._something.wait(timeout_s)
        self._something.clear()
        if self._error is not None:
            raise self._error
        return is_told

    def _listen(self) -> None:
        try:
            for told in self._events:
                if self._is_one(told):
                    self._something.set()
        except RotaError as error:
            self._error = error
            self._something.set()
