"""Fetches an attempt's files from the node where its state lies.

Pieces come through the controller, or directly while there is a connection to that node: one after
the other, and only as fast as they are asked for. What has come is kept, so that after a lost
connection, or the end of this agent, it goes on after the last whole piece. Nothing can be started
from it before all is here and has been checked.
"""

import asyncio
import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.errors import AgentError, ArenaError
from rota.live.agent.blocking import to_its_end
from rota.live.agent.claim import LAUNCH, release, write_mark
from rota.live.agent.migrate_checkpoints import LISTING, Coming, listed
from rota.live.wire import PIECE_BYTES, Message
from rota.live.wire.arena_file import verify
from rota.model.presence import Presence

Ask = Callable[[Message], object]

MARK = "arrival.json"  # in the attempt's folder, until there is an attempt.json
ASKED_AHEAD = 4  # pieces
ASK_AGAIN_S = 1.0
PATIENCE_S = 60.0  # without a sign of the other node
STALLED_S = 300.0  # with signs, but nothing has come and nothing is being done there
MAX_DAMAGED = 10  # pieces
FILE_NAME = re.compile(r"[a-z0-9]+\.(log|times|jsonl)\Z")


class Arrival:
    """One attempt. ``ask`` sends a message towards the node ``source``, through the controller."""

    def __init__(
        self,
        source: str,
        job_id: str,
        number: int,
        folder: Path,
        arenas: Path,
        checkpoints: Path,
        ask: Ask,
        launch: str | None = None,
    ) -> None:
        self.source = source
        self.job_id = job_id
        self.number = number
        self.launch = launch
        self.epoch = 0
        self.folder = folder
        self.began_s = time.monotonic()  # once the state is told: to fetch its files
        self.received_bytes = self.direct_bytes = 0
        self._memory = self._arenas = arenas
        self._coming = Coming(checkpoints)
        self._ask = self._way = ask
        self._replies: asyncio.Queue[tuple[Message, bytes]] = asyncio.Queue()
        self._presence = Presence(2 * ASK_AGAIN_S)
        self._heard_s = 0.0  # time of presence at the last message from the other node
        self._moved_s = 0.0  # time of the last message that got the move on
        self._progress: object = None  # as far as the other node has got
        self._damaged = 0

    async def run(self) -> dict[str, Any]:
        """Fetch everything. Returns the attempt's record, with arenas here. Raises AgentError."""
        self._mark({})
        self._heard_s = self._presence.at(time.monotonic())
        self._moved_s = time.monotonic()
        try:
            state = await self._fetch_state()
            self.began_s = time.monotonic()
            checkpoints = state["checkpoints"]
            if checkpoints is not None and (file := checkpoints.get("list")) is not None:
                checkpoints = await self._fetch_list(file)
            if checkpoints is not None:
                for file in checkpoints["files"]:
                    await self._fetch(file, self._coming.path_of(file["name"]))
            arenas = {}
            for file in state["files"]:
                path = self._path_of(file)
                await self._fetch(file, path.with_name(f"{path.name}.part"))
                if file["slot"] is not None:
                    arenas[str(file["slot"])] = str(path)
            await to_its_end(self._put_in_place, state["files"])
            if checkpoints is not None:
                await to_its_end(self._coming.settle, checkpoints)
        except (OSError, ArenaError) as error:
            raise AgentError(
                f"the state of job {self.job_id} can't be kept here: {error}"
            ) from None
        record: dict[str, Any] = state["record"]
        record["vacated"]["arenas"] = arenas
        return record

    def heard(self, message: Message, piece: bytes) -> None:
        """An answer of the other node, or a message of the controller about it."""
        self._replies.put_nowait((message, piece))

    def go_by(self, way: Ask | None) -> None:
        """Ask for pieces by another way from now on, which answers or ends; None: no longer."""
        self._way = way or self._ask
        if way is None:
            self.heard({"away": True}, b"")  # what was asked is asked again

    def discard(self) -> None:
        """Remove everything that has been fetched."""
        release(self.folder)
        self._coming.discard()
        for file in self._memory.glob(f"{self.job_id}-{self.number}-*.arena*"):
            with contextlib.suppress(OSError):
                file.unlink()

    # -- what there is to fetch ----------------------------------------------------------------

    async def _fetch_state(self) -> dict[str, Any]:
        while True:
            self._send(self._ask, want="state")
            message, _ = await self._next(self._ask)
            if message.get("want") == "state" and "record" in message:
                self._moved_s = time.monotonic()
                break
        state = {key: message[key] for key in ("record", "files", "state_id")}
        checkpoints = message.get("checkpoints")  # an agent of before tells none
        is_new = checkpoints is not None and not self._coming.are_here(checkpoints)
        state["checkpoints"] = checkpoints if is_new else None
        if self._marked().get("state_id") != state["state_id"]:  # these files are of another state
            self.discard()
            self._mark({"state_id": state["state_id"]})
        size = sum(file["bytes"] for file in state["files"] if file["slot"] is not None)
        status = os.statvfs(self._memory)
        if status.f_bavail * status.f_frsize + self._received() < size:  # then on the disk
            self._arenas = self.folder
        return state

    async def _fetch_list(self, file: dict[str, Any]) -> dict[str, Any]:
        """The long list of the checkpoints, anew: it may be another one than before."""
        path = self.folder / LISTING
        path.unlink(missing_ok=True)
        await self._fetch(file, path)
        found = await asyncio.to_thread(listed, path)
        path.unlink()
        return found

    def _received(self) -> int:
        """Bytes of arenas that are in memory already."""
        files = self._memory.glob(f"{self.job_id}-{self.number}-*.arena*")
        return sum(file.stat().st_size for file in files)

    def _path_of(self, file: dict[str, Any]) -> Path:
        if file["slot"] is not None:
            return self._arenas / f"{self.job_id}-{self.number}-{int(file['slot'])}.arena"
        if not FILE_NAME.match(file["name"]):
            raise AgentError(f"{self.source} offers a file {file['name']!r:.80}; it is not taken")
        return self.folder / str(file["name"])

    # -- pieces --------------------------------------------------------------------------------

    async def _fetch(self, file: dict[str, Any], path: Path) -> None:
        size = file["bytes"]
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            have = min(os.fstat(descriptor).st_size, size)
            have -= have % PIECE_BYTES if have < size else 0
            asked, way = have, self._way
            # An output may lack its middle, and be far longer than what is there of it.
            begin, end = file.get("left_out") or (size, size)
            while have < size:
                if begin <= have < end:
                    asked = have = end
                    continue
                until = begin if have < begin else size
                if asked == have:  # by one way at a time, so that pieces come in their order
                    way = self._way
                while way is self._way and asked < min(until, have + ASKED_AHEAD * PIECE_BYTES):
                    self._send(way, file=file["name"], offset=asked)
                    asked += PIECE_BYTES
                message, piece = await self._next(way)
                if "offset" not in message:  # no answer in time: it may have been lost
                    asked = have
                elif (message["file"], message["offset"]) == (file["name"], have):
                    expected = min(PIECE_BYTES, size - have)
                    if self._is_whole(message, piece, expected):
                        piece = piece[:expected]  # the end of an output may have grown since
                        await to_its_end(_write, descriptor, piece, have)
                        have += len(piece)
                        self._moved_s = time.monotonic()
                        self.received_bytes += len(piece)
                        self.direct_bytes += 0 if way is self._ask else len(piece)
                    else:
                        asked = have
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    def _is_whole(self, message: Message, piece: bytes, expected: int) -> bool:
        if len(piece) >= expected and zlib.crc32(piece) == message["checksum"]:
            return True
        self._damaged += 1
        if self._damaged > MAX_DAMAGED:
            raise AgentError(
                f"{self._damaged} pieces of job {self.job_id} came damaged from {self.source}"
            )
        return False

    def _put_in_place(self, files: list[dict[str, Any]]) -> None:
        """Check what has come, and move it to its final names."""
        for file in files:
            path = self._path_of(file)
            part = path.with_name(f"{path.name}.part")
            if file["slot"] is not None:
                verify(part)
            os.replace(part, path)

    # -- asking --------------------------------------------------------------------------------

    def _send(self, way: Ask, **what: Any) -> None:
        way(
            {
                "type": "fetch",
                "node": self.source,
                "job_id": self.job_id,
                "attempt": self.number,
                "epoch": self.epoch,
                **what,
            }
        )

    async def _next(self, way: Ask) -> tuple[Message, bytes]:
        """The next answer; an empty one if it is time to ask again. Raises AgentError."""
        try:
            # Not wait_for: where both come at once, that one forgets that it was cancelled.
            async with asyncio.timeout(ASK_AGAIN_S if way is self._ask else None):
                message, piece = await self._replies.get()
        except TimeoutError:
            answered = not self._replies.empty()
            message, piece = self._replies.get_nowait() if answered else ({"away": True}, b"")
        if "error" in message:
            raise AgentError(str(message["error"]))
        now_s = time.monotonic()
        there_s = self._presence.at(now_s)
        if not message.get("away"):
            self._heard_s = there_s
            if message.get("progress", self._progress) != self._progress:
                self._progress, self._moved_s = message["progress"], now_s
            if "checksum" not in message and now_s - self._moved_s > STALLED_S:
                raise AgentError(
                    f"nothing of the state of job {self.job_id} has come from node {self.source} "
                    f"for {STALLED_S:.0f} s, though it answers: the move is given up"
                )
        elif there_s - self._heard_s > PATIENCE_S:
            raise AgentError(
                f"node {self.source}, where the state of job {self.job_id} lies, has not "
                f"answered for {PATIENCE_S:.0f} s"
            )
        if message.get("away") or message.get("wait"):
            await asyncio.sleep(ASK_AGAIN_S / 10)
            return {}, b""
        return message, piece

    # -- what outlives the agent ---------------------------------------------------------------

    def _mark(self, more: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / MARK
        if more or not file.exists():
            known = {"source": self.source, "job_id": self.job_id, "attempt": self.number}
            known["launch"] = self.launch
            if self.launch is not None:
                write_mark(self.folder / LAUNCH, self.launch)
            draft = file.with_name(f"{MARK}.new")
            draft.write_text(json.dumps(known | more))
            os.replace(draft, file)

    def _marked(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.folder / MARK).read_text()))
        return {}


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
