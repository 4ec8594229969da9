"""A job's output as it is printed, as server-sent events: through processes and attempts.

The agent that has the output is asked for what follows a place in it, and answers once there is
something; nobody asks again and again.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from rota.errors import AgentAwayError, InputError, RotaError
from rota.live.wire.questions import Output
from rota.model.job import JobState
from rota.server.streams import sse

HELD_S = 5.0  # for which an agent waits for more output; then there is a heartbeat
AGAIN_S = 0.5  # after an agent that is away, or does not wait
PIECE_BYTES = 1 << 16

_PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,18})\Z")


class Wanted(NamedTuple):
    """The output that is followed; see the route of pieces."""

    rank: int | None
    process: int | None
    attempt: int | None
    offset: int
    tail: int | None
    since_s: float | None
    times: bool


class LogStream:
    """One caller who follows the output of a job. Usable once."""

    def __init__(self, controller: Any, streams: Any, row: int, wanted: Wanted) -> None:
        self._controller, self._streams, self._row = controller, streams, row
        self._wanted = wanted
        self._number = wanted.attempt
        self._process = wanted.process
        self._where: dict[str, Any] = {"offset": wanted.offset}
        self._where |= {"tail": wanted.tail, "since_s": wanted.since_s}
        self._first: Output | None = None

    def go_on_from(self, place: str) -> None:
        """Begin at the id of an event of an earlier stream. Raises InputError."""
        found = _PLACE.match(place)
        if found is None:
            raise InputError(f"Last-Event-ID: {place!r:.80} is no place in a job's output")
        number, self._process, offset = map(int, found.groups())
        self._number = number or None
        self._where = {"offset": offset}

    async def begin(self) -> None:
        """Find the output. Raises what the route of pieces raises."""
        self._first = await self._output(0.0)

    async def events(self) -> AsyncIterator[bytes]:
        """The stream's bytes: pieces, until an ``end``, or an ``error`` that ends it."""
        found, self._first = self._first, None
        while not self._streams.closed:
            number, ended = self._latest(), self._has_ended()
            try:
                if found is None:
                    found = await self._more()
            except AgentAwayError as error:
                yield sse("away", {"detail": str(error)})
                await self._pause()
                continue
            except RotaError as error:
                yield sse("error", {"code": type(error).__name__, "detail": str(error)})
                return
            if found is None:
                yield b":\n\n"
                continue
            asked, found = found, None
            attempt = self._number or number
            place = f"{attempt}.{asked.process}.{asked.next_offset}"
            self._note(asked, attempt)
            if asked.text:
                yield sse("piece", piece(self._controller, self._row, attempt, asked), place)
            if not asked.complete:
                continue
            if self._wanted.process is None and asked.next_process is not None:
                self._begin_output(asked.next_process)
            elif self._wanted.attempt is None and self._latest() > attempt:
                self._number = attempt + 1
                self._begin_output(self._wanted.process)
            elif ended or self._wanted.attempt is not None:
                state = JobState(self._controller.state.state[self._row])
                yield sse("end", {"state": state.name})
                return

    def _note(self, found: Output, attempt: int) -> None:
        if attempt:
            self._where = {"offset": found.next_offset}
            self._number, self._process = attempt, found.process

    def _begin_output(self, process: int | None) -> None:
        self._process, self._where = process, {"offset": 0}

    def _latest(self) -> int:
        return int(self._controller.state.attempt[self._row])

    def _has_ended(self) -> bool:
        return JobState(self._controller.state.state[self._row]).is_final

    async def _more(self) -> Output | None:
        """New output; None if there is nothing for a while, or if the job has changed."""
        loop, before = asyncio.get_running_loop(), (self._latest(), self._has_ended())
        asked = loop.create_task(self._output(HELD_S))
        began_s = loop.time()
        try:
            while not asked.done():
                written = loop.create_task(self._streams.written.wait())
                try:
                    await asyncio.wait({asked, written}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    written.cancel()
                if self._streams.closed:
                    return None
                if not asked.done() and (self._latest(), self._has_ended()) != before:
                    return None  # what is asked is no longer right
            found = asked.result()
        finally:
            asked.cancel()
        if found.text or found.complete:
            return found
        if loop.time() - began_s < HELD_S / 2:  # it has not started, or its agent never waits
            await self._pause()
        self._note(found, self._number or before[0])
        return None

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._streams.written.wait()
        except TimeoutError:
            pass

    async def _output(self, wait_s: float) -> Output:
        found: Output = await self._controller.files.output(
            self._row,
            self._number or self._latest(),
            rank=self._wanted.rank,
            process=self._process,
            limit=PIECE_BYTES,
            times=self._wanted.times,
            wait_s=wait_s,
            **self._where,
        )
        return found


def piece(controller: Any, row: int, attempt: int, found: Output) -> dict[str, Any]:
    """A piece of one process's output. ``attempt`` is 0 if none has started."""
    state = JobState(controller.state.state[row])
    return {
        "attempt": attempt,
        "rank": found.rank,
        "state": state.name,
        "process": found.process,
        "next_process": found.next_process,
        "text": found.text,
        "offset": found.offset,
        "next_offset": found.next_offset,
        "size": found.size,
        "times": found.times,
        "complete": found.complete,
        "job_ended": state.is_final,
    }
