"""Checks on every call before a route sees it: Host, Origin, token, the whole body in time.

It stands in front of the routes, so that a new one is guarded from the start.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.errors import AuthError, InputError, NotAllowedError, ServerError
from rota.server import roles
from rota.server.auth import AGENT, USER, Tokens, check_token, shown_in
from rota.server.problems import problem, problem_of
from rota.store.members import JOIN_PREFIX, NODE_PREFIX

MAX_BODY_BYTES = 1 << 20
BODY_TIMEOUT_S = 30.0
AGENT_PREFIX = "/agent/"
JOIN_PATH, AUTHORITY_PATH = "/agent/v1/join", "/agent/v1/ca"
SNAPSHOTS_PATH = "/api/v1/snapshots/"  # its bodies are larger: the route reads them by pieces
OPEN_PATHS = frozenset({"/healthz", AUTHORITY_PATH})  # a CA's certificate is no secret

# Names that a web page can't make resolve to this machine by its own DNS (rebinding).
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?\Z", re.IGNORECASE)


class Admission(Protocol):
    """The tokens of machines that join, and of those that have joined."""

    def check_invitation(self, token: str, now_s: float) -> None:
        """Raise AuthError for a join token that is not good."""

    def node_of(self, token: str) -> str | None:
        """The node whose token this is; None if it is nobody's."""


class Guard:
    """ASGI middleware for HTTP and WebSocket.

    ``members`` know the tokens of other machines, which call over TLS; ``host`` is the name, beside
    loopback addresses, by which they call this one. A route finds the node of an agent that has
    joined as ``scope["state"]["node"]``; None: an agent of this machine.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        members: Admission,
        now_s: Callable[[], float],
        host: str = "",
        body_timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self.app = app
        self.tokens = tokens
        self.members = members
        self.now_s = now_s
        self.host = host.lower()
        self.body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer it with the problem."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        refusal = self._refusal(scope)
        has_token = refusal is None and scope["path"] not in OPEN_PATHS
        scope["state"]["connection"].has_asked(with_token=has_token)
        is_read = scope["type"] == "http" and not _is_snapshot(scope)
        if refusal is None and is_read:
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
        await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            return problem(400, InputError.__name__, "one Host header is needed")
        if not self._is_own(hosts[0]):
            also = f", nor {self.host}" if self.host else ""
            detail = f"Host {hosts[0]!r:.80} is not this machine's loopback address{also}"
            return problem(421, InputError.__name__, detail)
        if _is_foreign(headers, hosts[0], is_safe=_is_safe(scope)):
            return problem(403, ServerError.__name__, "calls from other web sites are refused")
        path = scope["path"]
        if path in OPEN_PATHS:
            return None
        try:
            given = headers.getlist("authorization")
            header = given[0] if len(given) == 1 else None
            if path.startswith(AGENT_PREFIX):
                self._check_agent(scope, header)
            else:
                check_token(header, USER, self.tokens)
                action = roles.action_of(scope.get("method", "GET"), path)
                if action not in roles.allowed():
                    raise NotAllowedError(f"your role does not allow you to {action}; ask an admin")
        except (AuthError, NotAllowedError) as error:
            return problem_of(error)
        return None

    def _is_own(self, host: str) -> bool:
        """True if a Host header names this machine."""
        if _LOOPBACK.match(host):
            return True
        name, _, port = host.lower().rpartition(":")
        name = name if port.isdigit() else host.lower()
        return bool(self.host) and name.removeprefix("[").removesuffix("]") == self.host

    def _check_agent(self, scope: Scope, header: str | None) -> None:
        """Raise AuthError unless an agent may make this call.

        An agent that has joined shows its node's token, and one that is about to join a token for
        that alone. The token of this machine's own agents is good on this machine.
        """
        shown = shown_in(header)
        scope["state"]["node"] = None
        if scope["path"] == JOIN_PATH:
            if not shown.startswith(JOIN_PREFIX):
                raise AuthError("a join token is needed; `rota node invite` makes one")
            self.members.check_invitation(shown, self.now_s())
        elif shown.startswith(NODE_PREFIX):
            node = self.members.node_of(shown)
            if node is None:
                raise AuthError("the node's token is not known: it was removed from this cluster")
            scope["state"]["node"] = node
        elif _is_safe(scope):
            raise AuthError("a machine that has joined shows the token of its node")
        else:
            check_token(header, AGENT, self.tokens)


def _is_snapshot(scope: Scope) -> bool:
    """True if the body of a call is a snapshot."""
    return bool(scope["method"] == "PUT" and scope["path"].startswith(SNAPSHOTS_PATH))


def _is_safe(scope: Scope) -> bool:
    """True if the call has come over TLS."""
    return scope["scheme"] in ("https", "wss")


def _is_foreign(headers: Headers, host: str, *, is_safe: bool) -> bool:
    """True if a browser sent this on behalf of a page that is not ours."""
    own = f"http{'s' * is_safe}://{host.lower()}"
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
