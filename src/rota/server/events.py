"""The event stream: logged events by number, and news that are in no log, as server-sent events.

Streams hold a place in the log, not a queue: what was encoded lately is kept once for all of them,
older events are read from the log, and a stream that falls behind what is kept is told to read
anew. Reading, telling and encoding happen in a thread of their own.
"""

import asyncio
import logging
import math
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Header, Query

from rota.errors import CursorError, InputError, shortage_of
from rota.server.calls import Caller
from rota.server.streams import Places, StreamAnswer, sse
from rota.server.telling import Teller

HEARTBEAT_S = 5.0
PACE_S = 0.05  # between two looks at what is new
NEWS_EVERY_S = 0.25  # of one job
NEWS_KEPT_S = 30.0  # for streams that have not taken them yet
MOST_KEPT, MOST_KEPT_BYTES = 4096, 8 << 20  # encoded events
PAGE = 64  # events that are read from the log at once
CHUNK_BYTES = 1 << 16  # that a stream sends at once, unless a single event is longer

log = logging.getLogger("rota.server")
_CURSOR = re.compile(r"(?:([0-9a-f]{1,64})-)?([0-9]{1,18})\Z")


class _Kept(NamedTuple):
    """An encoded event or piece of news. ``number`` is an event's, or the version of the news."""

    number: int
    data: bytes
    at_s: float = 0.0  # of news: when they were encoded, by the monotonic clock


