"""The waiting jobs in the order in which the policy would start them, for lists of jobs."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from rota.live.controller.queue_order import positions
from rota.server.threads import in_thread
from rota.server.twin import copied

SHARE = 20.0  # the order is found again after so many times as long as that took

log = logging.getLogger("rota.server")


class QueueOrder:
    """The positions of waiting jobs, found on a copy beside the controller's loop.

    They are found when somebody asks for them and something has happened since, and so seldom that
    it takes no more than a twentieth of the time: with many jobs they may be some moments old.
    """

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._positions: Mapping[int, int] = {}
        self._events = -1  # that had happened
        self._again_s = 0.0
        self._one = asyncio.Lock()

    async def positions(self) -> Mapping[int, int]:
        """The position of each job that waits for GPUs, from 1, by row."""
        async with self._one:
            state = self._controller.state
            if self._events != state.events and time.monotonic() >= self._again_s:
                began_s, self._events = time.monotonic(), state.events
                twin, now_s = await copied(state), self._controller.now_s()
                policy = self._controller.new_policy()
                try:
                    self._positions = await in_thread(positions, twin, now_s, policy)
                except Exception:  # a policy is anybody's code
                    log.exception("policy %s can't tell the order of its queue", policy.name)
                    self._positions = {}
                took_s = time.monotonic() - began_s
                self._again_s = time.monotonic() + SHARE * took_s
        return self._positions
