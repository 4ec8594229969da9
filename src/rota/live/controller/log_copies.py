"""Copies of what attempts on machines that have joined have printed, so that it outlives them.

A copy is made once an attempt has ended, while its node's agent is connected. Agents of this
machine tell of it as they tell of outputs of their own. Of logs that are too long the middle is
left out. An attempt that ended while no controller was there is copied by the next one.
"""

import asyncio
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from rota.errors import AgentAwayError, AgentError, RotaError
from rota.folder import disk_of
from rota.live.controller.questions import Questions
from rota.live.controller.record import Record
from rota.live.wire.questions import AskLogs, LogBytes, LogFiles, ReadLog
from rota.model.events import AttemptLost, Event, JobFinished
from rota.store.members import Members

MOST_BYTES = 64 << 20  # of one attempt
ALIGNMENT = 1 << 20  # of the part that is left out: no file system has larger blocks
LOOKED_BACK_S = 24 * 3600.0  # at a start: attempts of jobs that ended earlier are copied no more
FILE_NAME = re.compile(r"[a-z]+[0-9]*\.[a-z]+")
MOST_TRIES = 3  # to copy one attempt: an agent of before does not know the question

Attempt = tuple[int, int]  # the row of its job, and its number

log = logging.getLogger("rota.controller")


class LogCopies:
    """Makes the copies, one after another, of attempts on the nodes of ``members``."""

    def __init__(self, record: Record, questions: Questions, members: Members) -> None:
        self._record, self._questions, self._members = record, questions, members
        self._missing: dict[str, dict[Attempt, None]] = {}  # by node
        self._tries: Counter[Attempt] = Counter()
        self._kick = asyncio.Event()
        state = record.state
        for row, end_s in enumerate(state.finish_s if members.names else ()):
            if end_s < 0 or end_s >= record.now_s() - LOOKED_BACK_S:
                for attempt in range(1, state.attempt[row] + (end_s >= 0)):
                    self._add(row, attempt)
        state.observers.append(self._note)
        questions.on_arrival = lambda node: self._kick.set()

    def has(self, row: int, attempt: int, node: str) -> bool:
        """True if there is a copy of what an attempt has left on a node."""
        job_id = self._record.state.spec[row].job_id
        return self._folder(node, job_id).joinpath(str(attempt)).is_dir()

    def missing(self) -> list[Attempt]:
        """The attempts that have yet to be copied: their rows, and their numbers."""
        return [attempt for attempts in self._missing.values() for attempt in attempts]

    async def run(self) -> None:
        """Make copies until cancelled."""
        while True:
            await self._kick.wait()
            self._kick.clear()
            for node, attempts in list(self._missing.items()):
                for attempt in list(attempts):
                    if node in self._record.outboxes.queues and await self._try(node, *attempt):
                        del attempts[attempt]

    def _note(self, event: Event) -> None:
        if isinstance(event, JobFinished | AttemptLost):
            self._add(event.row, self._record.state.attempt[event.row])

    def _add(self, row: int, attempt: int) -> None:
        for node in self._record.nodes_of(row, attempt):
            if node in self._members.names and not self._is_needless(row, attempt, node):
                self._missing.setdefault(node, {})[row, attempt] = None
                self._kick.set()

    def _is_needless(self, row: int, attempt: int, node: str) -> bool:
        return row in self._record.state.cleaned or self.has(row, attempt, node)

    def _folder(self, node: str, job_id: str) -> Path:
        return self._record.folder.copies(node, job_id)

    async def _try(self, node: str, row: int, attempt: int) -> bool:
        """Copy one attempt; True if that is not to be tried again."""
        job_id = self._record.state.spec[row].job_id
        try:
            needless = self._is_needless(row, attempt, node)
            if not (needless or disk_of(self._record.folder.path).is_low):
                await self._copy(node, job_id, attempt)
            return True
        except AgentAwayError:
            self._tries[row, attempt] += 1
            return self._tries[row, attempt] >= MOST_TRIES
        except (RotaError, OSError) as error:
            log.warning("what job %s printed on node %s is not copied: %s", job_id, node, error)
            return True

    async def _copy(self, node: str, job_id: str, attempt: int) -> None:
        """Copy an attempt's files, all or nothing. Raises AgentAwayError, OSError."""
        found = await self._questions.ask(node, AskLogs(node=node, job_id=job_id, attempt=attempt))
        if not isinstance(found, LogFiles) or not found.sizes:
            return
        check_names(node, found.sizes)
        folder = self._folder(node, job_id)
        draft = folder / f"{attempt}.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        most_bytes = max(MOST_BYTES // len(found.sizes), 4 * ALIGNMENT)
        for name, size in found.sizes.items():
            gap = left_out(size, most_bytes)
            with open(os.open(draft / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                offset = 0
                while True:
                    offset = gap.stop if offset in gap else offset
                    question = ReadLog(
                        node=node, job_id=job_id, attempt=attempt, name=name, offset=offset
                    )
                    piece = await self._questions.ask(node, question)
                    if not isinstance(piece, LogBytes) or not piece.data:
                        break
                    if not offset <= piece.offset < size:
                        break  # the job was moved or cleaned up, and something else is there
                    await asyncio.to_thread(_write, file, piece)
                    offset = piece.offset + len(piece.data)
        draft.rename(folder / str(attempt))


def _write(file: BinaryIO, piece: LogBytes) -> None:
    file.seek(piece.offset)
    file.write(piece.data)


def check_names(node: str, names: Iterable[str]) -> None:
    """Raise AgentError for what is no name of such a file, as of an agent that lies."""
    for name in names:
        if FILE_NAME.fullmatch(name) is None:
            raise AgentError(f"node {node} tells of a file {name!r:.80}, which no output has")


def left_out(size: int, most_bytes: int) -> range:
    """The part of a file of ``size`` bytes that is not copied, as ``most_bytes`` may be at most.

    A quarter of what is copied is the beginning.
    """
    if size <= most_bytes:
        return range(0)
    begin = most_bytes // 4 // ALIGNMENT * ALIGNMENT
    return range(begin, (size - most_bytes + begin) // ALIGNMENT * ALIGNMENT)
