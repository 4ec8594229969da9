"""A stream of server-sent events, followed through restarts of the controller."""

import math
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
import httpx

from rota.client.connection import Connection, answer_of
from rota.errors import AgentAwayError, BusyError, CursorError, UnreachableError

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 2.0  # before another try, each twice as long as the last one
SILENCE_S = 15.0  # without a byte, not even a heartbeat: the connection is dead
CONNECT_S = 5.0
ASK_EVERY_S = 1.0  # what can't be followed for want of a place
PASSING = (AgentAwayError, BusyError, CursorError, UnreachableError, httpx.TransportError)

T = TypeVar("T")


class Stream(ABC, Generic[T]):
    """Values of one stream, for ``for`` as well as for ``async for``; a loop goes on where the last
    one ended.

    A connection that fails is tried again with growing pauses. Raises UnreachableError,
    AgentAwayError or BusyError after ``patience_s`` (None: never) without what is followed, and
    what the controller names. Where as many streams are open as there may be, a stream that can
    look meanwhile calls the connection's ``notice``, once.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        params: Mapping[str, Any],
        place: str | None,
        patience_s: float | None,
    ) -> None:
        self._connection, self._path, self._place = connection, path, place
        self._params = {name: value for name, value in params.items() if value is not None}
        self._patience_s = math.inf if patience_s is None else patience_s
        self._is_over = False
        self._since_s: float | None = time.monotonic()  # when it was lost; None while all is well
        self._pause_s = FIRST_PAUSE_S
        self._looks_meanwhile = True  # where there is no place for it
        self._stopped = threading.Event()
        self._socket: socket.socket | None = None  # of the present ``for``

    @abstractmethod
    def _told(self, event: str, data: Any, place: str) -> T | None:
        """The value of an event, None for one that is not the caller's business."""

    @abstractmethod
    def _failed(self, error: Exception) -> T | None:
        """The value to tell of a connection that failed; raises what another try can't mend."""

    def stop(self) -> None:
        """End the loop of ``for`` that another thread is in, as soon as it can."""
        self._stopped.set()
        if (connected := self._socket) is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[T]:
        from httpx_sse import EventSource

        with httpx.Client(**self._http()) as http:
            while not (self._is_over or self._stopped.is_set()):
                try:
                    with http.stream("GET", **self._asked()) as response:
                        stream = response.extensions["network_stream"]
                        self._socket = stream.get_extra_info("socket")
                        if self._stopped.is_set():
                            return
                        if not response.is_success:
                            response.read()
                            answer_of(response)
                        self._is_well()
                        for sse in EventSource(response).iter_sse():
                            if (told := self._value(sse)) is not None:
                                yield told
                            if self._is_over:
                                return
                    self._ended()
                    told, pause_s = None, ASK_EVERY_S
                except PASSING as error:
                    if self._stopped.is_set():
                        return
                    told = self._failed(error)
                    pause_s = self._pause_after(error)
                finally:
                    self._socket = None
                if told is not None:
                    yield told
                self._stopped.wait(pause_s)

    async def __aiter__(self) -> AsyncIterator[T]:
        from httpx_sse import EventSource

        async with httpx.AsyncClient(**self._http()) as http:
            while not self._is_over:
                try:
                    async with http.stream("GET", **self._asked()) as response:
                        if not response.is_success:
                            await response.aread()
                            answer_of(response)
                        self._is_well()
                        async for sse in EventSource(response).aiter_sse():
                            if (told := self._value(sse)) is not None:
                                yield told
                            if self._is_over:
                                return
                    self._ended()
                    told, pause_s = None, ASK_EVERY_S
                except PASSING as error:
                    told = self._failed(error)
                    pause_s = self._pause_after(error)
                if told is not None:
                    yield told
                await anyio.sleep(pause_s)

    def _http(self) -> dict[str, Any]:
        return {
            "timeout": httpx.Timeout(CONNECT_S, read=SILENCE_S),
            "trust_env": False,
            "verify": self._connection.trust,
        }

    def _asked(self) -> dict[str, Any]:
        place = {"Last-Event-ID": self._place} if self._place else {}
        return {
            "url": f"{self._connection.url()}/api/v1{self._path}",
            "params": self._params,
            "headers": self._connection.headers() | place,
        }

    def _value(self, sse: Any) -> T | None:
        return self._told(sse.event, sse.json(), sse.id) if sse.data else None

    def _ended(self) -> None:
        """Note that an answer has ended before what is followed. Raises UnreachableError."""
        raise UnreachableError("the controller ended the stream")

    def _is_well(self) -> None:
        """Note that what is followed is there."""
        self._since_s, self._pause_s = None, FIRST_PAUSE_S

    def _is_past_patience(self, pause_s: float = 0.0) -> bool:
        """Note that what is followed is not there; returns True if that will be too long."""
        if self._since_s is None:
            self._since_s = time.monotonic()
        return time.monotonic() + pause_s > self._since_s + self._patience_s

    def _pause_after(self, error: Exception) -> float:
        """Seconds until another try; raises the error if patience has run out."""
        if isinstance(error, CursorError):  # mended by another place
            return 0.0
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
        if isinstance(error, BusyError):
            if self._looks_meanwhile:
                return self._pause_without_place(error)
            pause_s = max(pause_s, error.retry_after_s)
        if not self._is_past_patience(pause_s):
            return pause_s
        if isinstance(error, httpx.TransportError):
            remedy = self._connection.remedy(error)
            raise UnreachableError(f"no controller answers ({why_of(error)}); {remedy}") from None
        raise error

    def _pause_without_place(self, error: BusyError) -> float:
        """Seconds until another look at what can't be followed for now."""
        self._since_s = None  # the controller answers
        notice, self._connection.notice = self._connection.notice, None
        if notice is not None:
            notice(f"{error}; meanwhile this program asks every few seconds")
        return error.retry_after_s


def why_of(error: Exception) -> str:
    """The message of an error, on one line; its kind if it has none."""
    if isinstance(error, httpx.RemoteProtocolError):
        return "it has cut the connection"
    return " ".join(str(error).split()) or type(error).__name__
