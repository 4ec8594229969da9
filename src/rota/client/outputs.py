"""Outputs of a job's processes, followed piece by piece or line by line."""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple, Protocol

from rota.client.connection import FOLLOW_PATIENCE_S, PATIENCE_S
from rota.errors import NotFoundError

MOST_LINE_CHARS = 1 << 14  # of a line; of a longer one, each so many are a line


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


class StoryLine(NamedTuple):
    """A line of a job's story: what Rota did to the job, and when."""

    at_s: float
    text: str


class LogLine(NamedTuple):
    """A line of a job's output, without its end, and the time by which it was printed.

    Of a line without end, each MOST_LINE_CHARS are a line, with the time of its beginning.
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

    def follow(
        self,
        job_id: str,
        *,
        rank: int | Literal["all"] | None = None,
        process: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        times: bool = False,
        system: bool = False,
        place: str = "",
    ) -> Iterable[LogPiece | StoryLine]:
        """Output as it is printed, after a place: that of each rank, and that in the story."""
        ...


class OutputReader:
    """The output of one rank or process, read a piece at a time.

    It ends where the output ended at the first reading: then it is ``done``.
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
    ) -> None:
        self._client, self._job_id = client, job_id
        self._rank, self._process = rank, process
        self._tail, self._since_s, self._times = tail, since_s, times
        self._number, self._offset, self._current = attempt, 0, process
        self._begins = True  # nothing of the present output has been read
        self._end: int | None = None  # of the present output
        self.done = False

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
        )
        progressed = piece.next_offset != self._offset
        self._offset, self._tail, self._begins = piece.next_offset, None, not piece.attempt
        self._end = piece.size if self._end is None else self._end
        if self._number is None and piece.attempt:
            self._number = piece.attempt
        if piece.attempt:
            self._current = piece.process
        if piece.complete and self._process is None and piece.next_process is not None:
            self._begin(piece.next_process)
        else:
            self.done = piece.complete or self._offset >= self._end or not progressed
        return piece

    @property
    def place(self) -> str:
        """Where a stream goes on after what was read; see :meth:`Source.follow`."""
        return f"{self._number or 0}.{self._current or 0}.{self._offset}"

    def _begin(self, process: int | None) -> None:
        self._current, self._offset, self._end, self._begins = process, 0, None, True


class _Lines:
    """Lines of one rank or process; those whose end has come are ``ready``.

    They are told to be of ``rank``, or of the rank that their process has if that is None.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._begun: LogLine | None = None  # a line whose end has not come
        self.ready: deque[LogLine] = deque()

    def take(self, piece: LogPiece) -> None:
        """Take the next piece of the output."""
        rank = piece.rank if self._rank is None else self._rank
        times = (repeat(at_s, lines) for lines, at_s in piece.times or ())
        each = chain(chain.from_iterable(times), repeat(None))
        *whole, rest = piece.text.split("\n")
        for text in whole:
            at_s = next(each)
            if self._begun is None and len(text) <= MOST_LINE_CHARS:
                self.ready.append(LogLine(at_s, rank, text))
            else:
                self._add(text, at_s, rank)
                self.end()
        if rest:
            self._add(rest, next(each), rank)
        if piece.complete:
            self.end()

    def end(self) -> None:
        """Have the line that has begun be ready as it is."""
        if self._begun is not None:
            self.ready.append(self._begun)
            self._begun = None

    def _add(self, text: str, at_s: float | None, rank: int | None) -> None:
        begun = self._begun or LogLine(at_s, rank, "")
        *parts, last = _parts_of(begun.text + text)
        for part in parts:
            self.ready.append(begun._replace(text=part))
            begun = LogLine(at_s, rank, "")
        self._begun = begun._replace(text=last)


def split_lines(begun: str, text: str) -> tuple[list[str], str]:
    """The lines that end in ``text``, which goes on after ``begun``, and the line begun last.

    Of a line without end, each MOST_LINE_CHARS are a line.
    """
    *whole, rest = (begun + text).split("\n")
    lines = [part for line in whole for part in _parts_of(line)]
    *parts, rest = _parts_of(rest)
    return lines + parts, rest


def _parts_of(line: str) -> list[str]:
    starts = range(0, len(line), MOST_LINE_CHARS)
    return [line[start : start + MOST_LINE_CHARS] for start in starts] or [""]


class _Output(NamedTuple):
    """The output printed by now, and its lines."""

    reader: OutputReader
    lines: _Lines


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

    Lines without times come rank by rank. First comes what each has printed by now; what is
    printed afterwards comes over one connection, as it is printed.
    """
    which: dict[str, Any] = {"attempt": attempt, "tail": tail, "since_s": since_s, "times": True}
    outputs: list[_Output] = []
    most = client.job(job_id)["max_gpus"] if rank == "all" else 1
    while len(outputs) < most and _is_rank(client, job_id, len(outputs), attempt):
        wanted = len(outputs) if isinstance(rank, str) else rank
        reader = OutputReader(client, job_id, rank=wanted, process=process, **which)
        outputs.append(_Output(reader, _Lines(wanted)))
    told = client.story(job_id) if system else []
    story = deque(LogLine(each["at_s"], None, each["line"], True) for each in told)
    while story and (story[0].at_s or 0.0) < (since_s or 0.0):
        story.popleft()
    yield from _by_time(outputs, story, are_whole=not follow)
    if not follow:
        return
    place = ",".join([*(each.reader.place for each in outputs), *[f"s{len(told)}"] * system])
    which |= {"rank": rank, "process": process, "system": system}
    by_rank = {number: output.lines for number, output in enumerate(outputs)}
    for printed in client.follow(job_id, **which, place=place):
        if isinstance(printed, StoryLine):
            yield LogLine(printed.at_s, None, printed.text, True)
            continue
        number = (printed.rank or 0) if rank == "all" else 0
        lines = by_rank.setdefault(number, _Lines(number))
        lines.take(printed)
        while lines.ready:
            yield lines.ready.popleft()
    for lines in by_rank.values():
        lines.end()
        yield from lines.ready


def _by_time(
    outputs: list[_Output], story: Iterable[LogLine], *, are_whole: bool
) -> Iterator[LogLine]:
    """Lines that are there by now, oldest first; ``are_whole``: no last line goes on."""
    each = (_lines_by_now(output, are_whole=are_whole) for output in outputs)
    return merge(story, *each, key=lambda line: line.at_s or 0.0)


def _lines_by_now(output: _Output, *, are_whole: bool) -> Iterator[LogLine]:
    reader, lines = output
    while True:
        while lines.ready:
            yield lines.ready.popleft()
        if reader.done:
            return
        lines.take(reader.read())
        if are_whole and reader.done:
            lines.end()


def _is_rank(client: Source, job_id: str, rank: int, attempt: int | None) -> bool:
    if rank == 0:
        return True
    try:
        client.log_piece(job_id, rank=rank, attempt=attempt, tail=0, patience_s=FOLLOW_PATIENCE_S)
    except NotFoundError:
        return False
    return True
