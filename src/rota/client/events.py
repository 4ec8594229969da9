"""The event stream of a controller, followed through its restarts."""

import math
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import anyio
import httpx
import msgspec

from rota.client.connection import Connection, answer_of
from rota.errors import BusyError, CursorError, UnreachableError

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 2.0  # before another try, each twice as long as the last one
SILENCE_S = 15.0  # without a byte, not even a heartbeat: the connection is dead
CONNECT_S = 5.0


class Line(NamedTuple):
    """A line that an event has added to the story of a job."""

    job_id: str
    text: str


class Logged(NamedTuple):
    """An event of the log. ``data`` are its fields as docs/reference/api.md lists them by kind.

    ``job_id`` is the job that it is about, None for none or several. ``cursor`` is the place after
    it: a stream that begins there goes on with the next event.
    """

    seq: int
    at_s: float
    kind: str
    job_id: str | None
    data: dict[str, Any]
    lines: tuple[Line, ...]
    cursor: str

    @property
    def sentence(self) -> str | None:
        """The line that the event has added to its job's story, if any."""
        texts = (line.text for line in self.lines if self.job_id in (None, line.job_id))
        return "; ".join(texts) or None


class Progress(NamedTuple):
    """News, which are not in the log: the latest ``progress`` of a job, as its detail has it."""

    job_id: str
    progress: dict[str, Any]


class Resync(NamedTuple):
    """Events were left out: read what there is anew. The stream goes on after event ``seq``."""

    seq: int
    cursor: str


class Connected(NamedTuple):
    """A controller answers, and the stream goes on after event ``seq``."""

    seq: int
    cursor: str


class Disconnected(NamedTuple):
    """No controller answers, for the reason ``why``; it is tried again until one does."""

    why: str


Told = Logged | Progress | Resync | Connected | Disconnected


class Events:
    """The event stream, for ``for`` as well as for ``async for``; each loop is a stream of its own.

    A loop goes on where the last one ended. It ends by ``break``; an outage longer than
    ``patience_s`` raises UnreachableError, or BusyError if there were too many streams.
    """

    def __init__(
        self, connection: Connection, after: int | str | None, patience_s: float | None
    ) -> None:
        self._connection = connection
        self._cursor = None if after is None else str(after)
        self._patience_s = math.inf if patience_s is None else patience_s
        self._is_ours = False  # the cursor: whether a stream has told it
        self._away_since_s: float | None = time.monotonic()
        self._told_away = True  # a first connection that fails is no news
        self._pause_s = FIRST_PAUSE_S

    @property
    def cursor(self) -> str | None:
        """The place after the last event that was told; None before the first connection."""
        return self._cursor

    def __iter__(self) -> Iterator[Told]:
        from httpx_sse import EventSource

        with httpx.Client(**HTTP) as http:
            while True:
                try:
                    with http.stream("GET", **self._asked()) as response:
                        if not response.is_success:
                            response.read()
                            answer_of(response)
                        for each in EventSource(response).iter_sse():
                            if (told := self._told(each)) is not None:
                                yield told
                    raise UnreachableError("the controller ended the stream")
                except (CursorError, BusyError, UnreachableError, httpx.TransportError) as error:
                    told, pause_s = self._failed(error)
                if told is not None:
                    yield told
                time.sleep(pause_s)

    async def __aiter__(self) -> AsyncIterator[Told]:
        from httpx_sse import EventSource

        async with httpx.AsyncClient(**HTTP) as http:
            while True:
                try:
                    async with http.stream("GET", **self._asked()) as response:
                        if not response.is_success:
                            await response.aread()
                            answer_of(response)
                        async for each in EventSource(response).aiter_sse():
                            if (told := self._told(each)) is not None:
                                yield told
                    raise UnreachableError("the controller ended the stream")
                except (CursorError, BusyError, UnreachableError, httpx.TransportError) as error:
                    told, pause_s = self._failed(error)
                if told is not None:
                    yield told
                await anyio.sleep(pause_s)

    def _asked(self) -> dict[str, Any]:
        headers = self._connection.headers()
        if self._cursor is not None:
            headers["Last-Event-ID"] = self._cursor
        return {"url": f"{self._connection.url()}/api/v1/events", "headers": headers}

    def _told(self, sse: Any) -> Told | None:
        """The value of a server-sent event; None for a heartbeat, or a kind of a later version."""
        if not sse.data:
            return None
        data, cursor = msgspec.json.decode(sse.data), sse.id
        if sse.event == "progress":
            return Progress(data["job_id"], data["progress"] or {})
        if sse.event == "logged":
            lines = tuple(Line(each["job_id"], each["line"]) for each in data.pop("lines"))
            self._cursor, self._is_ours = cursor, True
            return Logged(**{name: data[name] for name in _FIELDS}, lines=lines, cursor=cursor)
        if sse.event in ("begin", "resync"):
            self._cursor, self._is_ours = cursor, True
            if sse.event == "resync":
                return Resync(data["seq"], cursor)
            self._away_since_s, self._told_away = None, False
            self._pause_s = FIRST_PAUSE_S
            self._connection.met = True
            return Connected(data["seq"], cursor)
        return None

    def _failed(self, error: Exception) -> tuple[Told | None, float]:
        """The value to tell of a failure, and how long to wait; raises what can't be mended."""
        if isinstance(error, CursorError):
            if not (self._is_ours and error.begin):
                raise error
            self._cursor = error.begin
            return Resync(int(error.begin.rpartition("-")[2]), error.begin), 0.0
        now_s = time.monotonic()
        if self._away_since_s is None:
            self._away_since_s = now_s
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, BusyError):
            pause_s = max(pause_s, error.retry_after_s)
        if now_s + pause_s > self._away_since_s + self._patience_s:
            if isinstance(error, BusyError | UnreachableError):
                raise error
            raise UnreachableError(
                f"no controller answers ({why}); start one with: rota up"
            ) from None
        told = None if self._told_away else Disconnected(why)
        self._told_away = True
        return told, pause_s


_FIELDS = ("seq", "at_s", "kind", "job_id", "data")
HTTP: dict[str, Any] = {
    "timeout": httpx.Timeout(CONNECT_S, read=SILENCE_S),
    "trust_env": False,
}
