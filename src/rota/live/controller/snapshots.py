"""Snapshots that the controller keeps for nodes: packed folders, each a file named by its digest.

A snapshot is kept as long as a job has it whose files are kept, and an hour after somebody has
asked for it: whoever is about to submit a job with it asks first.
"""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rota.errors import InputError, NotFoundError, StoreError, StoreFullError
from rota.live.controller.record import Record
from rota.live.controller.room import Room
from rota.model.job import JobState
from rota.model.snapshot import DIGEST, MAX_PACKED_BYTES, Check
from rota.request.jobfile import JobRequest
from rota.request.values import refuse

ASKED_FOR_S = 3600.0  # how long one that was asked for is kept without a job
DRAFT = ".part"

log = logging.getLogger("rota.controller")


class Snapshots:
    """The snapshots of one controller."""

    def __init__(self, record: Record, room: Room, folder: Path) -> None:
        self._record, self._room, self._folder = record, room, folder

    def find(self, digest: str) -> Path:
        """The file of a snapshot, which is kept for a while from now on. Raises NotFoundError."""
        path = self._folder / digest
        try:
            if not DIGEST.match(digest):
                raise FileNotFoundError
            os.utime(path)
        except FileNotFoundError:
            raise NotFoundError(f"there is no snapshot {digest!r:.80}; PUT it there") from None
        except OSError as error:
            raise StoreError(f"snapshot {path}: {error.strerror}") from None
        return path

    def check(self, request: JobRequest) -> None:
        """Raise JobFileError unless the snapshot that a job wants is here."""
        if request.snapshot is True:
            fix = "`rota submit` and the Python client pack workdir; here write the digest of "
            refuse("snapshot", True, f"{fix}what was PUT to /api/v1/snapshots")
        if request.snapshot:
            try:
                self.find(str(request.snapshot))
            except NotFoundError:
                fix = "it is not here: PUT it to /api/v1/snapshots first"
                refuse("snapshot", request.snapshot, fix)

    async def receive(self, digest: str, pieces: AsyncIterator[bytes]) -> bool:
        """Take a snapshot; False if it was here before. What comes is read to its end.

        Raises InputError for what is no archive with this digest or is too large, StoreFullError if
        the disk has no room for it.
        """
        if not DIGEST.match(digest):
            raise InputError(f"snapshot: {digest!r:.80} is no digest; send 64 of 0-9 a-f")
        with contextlib.suppress(NotFoundError):
            self.find(digest)
            async for _ in pieces:
                pass
            return False
        draft = self._folder / f"{digest}.{secrets.token_hex(8)}{DRAFT}"
        try:
            await self._write(draft, Check(digest), pieces)
            os.replace(draft, self._folder / digest)
        except OSError as error:
            async for _ in pieces:  # who still sends would not hear an answer
                pass
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(
                    f"snapshot: there is no room for it in {self._folder}: {error.strerror}; make "
                    "room there, `rota clean` removes what jobs have left"
                ) from None
            raise StoreError(f"snapshot: {draft} can't be written: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
        return True

    async def _write(self, draft: Path, check: Check, pieces: AsyncIterator[bytes]) -> None:
        """Write what comes to a draft, durably. Raises InputError, OSError."""
        if self._room.is_tight:
            raise OSError(errno.ENOSPC, self._room.shortage())
        self._folder.mkdir(exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        num_bytes, refusal = 0, None
        with open(os.open(draft, flags, 0o600), "wb") as file:
            async for piece in pieces:
                num_bytes += len(piece)
                if num_bytes > MAX_PACKED_BYTES:
                    raise InputError(f"snapshot: it has more than {MAX_PACKED_BYTES} bytes")
                if refusal is None:
                    try:
                        await asyncio.to_thread(check.feed, piece)
                        file.write(piece)
                    except InputError as error:
                        refusal = error
            if refusal is not None:
                raise refusal
            check.end()
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())

    # -- the end of it ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Remove what is needless now, and what becomes so later without anybody cleaning up."""
        while True:
            self.remove_needless()
            await asyncio.sleep(ASKED_FOR_S)

    def remove_needless(self) -> None:
        """Remove the snapshots that no job has whose files are kept, and drafts that were left."""
        with contextlib.suppress(FileNotFoundError):
            old_s = time.time() - ASKED_FOR_S
            old = [file for file in self._folder.iterdir() if file.stat().st_mtime < old_s]
            needed = self._needed() if old else set()
            for file in old:
                if file.name not in needed:
                    try:
                        file.unlink()
                    except OSError as error:
                        log.warning("%s is left, and takes up room: %s", file, error)

    def _needed(self) -> set[str]:
        """The digests of jobs that may start or whose files are kept, and of open searches."""
        state, searches = self._record.state, self._record.searches
        rows = (
            row
            for row in range(len(state.spec))
            if row not in state.cleaned or not JobState(state.state[row]).is_final
        )
        programs = (state.spec[row].program for row in rows)
        found = {program.snapshot for program in programs if program is not None}
        return found | {str(request.get("snapshot", "")) for request in searches.open_requests()}
