"""On every answer the cluster's time and the place in the event log that the answer is of.

The cluster's clock and that of whoever reads the answer may differ.
"""

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = "rota-time"
CURSOR = "rota-cursor"


class TimeHeader:
    """ASGI middleware that adds ``Rota-Time``, seconds since the epoch, and ``Rota-Cursor``.

    What is read in an answer holds at least the events up to the cursor, as of the call.
    """

    def __init__(self, app: ASGIApp, now_s: Callable[[], float], cursor: Callable[[], str]) -> None:
        self.app = app
        self.now_s = now_s
        self.cursor = cursor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, and its answer with the headers."""
        cursor = self.cursor()

        async def send_with_time(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[NAME], headers[CURSOR] = f"{self.now_s():.3f}", cursor
            await send(message)

        await self.app(scope, receive, send_with_time if scope["type"] == "http" else send)
