"""The agent's link to the host of its node's island, which orders the operations of flow jobs.

The host is a process of its own: it is started for the first flow job, goes on without an agent,
and is found by the next one. It ends with the agent that ends all jobs.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.errors import AgentError, FlowError
from rota.folder import hold_outside
from rota.live.agent.processes import while_it_works
from rota.live.wire import tags
from rota.live.wire.island import (
    CONTROL,
    Called,
    Dismiss,
    Done,
    End,
    FromIsland,
    Lines,
    Look,
    Pause,
    Place,
    Ranks,
    Seat,
    Seen,
    line_of,
)
from rota.live.wire.peer import peer_of
from rota.live.wire.unixpath import short

IDLE_START_S = 120.0  # without use of the CPU, after which its start counts as failed
LOOK_AGAIN_S = 0.02
READ_BYTES = 1 << 16
ANSWERS_S = 60.0  # within which the host answers what waits for no operation
END_S = 10.0  # for the host to end with all workers
LAST_BYTES = 4096  # of the log of a host that did not start


class IslandLink:
    """See the module. ``called`` is given the key of a seat whose program has called something.

    With a ``lease``, a file, the host's workers are stopped while that is over.
    """

    def __init__(
        self,
        folder: Path,
        log: Path,
        devices: int,
        memory_bytes: int,
        kind: str,
        called: Callable[[str], None],
        lease: Path | None = None,
    ) -> None:
        self.folder = folder
        self._log, self._devices, self._memory_bytes = log, devices, memory_bytes
        self._kind, self._lease = kind, lease
        self._called = called
        self._seated: set[str] = set()  # the keys of its seats
        self._process: subprocess.Popen[bytes] | None = None  # unless another agent started it
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        self._number = 0
        self._lock = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """True while there is a host."""
        return self._writer is not None

    async def seat(self, key: str, **fields: Any) -> None:
        """Take a seat for a job; starts the host if there is none. Raises AgentError."""
        if self.connected and not (self.folder / CONTROL).exists():
            await self._leave_host_without_folder()
        await self._ensure()
        await self._ask(lambda n: Seat(number=n, key=key, **fields), ANSWERS_S)
        self._seated.add(key)

    async def ranks(self, key: str, **fields: Any) -> Done:
        """Take a seat for ranks of a training: their slots and rings, and the host's process.

        Starts the host if there is none. Raises AgentError.
        """
        await self._ensure()
        return await self._ask(lambda n: Ranks(number=n, key=key, **fields), ANSWERS_S)

    def has(self, key: str) -> bool:
        """True if there is such a seat: a host that was killed has lost all."""
        return key in self._seated

    async def pause(self, key: str) -> None:
        """Take a seat's workers off their devices. Raises AgentError."""
        await self._ask(lambda number: Pause(number, key), None)

    async def place(self, key: str, devices: list[int], cores: list[list[int]]) -> None:
        """Put a seat's workers on these devices. Raises AgentError."""
        await self._ask(lambda number: Place(number, key, devices, cores), None)

    async def dismiss(self, key: str) -> None:
        """End a seat's workers; where there is no host, there are none."""
        self._seated.discard(key)
        with contextlib.suppress(AgentError):
            await self._ask(lambda number: Dismiss(number, key), ANSWERS_S)

    async def look(self) -> list[Seen]:
        """All seats by now; none without a host."""
        try:
            return (await self._ask(Look, ANSWERS_S)).seen
        except AgentError:
            return []

    async def adopt(self) -> bool:
        """Find the host of an earlier agent, with its seats; False if there is none."""
        async with self._lock:
            return self.connected or await self._connect()

    async def dismiss_others(self, keys: set[str]) -> None:
        """End the workers of all seats but these."""
        for key in self._seated - keys:
            await self.dismiss(key)

    async def close(self, *, ends: bool) -> None:
        """Let go of the host; ``ends``: end it with all its workers, and leave nothing of it."""
        if ends:
            await self._end()
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        if ends:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- inside ----------------------------------------------------------------------------------

    async def _leave_host_without_folder(self) -> None:
        """End a host whose folder somebody has removed: no further program finds it there.

        Raises AgentError as long as it has seats.
        """
        if self._seated:
            raise AgentError(
                f"somebody has removed the folder of this node's flow jobs, {self.folder}: those "
                "that run go on, and others start when these have ended"
            )
        await self._end()

    async def _end(self) -> None:
        """End the host; returns once it is gone."""
        if self.connected or await self._connect():
            with contextlib.suppress(AgentError):
                await self._ask(End, END_S)
            if self._reading is not None:
                _, hangs = await asyncio.wait([self._reading], timeout=END_S)
                if hangs:
                    self._kill()

    def _kill(self) -> None:
        """Kill a host that does not answer; its workers end with it."""
        if self._writer is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer_of(self._writer.get_extra_info("socket")).pid, signal.SIGKILL)

    async def _ask(self, message: Callable[[int], Any], within_s: float | None) -> Done:
        """The answer to a message. A host that gives none in time is killed. Raises AgentError."""
        if self._writer is None:
            raise AgentError("the island's host is gone")
        number = self._number = self._number + 1
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._writer.write(line_of(message(number)))
            async with asyncio.timeout(within_s):
                await self._writer.drain()
                done: Done = await future
        except TimeoutError:
            self._kill()
            raise AgentError(f"the island's host gave no answer for {within_s:g} s") from None
        except OSError:
            raise AgentError("the island's host is gone") from None
        finally:
            self._waiting.pop(number, None)
        if done.error is not None:
            raise AgentError(done.error)
        return done

    async def _ensure(self) -> None:
        """Connect to the host, and start one if there is none. Raises AgentError."""
        async with self._lock:
            if self.connected or await self._connect():
                return
            host = self._process = self._start()
            try:
                await while_it_works(self._until_connected(host), host.pid, IDLE_START_S)
            except TimeoutError:
                host.kill()
                raise AgentError(self._no_host()) from None

    async def _until_connected(self, host: subprocess.Popen[bytes]) -> None:
        while not await self._connect():
            if host.poll() is not None:
                raise AgentError(self._no_host())
            await asyncio.sleep(LOOK_AGAIN_S)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start a host in an empty folder. Raises AgentError."""
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        python = [sys.executable, "-m"]
        fence = []
        if self._lease is not None:
            tag = tags.tag_on_node(tags.node_key(self._lease.parent), 0)
            fence = [*python, "rota.train.fence", str(self._lease), str(tag)]
        words = [str(self.folder), str(self._devices), str(self._memory_bytes), self._kind]
        try:
            with contextlib.suppress(FileNotFoundError):  # else by a host that was killed
                shutil.rmtree(self.folder)
            self.folder.mkdir(mode=0o700, parents=True)
            with open(self._log, "ab") as log, contextlib.ExitStack() as stack:
                words.append("--agent")
                held = hold_outside(self.folder.parent)  # for the host, until it ends
                if held is not None:
                    words.append(str(stack.enter_context(held).fileno()))
                return subprocess.Popen(
                    [*fence, *python, "rota.flow.host", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=() if held is None else (held.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            raise AgentError(
                f"the folder of this node's flow jobs, {self.folder}, can't be made: "
                f"{error.strerror}; see what is there, and make room"
            ) from None

    def _no_host(self) -> str:
        """Why there is no host, by what it has printed last."""
        with open(self._log, "rb") as log:
            log.seek(-min(LAST_BYTES, os.path.getsize(self._log)), os.SEEK_END)
            lines = log.read().decode(errors="replace").split("\n")
        why = next((each for each in reversed(lines) if each.strip()), "it has printed nothing")
        return f"the host of this node's flow jobs did not start: {why}; see {self._log}"

    async def _connect(self) -> bool:
        """Find a host, with its seats; False if there is none."""
        try:
            with short(self.folder / CONTROL) as path:
                reader, self._writer = await asyncio.open_unix_connection(path)
        except OSError:
            return False
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        self._seated = {seen.key for seen in await self.look()}
        return True

    async def _read(self, reader: asyncio.StreamReader) -> None:
        lines = Lines(FromIsland)
        try:
            while data := await reader.read(READ_BYTES):
                for message in lines.take(data):
                    if isinstance(message, Called):
                        self._called(message.key)
                    elif (future := self._waiting.get(message.number)) and not future.done():
                        future.set_result(message)
        except (OSError, FlowError):
            pass
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._seated.clear()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(AgentError("the island's host is gone"))
