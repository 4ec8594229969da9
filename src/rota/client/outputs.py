"""Outputs of a job's processes, followed piece by piece."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from rota.client.connection import FOLLOW_PATIENCE_S, PATIENCE_S, POLL_S
from rota.errors import NotFoundError


class LogPiece(NamedTuple):
    """Some of a process's output. ``next_offset`` is where to go on; ``complete``: nothing follows.

    ``next_process`` has had the same rank afterwards, if one has; ``rank`` is the process's own,
    None if it is no rank any more. ``size`` is how long the output was.
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


class Source(Protocol):
    """Where outputs come from: a :class:`rota.client.client.Client`."""

    def job(self, job_id: str) -> dict[str, Any]:
        """Everything about one job."""
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
        follow: bool = False,
    ) -> None:
        self._client, self._job_id = client, job_id
        self._rank, self._process, self._attempt = rank, process, attempt
        self._tail, self._follow = tail, follow
        self._number, self._offset, self._current = attempt, 0, process
        self._end: int | None = None  # of the present output
        self.done = self.idle = False

    def read(self) -> str:
        """The next piece; empty if there is none by now."""
        piece = self._client.log_piece(
            self._job_id,
            rank=self._rank,
            process=self._current,
            attempt=self._number,
            offset=self._offset,
            tail=self._tail,
            patience_s=FOLLOW_PATIENCE_S if self._follow else PATIENCE_S,
        )
        progressed = piece.next_offset != self._offset
        self._offset, self._tail = piece.next_offset, None
        self._end = piece.size if self._end is None else self._end
        if self._number is None and piece.attempt:
            self._number = piece.attempt
        if piece.attempt:
            self._current = piece.process
        self.idle = False
        if piece.complete and self._process is None and piece.next_process is not None:
            self._current, self._offset, self._end = piece.next_process, 0, None
        elif piece.complete:
            follows = self._follow and self._attempt is None
            latest = self._client.job(self._job_id)["attempt"] if follows else 0
            if self._number is None or latest <= self._number:
                self.done = True
            else:
                self._number, self._offset, self._current = self._number + 1, 0, self._process
        elif not self._follow and (self._offset >= self._end or not progressed):
            self.done = True
        else:
            self.idle = not progressed
        return piece.text


def lines_of_ranks(
    client: Source, job_id: str, *, attempt: int | None, tail: int | None, follow: bool
) -> Iterator[tuple[int, str]]:
    """``(rank, line)`` of all ranks in turn: what each has printed by now, then what comes."""
    which: dict[str, Any] = {"attempt": attempt, "tail": tail, "follow": follow}
    most = client.job(job_id)["max_gpus"]
    readers: list[OutputReader] = []
    begun: dict[int, str] = {}  # by rank, a line whose end has not come
    while True:
        if follow or not readers:  # an elastic job may get more ranks
            while len(readers) < most and _is_rank(client, job_id, len(readers), attempt):
                readers.append(OutputReader(client, job_id, rank=len(readers), **which))
        open_readers = [(rank, reader) for rank, reader in enumerate(readers) if not reader.done]
        if not open_readers:
            return
        for rank, reader in open_readers:
            *whole, rest = (begun.pop(rank, "") + _next_piece(reader)).split("\n")
            yield from ((rank, line) for line in whole)
            if rest and reader.done:
                yield rank, rest
            elif rest:
                begun[rank] = rest
        if all(reader.idle for _, reader in open_readers):
            time.sleep(POLL_S)


def _is_rank(client: Source, job_id: str, rank: int, attempt: int | None) -> bool:
    try:
        client.log_piece(job_id, rank=rank, attempt=attempt, tail=0, patience_s=FOLLOW_PATIENCE_S)
    except NotFoundError:
        return False
    return True


def _next_piece(reader: OutputReader) -> str:
    """Output that has come; a rank that a later attempt does not have is done."""
    try:
        return reader.read()
    except NotFoundError:
        reader.done = True
        return ""
