"""Logs, in one line now and then, that an event loop lacks descriptors, processes or memory."""

import asyncio
import logging
from typing import Any

from rota.errors import shortage_of

AGAIN_S = 60.0  # until the same shortage is logged again


class Shortages:
    """Each shortage that its process met, and when it was last logged."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: dict[str, float] = {}

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log the shortages of a loop: where it accepts no connection, and where a task fails.

        A loop that can't accept a connection tries again after a second.
        """
        loop.set_exception_handler(self._handle)

    def tell(self, what: str, error: BaseException) -> bool:
        """Log a failure for lack of something, unless that was just done. False for others."""
        shortage = shortage_of(error)
        if shortage is None:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told.get(shortage, -AGAIN_S) >= AGAIN_S:
            self._told[shortage] = now_s
            self._log.error("%s: %s; it is tried again", what, shortage)
        return True

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = "a connection can't be accepted" if "socket" in context else "a call failed"
        if error is None or not self.tell(what, error):
            loop.default_exception_handler(context)