class Streams:
    """All event streams of one controller. Made and used in the controller's event loop."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._teller = Teller(controller.record)
        self._thread = ThreadPoolExecutor(1, "streams")
        self.places = Places()  # of these and of other streams
        self._num_open = 0
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._head = 0  # number of the last event that is kept, or was before none was
        self._fresh: dict[int, None] = {}  # rows with progress that is not encoded yet
        self._news: dict[int, _Kept] = {}  # by row, the oldest first
        self._version = 0  # of the latest news
        self._pump: asyncio.Task[None] | None = None
        self._due = asyncio.Event()  # there is something to read or to encode
        self._bell = asyncio.Event()  # rung, and replaced, when streams have something to send
        self.closed = False
        self.written = asyncio.Event()  # set, and replaced, when events have been written
        controller.journal.on_written = self._note_written
        controller.telemetry.on_progress = self._note_progress

    def close(self) -> None:
        """End all streams, and take no more."""
        self.closed = True
        self._ring()
        self.written.set()
        if self._pump is not None:
            self._pump.cancel()
        self._thread.shutdown()

    def now(self) -> str:
        """The cursor of the last event."""
        return self.cursor(self._controller.journal.written)

    # -- cursors -------------------------------------------------------------------------------

    def cursor(self, seq: int) -> str:
        """The place after an event of this log, as callers give it back."""
        return f"{self._controller.record.store.identity}-{seq}"

    def place(self, cursor: str | None) -> int:
        """The number of the event after which a stream is to begin; by default the last one.

        Raises InputError for what is no cursor, and CursorError for one of another log or of events
        that have not happened.
        """
        newest: int = self._controller.journal.written
        if cursor is None:
            return newest
        found = _CURSOR.match(cursor)
        if found is None:
            raise InputError(
                f"after: {cursor!r:.80} is no place in the event log; send the number of an event, "
                "or the id of one in an earlier stream"
            )
        identity, seq = found[1], int(found[2])
        begin = self.cursor(newest)
        if identity is not None and identity != self._controller.record.store.identity:
            raise CursorError(
                f"after: {cursor} is of another event log than this cluster's; read what there is "
                f"anew, and begin after {begin}",
                begin,
            )
        if seq > newest:
            raise CursorError(
                f"after: event {seq} has not happened, the last one is {newest}; read what there "
                f"is anew, and begin after {begin}",
                begin,
            )
        return seq

    # -- streams -------------------------------------------------------------------------------

    def enter(self, caller: str) -> Callable[[], None]:
        """Take a place among the streams; the function gives it back. Raises BusyError."""
        give_back = self.places.take(caller)
        self._num_open += 1
        if self._pump is None or self._pump.done():
            self._forget()
            self._pump = asyncio.create_task(self._run())

        def leave() -> None:
            give_back()
            self._num_open -= 1
            if not self._num_open and self._pump is not None:
                self._pump.cancel()
                self._pump = None
                self._forget()

        return leave

    def _forget(self) -> None:
        """Keep nothing that is encoded, and begin with what is written from now on."""
        self._kept.clear()
        self._news.clear()
        self._fresh.clear()
        self._kept_bytes = 0
        self._head = self._controller.journal.written

    async def stream(self, place: int) -> AsyncIterator[bytes]:
        """The stream's bytes, from after the event ``place`` on, until the controller ends."""
        version, is_live, pump = self._version, False, self._pump
        yield sse("begin", {"seq": place}, self.cursor(place))
        while pump is not None and not (self.closed or pump.done()):
            bell = self._bell
            first = self._kept[0].number if self._kept else self._head + 1
            if place < first - 1 and not is_live:
                try:
                    found = await self._from_log(place, min(first - 1, self._head))
                except Exception:
                    log.exception("an event stream ends: what was before can't be told")
                    return
                if not found:
                    return
                place = found[-1].number
                yield b"".join(each.data for each in found)
                continue
            if place < first - 1:
                place, version = self._head, self._version
                yield sse("resync", {"seq": place}, self.cursor(place))
                continue
            is_live = True
            place, version, chunk = self._next(place, version)
            if chunk:
                yield chunk
                continue
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await bell.wait()
            except TimeoutError:
                yield b":\n\n"

    def _next(self, place: int, version: int) -> tuple[int, int, bytes]:
        """Some of what is kept after a place and a version: the next ones, and the bytes."""
        pieces, size = [], 0
        if self._kept and self._kept[-1].number > place:
            index = place + 1 - self._kept[0].number
            while index < len(self._kept) and size < CHUNK_BYTES:
                kept = self._kept[index]
                pieces.append(kept.data)
                size += len(kept.data)
                place = kept.number
                index += 1
        news = []
        for each in reversed(self._news.values()):
            if each.number <= version:
                break
            news.append(each)
        while news and size < CHUNK_BYTES:
            each = news.pop()
            pieces.append(each.data)
            size += len(each.data)
            version = each.number
        return place, version, b"".join(pieces)

    async def _from_log(self, after: int, upto: int) -> list[_Kept]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._read, after, upto)
        except RuntimeError as error:
            if shortage_of(error) is None:
                raise
        return self._read(after, upto)  # no thread can be started

    def _read(self, after: int, upto: int) -> list[_Kept]:
        """Events of the log, told and encoded, in the streams' thread."""
        store = self._controller.record.store
        found: list[_Kept] = []
        if self.closed:
            return found
        size = 0
        for seq, kind, body in store.records(after, upto, PAGE):
            if size > CHUNK_BYTES:
                break
            told = self._teller.tell(seq, store.event(seq, kind, body))
            found.append(_Kept(seq, sse("logged", told, self.cursor(seq))))
            size += len(found[-1].data)
        return found

    # -- what is new ---------------------------------------------------------------------------

    def _note_written(self) -> None:
        written, self.written = self.written, asyncio.Event()
        written.set()
        if self._pump is not None:
            self._due.set()

    def _note_progress(self, row: int) -> None:
        if self._pump is not None:
            self._fresh[row] = None
            self._due.set()

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def _run(self) -> None:
        """Encode what is new, once for all streams, as long as there is one."""
        try:
            await self._encode_for_ever()
        except Exception:  # streams end, and whoever comes again has another try
            log.exception("the event streams end: what is new can't be told")
        finally:
            self._ring()

    async def _encode_for_ever(self) -> None:
        news_s = -math.inf
        while True:
            await self._due.wait()
            self._due.clear()
            written = self._controller.journal.written
            while self._head < written:
                for kept in await self._from_log(self._head, written):
                    self._keep(kept)
                self._ring()
            now_s = time.monotonic()
            if self._fresh and now_s - news_s >= NEWS_EVERY_S:
                news_s = now_s
                await self._encode_news(now_s)
                self._ring()
            elif self._fresh:
                self._due.set()
            await asyncio.sleep(PACE_S)

    def _keep(self, kept: _Kept) -> None:
        self._kept.append(kept)
        self._kept_bytes += len(kept.data)
        self._head = kept.number
        while len(self._kept) > MOST_KEPT or (
            len(self._kept) > 1 and self._kept_bytes > MOST_KEPT_BYTES
        ):
            self._kept_bytes -= len(self._kept.popleft().data)

    async def _encode_news(self, now_s: float) -> None:
        fresh, self._fresh = self._fresh, {}
        state, latest = self._controller.state, self._controller.record.latest
        told = [(row, state.spec[row].job_id, latest.get(row)) for row in fresh]
        encoded = await asyncio.get_running_loop().run_in_executor(
            self._thread,
            lambda: [
                (row, sse("progress", {"job_id": job_id, "progress": progress}))
                for row, job_id, progress in told
            ],
        )
        for row, data in encoded:
            self._version += 1
            self._news.pop(row, None)
            self._news[row] = _Kept(self._version, data, now_s)
        while self._news and next(iter(self._news.values())).at_s < now_s - NEWS_KEPT_S:
            del self._news[next(iter(self._news))]


def event_routes(streams: Streams) -> APIRouter:
    """The route of the event stream."""
    router = APIRouter()

    @router.get("/events")
    async def events(
        user: Caller,
        after: Annotated[str | None, Query(max_length=100)] = None,
        last_event_id: Annotated[str | None, Header(max_length=100)] = None,
    ) -> StreamAnswer:
        """Events after a number, then those that come, with news of progress; see the docs."""
        place = streams.place(last_event_id or after)
        leave = streams.enter(user)
        return StreamAnswer(streams.stream(place), leave)

    return router
