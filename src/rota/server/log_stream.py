"""A job's output as it is printed, as server-sent events: through processes and attempts.

The agent that has the output is asked for what follows a place in it, and answers once there is
something; nobody asks again and again.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, NamedTuple

from rota.errors import AgentAwayError, InputError, NotFoundError, RotaError
from rota.live.wire.questions import Output
from rota.model.job import JobState
from rota.server.jobs import story
from rota.server.streams import sse

HELD_S = 5.0  # for which an agent waits for more output; then there is a heartbeat
AGAIN_S = 0.5  # after an agent that is away, or does not wait
PIECE_BYTES = 1 << 16
MOST_PIECES_AT_ONCE = 64  # in an answer to ``once``
MOST_PLACE_CHARS = 32_000  # of an event's id, which has a place for each rank

_PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,18})\Z")
_STORY = re.compile(r"s([0-9]{1,9})\Z")
_NOT_BEGUN = "-"


class Wanted(NamedTuple):
    """The output that is followed; see the route of pieces.

    With ``system`` the lines of the job's story come among the pieces. With ``once`` the stream
    ends after the output so far: for callers who find no place.
    """

    rank: int | Literal["all"] | None
    process: int | None
    attempt: int | None
    offset: int
    tail: int | None
    since_s: float | None
    times: bool
    system: bool = False
    once: bool = False


class _Away(NamedTuple):
    """The agent that has an output does not answer."""

    detail: str


class LogStream:
    """One caller who follows the output of a job. Usable once."""

    def __init__(self, controller: Any, streams: Any, row: int, wanted: Wanted) -> None:
        self._controller, self._streams, self._row = controller, streams, row
        self._wanted = wanted
        self._num_told = 0  # lines of the story
        self._outputs: list[_Output] = []
        self._add_output(_NOT_BEGUN)

    def go_on_from(self, place: str) -> None:
        """Begin at the id of an event of an earlier stream. Raises InputError."""
        places = place.split(",")
        if self._wanted.system:
            found = _STORY.match(places.pop())
            if found is None:
                raise _no_place(place)
            self._num_told = int(found[1])
        if not 1 <= len(places) <= self._most_outputs():
            raise _no_place(place)
        self._outputs = []
        for each in places:
            self._add_output(each)

    async def begin(self) -> None:
        """Find the output. Raises what the route of pieces raises."""
        await self._outputs[0].begin()

    async def events(self) -> AsyncIterator[bytes]:
        """The stream's bytes: pieces, until an ``end``, or an ``error`` that ends it."""
        pulls: dict[asyncio.Task[Any], _Output] = {}
        written: asyncio.Task[Any] | None = None
        loop = asyncio.get_running_loop()
        try:
            while not self._streams.closed:
                if self._outputs[-1].is_there and len(self._outputs) < self._most_outputs():
                    self._add_output(_NOT_BEGUN)
                for output in self._outputs:
                    if not output.is_over and output not in pulls.values():
                        pulls[loop.create_task(output.next())] = output
                if written is None or written.done():
                    written = loop.create_task(self._streams.written.wait())
                for line in self._story(is_last=not pulls):
                    yield line
                if not pulls:
                    state = JobState(self._controller.state.state[self._row])
                    yield sse("end", {"state": state.name})
                    return
                await asyncio.wait([*pulls, written], return_when=asyncio.FIRST_COMPLETED)
                done = [pull for pull in pulls if pull.done()]
                told = [self._told(pulls.pop(pull), pull.result()) for pull in done]
                if done:
                    yield b"".join(told) or b":\n\n"
        except RotaError as error:
            yield sse("error", {"code": type(error).__name__, "detail": str(error)})
        finally:
            for task in [*pulls, *([written] if written is not None else [])]:
                task.cancel()

    async def told_by_now(self) -> AsyncIterator[bytes]:
        """The output so far, and an ``end`` if nothing will follow."""
        try:
            for _ in range(MOST_PIECES_AT_ONCE):
                if self._outputs[-1].is_there and len(self._outputs) < self._most_outputs():
                    self._add_output(_NOT_BEGUN)
                going = [output for output in self._outputs if not output.is_over]
                found = [(output, await output.next()) for output in going]
                told = [self._told(output, each) for output, each in found]
                lines = list(self._story(is_last=not going))
                yield b"".join([*told, *lines]) or b":\n\n"
                if not going:
                    state = JobState(self._controller.state.state[self._row])
                    yield sse("end", {"state": state.name})
                if not going or not any(isinstance(each, Output) for _, each in found):
                    return
        except RotaError as error:
            yield sse("error", {"code": type(error).__name__, "detail": str(error)})

    def _add_output(self, place: str) -> None:
        wanted, number = self._wanted, len(self._outputs)
        rank = number if wanted.rank == "all" else wanted.rank
        of = (self._controller, self._streams, self._row)
        self._outputs.append(_Output(*of, wanted, rank, place, may_lack=number > 0))

    def _most_outputs(self) -> int:
        if self._wanted.rank != "all":
            return 1
        spec = self._controller.state.spec[self._row]
        return int(spec.elastic.sizes[-1] if spec.elastic is not None else spec.num_gpus)

    def _told(self, output: "_Output", found: Output | _Away | None) -> bytes:
        if isinstance(found, _Away):
            return sse("away", {"detail": found.detail})
        if found is None or not found.text:
            return b""
        data = piece(self._controller, self._row, output.attempt, found)
        if self._wanted.rank == "all":
            data["rank"] = output.rank
        return sse("piece", data, self._place())

    def _story(self, *, is_last: bool) -> Iterator[bytes]:
        """Lines of the job's story that were not told; those of its end come after its output."""
        if not self._wanted.system:
            return
        is_final = JobState(self._controller.state.state[self._row]).is_final
        if is_final and not is_last:
            return
        told = story(self._controller, self._row)
        for line in told[self._num_told :]:
            self._num_told += 1
            if line["at_s"] >= (self._wanted.since_s or 0.0):
                yield sse("story", line, self._place())

    def _place(self) -> str:
        places = [output.place for output in self._outputs]
        return ",".join(places + [f"s{self._num_told}"] * self._wanted.system)


