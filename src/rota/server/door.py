"""Connections to the API: how many there may be, and how long a caller has to ask for something.

Everybody on this machine can connect, whoever they are; only those who show a token count as known.
Strangers have a moment for each request, and few enough places that they can't take those of the
known: one too many closes the stranger who has been there longest. Those who call over TLS come in
once their handshake is over; as many as there may be strangers are at it, and one too many closes
the one that has been at it for longest.
"""

import asyncio
import logging
import resource
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT_S = 10.0  # from the connection, or the last answer, to the end of a request's headers
MOST_HEAD_BYTES = 1 << 16  # of a request's line and headers, and as much as one read brings
MOST_STRANGERS = 512
OTHER_FILES = 128  # files that the controller opens: the log, its agents, the logs of jobs
MOST_FILES = 65536  # files that the controller asks for
# Accepted at once. What has been asked is read, and its token seen, a few such rounds later: so a
# caller with a token is known long before MOST_STRANGERS others have come.
ACCEPTED_AT_ONCE = 32

log = logging.getLogger("rota.server")


def raise_open_files() -> int:
    """Let this process open more files, as many as it may; how many it could before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


class Limits(NamedTuple):
    """Limits on all connections, on those of strangers, and on the time that headers may take."""

    most: int
    most_strangers: int
    head_timeout_s: float = HEAD_TIMEOUT_S


def usual_limits() -> Limits:
    """Limits that suit the number of files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if soft == resource.RLIM_INFINITY else soft
    most = max(files - OTHER_FILES, files // 2)
    return Limits(most, min(MOST_STRANGERS, most // 2))


class Door:
    """Open connections, in order of arrival."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._at_handshake: dict[asyncio.Transport, None] = {}
        self._strangers: dict[asyncio.Transport, None] = {}
        self._known: dict[asyncio.Transport, None] = {}

    def knock(self, transport: asyncio.Transport) -> None:
        """Somebody has begun a handshake. If that is one too many, another who has must go."""
        self._admit(transport, self._at_handshake)

    def enter(self, transport: asyncio.Transport) -> None:
        """Somebody has connected. If that is one too many, one who has shown no token must go."""
        self._admit(transport, self._strangers)

    def _admit(
        self, transport: asyncio.Transport, newcomers: dict[asyncio.Transport, None]
    ) -> None:
        newcomers[transport] = None
        if self._is_full():  # the server does not report the end of a WebSocket
            for group in (self._at_handshake, self._strangers, self._known):
                for each in [each for each in group if each.is_closing()]:
                    del group[each]
        if self._is_full():
            oldest = next(iter(newcomers))
            del newcomers[oldest]
            oldest.abort()
            log.warning(
                "there are as many connections as there may be: "
                "the oldest of those that have shown no token is closed"
            )

    def trust(self, transport: asyncio.Transport) -> None:
        """The one who is connected has shown a token."""
        if transport in self._strangers:
            del self._strangers[transport]
            self._known[transport] = None

    def leave(self, transport: asyncio.Transport) -> None:
        """A connection has ended."""
        for group in (self._at_handshake, self._strangers, self._known):
            group.pop(transport, None)

    def _is_full(self) -> bool:
        groups = len(self._at_handshake), len(self._strangers), len(self._known)
        return max(groups[:2]) > self.limits.most_strangers or sum(groups) > self.limits.most


class Doorstep(asyncio.Protocol):
    """A caller over TLS until the handshake is over; ``connection`` makes what serves it then."""

    def __init__(
        self, door: Door, context: ssl.SSLContext, connection: Callable[[], asyncio.Protocol]
    ) -> None:
        self._door, self._context, self._connection = door, context, connection
        self._early: list[bytes] = []  # what came with the end of the handshake
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        raw = cast(asyncio.Transport, transport)
        raw.pause_reading()
        self._door.knock(raw)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(raw))

    def data_received(self, data: bytes) -> None:
        """Keep it for the connection."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nobody to serve."""
        self._is_lost = True

    async def _shake_hands(self, raw: asyncio.Transport) -> None:
        within_s = self._door.limits.head_timeout_s
        try:
            if raw.is_closing():
                return
            transport = await asyncio.get_running_loop().start_tls(
                raw, self, self._context, server_side=True, ssl_handshake_timeout=within_s
            )
        except OSError as error:
            log.debug("a handshake failed: %s", error)
            return
        finally:
            self._door.leave(raw)
        if transport is None or self._is_lost:
            return
        connection = self._connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            connection.data_received(data)


class Connection(HttpToolsProtocol):
    """One caller's connection. Without a request in time it is closed.

    A route's guard finds it as ``scope["state"]["connection"]``.
    """

    def __init__(self, *, door: Door, app_state: dict[str, Any], **more: Any) -> None:
        super().__init__(app_state=app_state | {"connection": self}, **more)
        self._door = door
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of a request's headers so far

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._door.enter(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        self._door.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless these are headers without end."""
        if self._deadline is not None:
            if self._head_bytes > MOST_HEAD_BYTES:
                self.transport.abort()
                log.warning("a connection is closed: the headers of a request were too long")
                return
            self._head_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Stop the deadline at once: a busy loop may run it before the request's own task."""
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for another request."""
        super().on_response_complete()
        self._await_request()

    def has_asked(self, *, with_token: bool) -> None:
        """The headers of a request are there."""
        self._stop_waiting()
        if with_token:
            self._door.trust(self.transport)

    def _await_request(self) -> None:
        self._stop_waiting()
        self._head_bytes = 0
        if not self.transport.is_closing():
            seconds = self._door.limits.head_timeout_s
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self.transport.abort()
        seconds = self._door.limits.head_timeout_s
        log.warning("a connection is closed: it had not sent a request within %g s", seconds)
