"""The cluster's time on every answer: its clock and that of whoever reads the answer may differ."""

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = "rota-time"


class TimeHeader:
    """ASGI middleware that adds ``Rota-Time``, seconds since the epoch, to answers."""

    def __init__(self, app: ASGIApp, now_s: Callable[[], float]) -> None:
        self.app = app
        self.now_s = now_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, and its answer with the header."""

        async def send_with_time(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[NAME] = f"{self.now_s():.3f}"
            await send(message)

        await self.app(scope, receive, send_with_time if scope["type"] == "http" else send)
