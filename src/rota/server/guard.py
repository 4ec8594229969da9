"""Checks on every call before a route sees it: Host, Origin, token, the whole body in time.

It stands in front of the routes, so that a new one is guarded from the start.
"""

import asyncio
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.errors import AuthError, InputError, ServerError
from rota.server.auth import AGENT, USER, Tokens, check_token
from rota.server.problems import problem, problem_of

MAX_BODY_BYTES = 1 << 20
BODY_TIMEOUT_S = 30.0
OPEN_PATHS = frozenset({"/healthz"})
AGENT_PREFIX = "/agent/"

# Names that a web page can't make resolve to this machine by its own DNS (rebinding).
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?\Z", re.IGNORECASE)


class Guard:
    """ASGI middleware for HTTP and WebSocket."""

    def __init__(
        self, app: ASGIApp, tokens: Tokens, body_timeout_s: float = BODY_TIMEOUT_S
    ) -> None:
        self.app = app
        self.tokens = tokens
        self.body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer it with the problem."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        refusal = self._refusal(scope)
        has_token = refusal is None and scope["path"] not in OPEN_PATHS
        scope["state"]["connection"].has_asked(with_token=has_token)
        if refusal is None and scope["type"] == "http":
            try:
                async with asyncio.timeout(self.body_timeout_s):
                    body = await _read_body(receive)
            except TimeoutError:
                detail = f"the body had not come within {self.body_timeout_s:g} s"
                refusal = problem(408, InputError.__name__, detail)
            else:
                if body is None:
                    detail = f"the body is larger than {MAX_BODY_BYTES} bytes"
                    refusal = problem(413, InputError.__name__, detail)
                else:
                    receive = _replay(body, receive)
        if refusal is None:
            return await self.app(scope, receive, send)
        if scope["type"] == "http":
            return await refusal(scope, receive, send)
        await send({"type": "websocket.close", "code": 1008, "reason": "refused"})

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            return problem(400, InputError.__name__, "one Host header is needed")
        if not _LOOPBACK.match(hosts[0]):
            detail = f"Host {hosts[0]!r:.80} is not this machine's loopback address"
            return problem(421, InputError.__name__, detail)
        if _is_foreign(headers, hosts[0]):
            return problem(403, ServerError.__name__, "calls from other web sites are refused")
        path = scope["path"]
        if path in OPEN_PATHS:
            return None
        try:
            given = headers.getlist("authorization")
            header = given[0] if len(given) == 1 else None
            check_token(header, AGENT if path.startswith(AGENT_PREFIX) else USER, self.tokens)
        except AuthError as error:
            return problem_of(error)
        return None


def _is_foreign(headers: Headers, host: str) -> bool:
    """True if a browser sent this on behalf of a page that is not ours."""
    own = f"http://{host.lower()}"
    if any(origin.lower() != own for origin in headers.getlist("origin")):
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


async def _read_body(receive: Receive) -> list[Message] | None:
    """The messages of the body; None if it is too large."""
    messages = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            return None
        if message["type"] != "http.request" or not message.get("more_body"):
            return messages


def _replay(messages: Iterable[Message], receive: Receive) -> Receive:
    waiting = iter(messages)

    async def receive_again() -> Message:
        for message in waiting:
            return message
        return await receive()

    return receive_again
