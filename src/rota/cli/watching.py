"""Redrawing when something has happened: who watches the cluster asks it for nothing meanwhile."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from rota.errors import RotaError

if TYPE_CHECKING:
    from rota.client.client import Client


class Watch:
    """Events of the cluster after a place in its log, heard in a thread of its own."""

    def __init__(self, client: Client, cursor: str | None, least_s: float) -> None:
        self._events = client.events(after=cursor, busy=True)
        self._least_s = least_s
        self._drawn_s = time.monotonic()
        self._something = threading.Event()
        self._error: RotaError | None = None
        self._why: str | None = None
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    def wait(self) -> str | None:
        """Wait until something has happened, and ``least_s`` since the last time.

        Returns the reason for which no controller answers, None if one does. Raises what the
        stream has ended with.
        """
        self._something.wait()
        time.sleep(max(0.0, self._drawn_s + self._least_s - time.monotonic()))
        self._drawn_s = time.monotonic()
        self._something.clear()
        if self._error is not None:
            raise self._error
        return self._why

    def _listen(self) -> None:
        from rota.client.events import Busy, Connected, Disconnected

        has_begun = False
        try:
            for told in self._events:
                if isinstance(told, Disconnected):
                    self._why = told.why
                elif isinstance(told, Connected | Busy):
                    self._why = None
                if has_begun or not isinstance(told, Connected):
                    self._something.set()
                has_begun = True
        except RotaError as error:
            self._error = error
            self._something.set()
