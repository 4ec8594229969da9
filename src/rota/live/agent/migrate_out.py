"""Hands out the state of an attempt to another node that asks for it.

The attempt vacates its processes. It stays a suspended attempt that can continue here until the
controller says that it has continued there.
"""

import asyncio
import contextlib
import os
import time
import zlib
from pathlib import Path

from rota.errors import AgentError
from rota.live.agent.attempt import Attempt
from rota.live.agent.curve import FILE as CURVE
from rota.live.agent.line_times import note_end, times_file
from rota.live.agent.memory import vacate
from rota.live.agent.migrate_checkpoints import (
    LISTING,
    PREFIX,
    abridged,
    describe,
    inside,
    remove_probes,
)
from rota.live.agent.output import left_out_of
from rota.live.agent.record import json_of
from rota.live.wire import METRICS, PIECE_BYTES, Message

POLL_S = 0.01
ADOPTION_S = 3.0  # how long adopted workers have to say hello


class Departure:
    """One attempt, of a job with this folder of ``checkpoints``."""

    def __init__(self, attempt: Attempt, checkpoints: Path) -> None:
        self._attempt = attempt
        self._checkpoints = checkpoints
        self._turn = asyncio.Lock()  # answers come in the order of the questions
        self._looked_into = 0  # folders, while a list of them is made

    async def answer(self, question: Message) -> tuple[Message, bytes]:
        """The answer to a question of an :class:`~rota.live.agent.migrate_in.Arrival`.

        Raises AgentError if the attempt can't leave.
        """
        if question.get("want") == "state":
            if self._turn.locked():  # the same question is being answered
                return {"want": "state", "wait": True, "progress": self._progress()}, b""
            async with self._turn:
                return await self._describe(), b""
        async with self._turn:
            name, offset = str(question["file"]), int(question["offset"])
            piece = await self._read(name, offset)
            checksum = await asyncio.to_thread(zlib.crc32, piece)
            return {"file": name, "offset": offset, "checksum": checksum}, piece

    async def _read(self, name: str, offset: int) -> bytes:
        """A piece of a file, wherever that is now: an arena may move to the disk meanwhile."""
        job_id = self._attempt.job_id
        for tries_left in (1, 0):
            path = self._paths().get(name)
            if name.startswith(PREFIX):
                path = inside(self._checkpoints, name.removeprefix(PREFIX))
            elif name == LISTING:
                path = self._attempt.folder / LISTING
            if path is None:
                raise AgentError(f"job {job_id} has no file {name!r:.80} to hand out")
            try:
                return await asyncio.to_thread(_read, path, offset)
            except OSError as error:
                if not tries_left:
                    raise AgentError(f"{path} of job {job_id}: {error.strerror}") from None
        raise AssertionError("the loop has returned or raised")

    async def _describe(self) -> Message:
        """Have the state written, and describe its files."""
        attempt = self._attempt
        error = await self._vacate()
        if error is not None:
            raise AgentError(error)
        while any(rank.alive for rank in attempt.ranks):  # their last output is still to come
            await asyncio.sleep(POLL_S)
        vacated = attempt.record.vacated
        assert vacated is not None
        slots = {_arena_name(slot): int(slot) for slot in vacated.arenas}
        for rank in attempt.ranks:
            note_end(rank.log)
        files = [
            {
                "name": name,
                "slot": slots.get(name),
                "bytes": path.stat().st_size,
                "left_out": None if name in slots else left_out_of(path),
            }
            for name, path in self._paths().items()
        ]
        record = json_of(attempt.record)
        state_id = str(vacated.at_s)
        told = {"want": "state", "record": record, "files": files, "state_id": state_id}
        return told | {"checkpoints": await asyncio.to_thread(self._list)}

    def _list(self) -> Message:
        return abridged(describe(self._checkpoints, self._note_folder), self._attempt.folder)

    def _note_folder(self) -> None:
        self._looked_into += 1

    def _progress(self) -> int:
        """A number that changes while the description of the state makes progress."""
        arenas = self._attempt.vacating.files()
        blocks = 0
        for file in arenas:
            with contextlib.suppress(OSError):
                blocks += file.stat().st_blocks
        alive = sum(rank.alive for rank in self._attempt.ranks)
        return blocks + self._looked_into - alive

    def over(self) -> None:
        """Nothing more is handed out."""
        with contextlib.suppress(OSError):
            remove_probes(self._checkpoints)
            (self._attempt.folder / LISTING).unlink(missing_ok=True)

    async def _vacate(self) -> str | None:
        """The reason for which its processes must stay; None once they are to end."""
        attempt, vacating = self._attempt, self._attempt.vacating
        deadline = time.monotonic() + ADOPTION_S
        while vacating.writing or (self._is_awaited() and time.monotonic() < deadline):
            await asyncio.sleep(POLL_S)
        return await vacate(attempt)

    def _is_awaited(self) -> bool:
        """True if processes that wait at a boundary have yet to find a new agent."""
        attempt = self._attempt
        if attempt.is_vacated or attempt.record.frozen:
            return False
        awaited = (rank.suspended is None or rank.writer is None for rank in attempt.members)
        return any(awaited) and any(rank.alive for rank in attempt.members)

    def _paths(self) -> dict[str, Path]:
        """Paths of the files that move with the job, by name: arenas first."""
        attempt = self._attempt
        arenas = attempt.record.vacated.arenas if attempt.record.vacated is not None else {}
        paths = {_arena_name(slot): Path(path) for slot, path in arenas.items()}
        told = [path for rank in attempt.ranks for path in (rank.log, times_file(rank.log))]
        told += [attempt.folder / METRICS, attempt.folder / CURVE]
        return paths | {path.name: path for path in told if path.exists()}


def _arena_name(slot: str) -> str:
    return f"{slot}.arena"


def _read(path: Path, offset: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, PIECE_BYTES, offset)
    finally:
        os.close(descriptor)
