"""Outputs of a job's processes, followed piece by piece or line by line."""

import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple, Protocol

from rota.client.connection import FOLLOW_PATIENCE_S, PATIENCE_S, POLL_S
from rota.errors import NotFoundError


class LogPiece(NamedTuple):
    """Some of a process's output. ``next_offset`` is where to go on; ``complete``: nothing follows.

    ``next_process`` has had the same rank afterwards, if one has; ``rank`` is the process's own,
    None if it is no rank any more. ``size`` is how long the output was. ``times`` are pairs of a
    number of lines, one after another, and the time by which these were printed; the first line may
    have begun before the piece. They are None unless they were asked for, and kept.
    """

    text: str
    attempt: int
    next_offset: int
    complete: bool
    job_ended: bool
    state: str
    rank: int | None
    process: int
    next_process: int | None
    size: int
    times: list[tuple[int, float]] | None


class LogLine(NamedTuple):
    """A line of a job's output, without its end, and the time by which it was printed.

    ``at_s`` is None where times were not kept. A line with ``system`` tells what Rota did to the
    job; others are of ``rank``, None for a process that is no rank any more.
    """

    at_s: float | None
    rank: int | None
    text: str
    system: bool = False


class Source(Protocol):
    """Where outputs come from: a :class:`rota.client.client.Client`."""

    def job(self, job_id: str) -> dict[str, Any]:
        """Everything about one job."""
        ...

    def story(self, job_id: str) -> list[dict[str, Any]]:
        """A job's story: ``{"at_s", "line"}``, oldest first."""
        ...

    def log_piece(
        self,
        job_id: str,
        *,
        rank: int | None = None,
        process: int | None = None,
        attempt: int | None = None,
        offset: int = 0,
        tail: int | None = None,
        since_s: float | None = None,
        times: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> LogPiece:
        """Output of a process from ``offset`` on, or its last ``tail`` lines; maybe not all."""
        ...


class OutputReader:
    """The output of one rank or process, read a piece at a time.

    ``done`` once nothing more is to be read; ``idle`` if the last piece brought nothing new.
    """

    def __init__(
        self,
        client: Source,
        job_id: str,
        *,
        rank: int | None = None,
        process: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        times: bool = False,
        follow: bool = False,
    ) -> None:
        self._client, self._job_id = client, job_id
        self._rank, self._process, self._attempt = rank, process, attempt
        self._tail, self._since_s, self._times, self._follow = tail, since_s, times, follow
        self._number, self._offset, self._current = attempt, 0, process
        self._begins = True  # nothing of the present output has been read
        self._end: int | None = None  # of the present output
        self.done = self.idle = False

    def read(self) -> LogPiece:
        """The next piece; its text is empty if there is none by now."""
        piece = self._client.log_piece(
            self._job_id,
            rank=self._rank,
            process=self._current,
            attempt=self._number,
            offset=self._offset,
            tail=self._tail,
            since_s=self._since_s if self._begins else None,
            times=self._times,
            patience_s=FOLLOW_PATIENCE_S if self._follow else PATIENCE_S,
        )
        progressed = piece.next_offset != self._offset
        self._offset, self._tail, self._begins = piece.next_offset, None, not piece.attempt
        self._end = piece.size if self._end is None else self._end
        if self._number is None and piece.attempt:
            self._number = piece.attempt
        if piece.attempt:
            self._current = piece.process
        self.idle = False
        if piece.complete and self._process is None and piece.next_process is not None:
            self._begin(piece.next_process)
        elif piece.complete:
            follows = self._follow and self._attempt is None
            latest = self._client.job(self._job_id)["attempt"] if follows else 0
            if self._number is None or latest <= self._number:
                self.done = True
            else:
                self._number += 1
                self._begin(self._process)
        elif not self._follow and (self._offset >= self._end or not progressed):
            self.done = True
        else:
            self.idle = not progressed
        return piece

    def _begin(self, process: int | None) -> None:
        self._current, self._offset, self._end, self._begins = process, 0, None, True


class _Lines:
    """Lines of one rank or process; those that have been read are ``ready``.

    They are told to be of ``rank``, or of the rank that their process has if that is None.
    """

    def __init__(self, reader: OutputReader, rank: int | None) -> None:
        self._reader, self._rank = reader, rank
        self._has_read = False
        self._begun: LogLine | None = None  # a line whose end has not come
        self.ready: deque[LogLine] = deque()

    @property
    def done(self) -> bool:
        """True once nothing more is to be read."""
        return self._reader.done

    def read(self) -> bool:
        """Read a piece; False if there is none by now. Raises NotFoundError for the first one."""
        try:
            piece = self._reader.read()
        except NotFoundError:
            if not self._has_read:
                raise
            self._reader.done = True  # a later attempt does not have the rank
            return False
        self._has_read = True
        rank = piece.rank if self._rank is None else self._rank
        times = (repeat(at_s, lines) for lines, at_s in piece.times or ())
        each = chain(chain.from_iterable(times), repeat(None))
        *whole, rest = piece.text.split("\n")
        for text in whole:
            self._end(text, next(each), rank)
        if rest:
            begun = self._begun or LogLine(next(each), rank, "")
            self._begun = begun._replace(text=begun.text + rest)
        if self._begun is not None and (piece.complete or self.done):
            self._end("", None, rank)
        return not self._reader.idle

    def _end(self, text: str, at_s: float | None, rank: int | None) -> None:
        begun, self._begun = self._begun or LogLine(at_s, rank, ""), None
        self.ready.append(begun._replace(text=begun.text + text))


class _Story:
    """A job's story since a time, as lines; ``is_last``: the next reading is the last."""

    def __init__(self, client: Source, job_id: str, since_s: float, *, is_last: bool) -> None:
        self._client, self._job_id, self._since_s = client, job_id, since_s
        self._num_told = 0
        self.is_last, self.done = is_last, False
        self.ready: deque[LogLine] = deque()

    def read(self) -> bool:
        """Read what has happened; False if nothing has."""
        events = self._client.story(self._job_id)
        new = events[self._num_told :]
        self._num_told, self.done = len(events), self.is_last
        told = [LogLine(event["at_s"], None, event["line"], True) for event in new]
        self.ready += [line for line in told if (line.at_s or 0.0) >= self._since_s]
        return bool(new)


def lines_of(
    client: Source,
    job_id: str,
    *,
    rank: int | Literal["all"] | None,
    process: int | None,
    attempt: int | None,
    tail: int | None,
    since_s: float | None,
    system: bool,
    follow: bool,
) -> Iterator[LogLine]:
    """Lines of a rank, a process or all ranks, in order of their times; see ``Client.log_lines``.

    Lines without times come rank by rank: what each has printed by now, then what comes.
    """
    which: dict[str, Any] = {"attempt": attempt, "tail": tail, "since_s": since_s}
    which |= {"times": True, "follow": follow}
    most = client.job(job_id)["max_gpus"] if rank == "all" else 1
    story = _Story(client, job_id, since_s or 0.0, is_last=not follow) if system else None
    outputs: list[_Lines] = []
    while True:
        if follow or not outputs:  # an elastic job may get more ranks
            while len(outputs) < most and _is_rank(client, job_id, len(outputs), attempt):
                wanted = len(outputs) if isinstance(rank, str) else rank
                reader = OutputReader(client, job_id, rank=wanted, process=process, **which)
                outputs.append(_Lines(reader, wanted))
        yield from _ready(outputs, story)
        if not all(output.done for output in outputs):
            time.sleep(POLL_S)
        elif story is None or story.done:
            return
        else:
            story.is_last = True


def _ready(outputs: list[_Lines], story: _Story | None) -> Iterator[LogLine]:
    """Lines that are there by now, oldest first."""
    sources: list[_Lines | _Story] = [*([story] if story is not None else []), *outputs]
    idle: set[_Lines | _Story] = set()  # have no more by now
    while True:
        for source in sources:
            while not (source.ready or source.done or source in idle):
                if source.read():
                    idle.clear()  # there is more of others, too, perhaps
                else:
                    idle.add(source)
        first = min(
            (source for source in sources if source.ready),
            key=lambda source: source.ready[0].at_s or 0.0,
            default=None,
        )
        if first is None:
            return
        yield first.ready.popleft()


def _is_rank(client: Source, job_id: str, rank: int, attempt: int | None) -> bool:
    if rank == 0:
        return True
    try:
        client.log_piece(job_id, rank=rank, attempt=attempt, tail=0, patience_s=FOLLOW_PATIENCE_S)
    except NotFoundError:
        return False
    return True
