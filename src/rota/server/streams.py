"""Server-sent events: how one is written, how an answer of many is sent, and who may have one."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec
from starlette.responses import StreamingResponse

from rota.errors import BusyError
from rota.server.jobs import finite

STALL_S = 60.0  # a caller who has taken nothing for so long is cut off
MOST_STREAMS, MOST_OF_ONE = 256, 128  # in all, and of one caller
BEGINS_PER_S = 8.0  # streams that one caller may begin in the long run, after MOST_OF_ONE at once
PATIENCE_S = 5.0  # of a caller for whom there is no place
MOST_METERS = 1024

log = logging.getLogger("rota.server")


class _Meter(NamedTuple):
    """Streams that a caller has begun, less those that are forgiven by ``at_s``."""

    used: float
    at_s: float


class Places:
    """Places of streams, of all kinds together: so many in all, and of each caller."""

    def __init__(self) -> None:
        self._callers: dict[str, int] = {}
        self._meters: dict[str, _Meter] = {}  # of callers who have begun streams lately

    def __len__(self) -> int:
        return sum(self._callers.values())

    def take(self, caller: str) -> Callable[[], None]:
        """Take a place; the function gives it back. Raises BusyError."""
        mine, together = self._callers.get(caller, 0), len(self)
        if mine >= MOST_OF_ONE or together >= MOST_STREAMS:
            raise BusyError(
                f"{mine} streams of {caller} and {together} in all are open, and there may be "
                f"{MOST_OF_ONE} and {MOST_STREAMS}; close some, or try again later",
                PATIENCE_S,
            )
        self._meter(caller, time.monotonic())
        self._callers[caller] = mine + 1

        def leave() -> None:
            left = self._callers.pop(caller) - 1
            if left:
                self._callers[caller] = left

        return leave

    def _meter(self, caller: str, now_s: float) -> None:
        """Count a stream that begins. Raises BusyError if the caller begins too many."""
        meter = self._meters.pop(caller, None) or _Meter(0.0, now_s)
        used = max(0.0, meter.used - BEGINS_PER_S * (now_s - meter.at_s))
        if used > MOST_OF_ONE:
            self._meters[caller] = meter
            raise BusyError(
                f"{caller} begins streams too often; keep one open, and begin {BEGINS_PER_S:g} a "
                "second at most"
            )
        self._meters[caller] = _Meter(used + 1.0, now_s)
        if len(self._meters) > MOST_METERS:
            del self._meters[next(iter(self._meters))]


class StreamAnswer(StreamingResponse):
    """An answer of server-sent events, which calls ``leave`` as it ends.

    Whoever takes nothing of it for STALL_S is cut off.
    """

    def __init__(self, content: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the stream until its end or the caller's."""

        async def send_in_time(message: Any) -> None:
            async with asyncio.timeout(STALL_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            scope["state"]["connection"].transport.abort()
            log.warning("a stream is closed: nothing of it was taken for %g s", STALL_S)
            await asyncio.sleep(0)  # the server hears of it, and does not wonder
        finally:
            self._leave()


def sse(name: str, data: Any, cursor: str = "") -> bytes:
    """A server-sent event. Numbers that are not finite become null, as they do everywhere."""
    try:
        body = msgspec.json.encode(data)
    except (UnicodeEncodeError, OverflowError):  # jobs may report what JSON has and text has not
        body = json.dumps(finite(data)).encode()
    head = f"id: {cursor}\nevent: {name}\ndata: " if cursor else f"event: {name}\ndata: "
    return head.encode() + body + b"\n\n"
