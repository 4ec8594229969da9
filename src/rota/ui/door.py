"""The door of the dashboard: one-time links, sessions, and what a browser may be told to do.

The dashboard can do all that the cluster's token can, so nobody is let in without a session, and a
session begins with a link that only the token's holder has seen. Other sites that the same browser
has open are kept out by the Host allow-list (rebinding), the Origin check (foreign requests and
WebSockets), SameSite cookies and a Content-Security-Policy.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LINK_S = 300.0  # for which a link is good, once
SESSION_S = 12 * 3600.0
MOST_LINKS, MOST_SESSIONS = 64, 256
SIGN_IN, LINK = "/sign-in", "/link"

# NiceGUI compiles Vue's templates, and evaluates what it is sent, in the browser: hence the eval.
# Its components style elements inline. Everything else comes from this host alone.
POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
BARE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
STRANGER = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Rota: sign in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 system-ui, sans-serif;
max-width: 34rem; margin: 15vh auto; padding: 0 1rem }}</style>
<main><h1>{title}</h1><p>{text}</p><p>Run <code>rota ui</code> in a terminal: it prints a new
link.</p></main></html>"""
# The page moves on by itself: a redirection that began on another site would bring no cookie.
WELCOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Rota</title>
<meta http-equiv="refresh" content="0;url=/"><main><a href="/">Go on to the dashboard</a></main>
</html>"""


class Door:
    """Links that have been given out, and sessions that have begun with one.

    ``clock`` counts seconds; ``token`` is the cluster's, whose holder may ask for links.
    """

    def __init__(self, token: str, clock: Callable[[], float]) -> None:
        self._token, self._clock = token, clock
        self._links: dict[str, float] = {}  # until when each is good
        self._sessions: dict[str, float] = {}

    def new_link(self) -> str:
        """The secret of a link that is good once, for ``LINK_S`` seconds."""
        return _remember(self._links, self._clock() + LINK_S, MOST_LINKS)

    def sign_in(self, link: str) -> str | None:
        """The session that a link begins; None for one that was used, is too old or is none."""
        good_until_s = self._links.pop(link, None)
        if good_until_s is None or good_until_s < self._clock():
            return None
        return _remember(self._sessions, self._clock() + SESSION_S, MOST_SESSIONS)

    def is_signed_in(self, session: str | None) -> bool:
        """True while a session lasts. Whoever has one may do all that the token may."""
        return session is not None and self._sessions.get(session, 0.0) >= self._clock()

    def has_token(self, authorization: str | None) -> bool:
        """True if an ``Authorization`` header shows the cluster's token."""
        shown = (authorization or "").removeprefix("Bearer ").strip()
        return hmac.compare_digest(shown.encode("utf-8", "replace"), self._token.encode())


def _remember(kept: dict[str, float], until_s: float, most: int) -> str:
    secret = secrets.token_urlsafe(32)
    kept[secret] = until_s
    while len(kept) > most:
        del kept[next(iter(kept))]
    return secret


class DoorKeeper:
    """ASGI middleware that lets in whoever :class:`Door` knows, and sets each answer's policy."""

    def __init__(self, app: ASGIApp, door: Door, port: int) -> None:
        self.app, self.door = app, door
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self.cookie = cookie_name(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer strangers, and pass the calls of those who are signed in on."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        answer = self._answer(scope)
        if answer is None:
            nonce = secrets.token_urlsafe(16)
            out = send if scope["type"] == "websocket" else _Page(send, nonce).send
            await self.app(scope, receive, out)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            answer.headers.setdefault("Content-Security-Policy", BARE_POLICY)
            _secure(answer.headers)
            await answer(scope, receive, send)

    def _answer(self, scope: Scope) -> Any:
        """The answer to a call that must not go on; None for one that may."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return PlainTextResponse("This is not the address of this dashboard.\n", 421)
        method = scope.get("method", "")
        is_safe = scope["type"] == "http" and method in ("GET", "HEAD")
        if origin != f"http://{host}" and not (origin is None and (is_safe or method == "POST")):
            return PlainTextResponse("Calls from other sites are refused.\n", 403)
        if scope["path"] == LINK and method == "POST":
            if origin is not None or not self.door.has_token(headers.get("authorization")):
                return PlainTextResponse("A link is for those who have the token.\n", 403)
            return JSONResponse({"link": self.door.new_link()})
        if scope["path"] == SIGN_IN and method == "GET":
            return self._signed_in(scope)
        if self.door.is_signed_in(session_of(headers, self.cookie)):
            if origin is None and not is_safe:
                return PlainTextResponse("A browser's call names its origin.\n", 403)
            return None
        page = STRANGER.format(
            title="You are not signed in",
            text="The dashboard is for those who have the cluster's token.",
        )
        return HTMLResponse(page, 401)

    def _signed_in(self, scope: Scope) -> Any:
        query = parse_qs(scope["query_string"].decode("ascii", "replace"))
        session = self.door.sign_in(query.get("link", [""])[0])
        if session is None:
            text = "A link is good once, and for five minutes."
            return HTMLResponse(STRANGER.format(title="This link is used up", text=text), 403)
        answer = HTMLResponse(WELCOME)
        answer.set_cookie(self.cookie, session, httponly=True, samesite="strict", path="/")
        return answer


def cookie_name(port: int) -> str:
    """The session's cookie, one for each port: browsers share cookies among a host's ports."""
    return f"rota-ui-{port}"


def session_of(headers: Mapping[str, str], cookie: str) -> str | None:
    """The session that a request's cookies name."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(cookie)
    except CookieError:
        return None
    return None if found is None else found.value


def _secure(headers: MutableHeaders) -> None:
    headers["X-Content-Type-Options"] = "nosniff"
    headers["X-Frame-Options"] = "DENY"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"


class _Page:
    """An answer on its way out: its headers, and in a page the nonce of each script.

    A page's own scripts are the toolkit's; what jobs and users say is in it with ``<`` escaped.
    """

    def __init__(self, send: Send, nonce: str) -> None:
        self._send, self._nonce = send, nonce
        self._start: Message | None = None  # of a page, whose length changes
        self._body = b""

    async def send(self, message: Message) -> None:
        """Send a message on, or keep it until the page is whole."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            _secure(headers)
            headers["Content-Security-Policy"] = POLICY.format(nonce=self._nonce)
            if headers.get("content-type", "").startswith("text/html"):
                self._start = message
                return
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            opening = f'<script nonce="{self._nonce}"'.encode()
            body = self._body.replace(b"<script", opening)
            MutableHeaders(scope=self._start)["content-length"] = str(len(body))
            await self._send(self._start)
            self._start = None
            message = {"type": "http.response.body", "body": body}
        await self._send(message)