class _Output:
    """The output of one rank or process, through processes and attempts.

    ``is_there`` once it was found, ``is_over`` after its end. One that the job ``may_lack`` is
    waited for: an elastic job may get more ranks.
    """

    def __init__(
        self,
        controller: Any,
        streams: Any,
        row: int,
        wanted: Wanted,
        rank: int | None,
        place: str,
        *,
        may_lack: bool,
    ) -> None:
        self._controller, self._streams, self._row = controller, streams, row
        self._wanted, self.rank, self._may_lack = wanted, rank, may_lack
        self._number, self._process = wanted.attempt, wanted.process
        self._where: dict[str, Any] = {"offset": wanted.offset}
        self._where |= {"tail": wanted.tail, "since_s": wanted.since_s}
        self._first: Output | None = None
        self.attempt = 0  # of the last piece
        self.place = place  # after it, as the id of an event tells it
        self.is_there = self.is_over = False
        if place != _NOT_BEGUN:
            found = _PLACE.match(place)
            if found is None:
                raise _no_place(place)
            number, self._process, offset = map(int, found.groups())
            self._number = number or None
            self._where = {"offset": offset}

    async def begin(self) -> None:
        """Find the output. Raises what the route of pieces raises."""
        self._first = await self._found(0.0)

    async def next(self) -> Output | _Away | None:
        """The next piece; None or one without text: nothing for a while. Raises RotaError."""
        before = self._latest(), self._has_ended()
        allocation = self._controller.state.held[self._row]
        found, self._first = self._first, None
        try:
            found = found or await self._more(before)
        except AgentAwayError as error:
            await self._pause()
            return _Away(str(error))
        except NotFoundError:
            if not self._may_lack:
                raise
            fixed = self._wanted.attempt
            self.is_over = before[1] or (fixed is not None and before[0] > fixed)
            if not self.is_over and not self._wanted.once:
                await self._change((*before, allocation))
            return None
        if found is None:
            return None
        self.attempt = self._number or before[0]
        self._note(found, self.attempt)
        if found.complete:
            if self._wanted.process is None and found.next_process is not None:
                self._begin_output(found.next_process)
            elif self._wanted.attempt is None and self._latest() > self.attempt:
                self._number = self.attempt + 1
                self._begin_output(self._wanted.process)
            else:
                self.is_over = before[1] or self._wanted.attempt is not None
        return found

    def _note(self, found: Output, attempt: int) -> None:
        if attempt:
            self._where = {"offset": found.next_offset}
            self._number, self._process = attempt, found.process
            self.place = f"{attempt}.{found.process}.{found.next_offset}"
            self.is_there = True

    def _begin_output(self, process: int | None) -> None:
        self._process, self._where = process, {"offset": 0}

    def _latest(self) -> int:
        return int(self._controller.state.attempt[self._row])

    def _has_ended(self) -> bool:
        return JobState(self._controller.state.state[self._row]).is_final

    async def _more(self, before: tuple[int, bool]) -> Output | None:
        """New output; None if there is nothing for a while, or if the job has changed."""
        loop = asyncio.get_running_loop()
        asked = loop.create_task(self._found(0.0 if self._wanted.once else HELD_S))
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

    async def _change(self, before: tuple[object, ...]) -> None:
        """Wait until the job has another attempt or other GPUs, or has ended."""
        while not self._streams.closed:
            held = self._controller.state.held[self._row]
            if (self._latest(), self._has_ended(), held) != before:
                return
            await self._streams.written.wait()

    async def _pause(self) -> None:
        if self._wanted.once:
            return
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._streams.written.wait()
        except TimeoutError:
            pass

    async def _found(self, wait_s: float) -> Output:
        found: Output = await self._controller.files.output(
            self._row,
            self._number or self._latest(),
            rank=self.rank,
            process=self._process,
            limit=PIECE_BYTES,
            times=self._wanted.times,
            wait_s=wait_s,
            **self._where,
        )
        return found


def _no_place(place: str) -> InputError:
    return InputError(f"Last-Event-ID: {place!r:.80} is no place in the job's output")


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
