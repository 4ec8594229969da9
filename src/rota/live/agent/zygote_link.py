"""The agent's links to its zygotes: starts them, requests workers, restarts them when they die."""

import asyncio
import json
import os
import signal
import site
import socket
import sys
from contextlib import suppress
from typing import Any

from rota.errors import AgentError, shortage_of
from rota.live.agent.processes import while_it_works
from rota.live.wire.title import ROOM

IDLE_START_S = 120.0  # without use of the CPU, after which its start counts as failed
IDLE_FORK_S = 30.0
END_S = 1.0  # for one that has closed its socket


def packages() -> dict[str, int]:
    """The time of the last change of each folder of packages, in ns, by its path."""
    found = {}
    for path in dict.fromkeys(site.getsitepackages()):
        with suppress(OSError):
            found[path] = os.stat(path).st_mtime_ns
    return found


class ZygoteLink:
    """Two zygotes, each started at the first request for it.

    One has torch loaded, for programs that run in its interpreter. The other one is for programs
    that are executed: where torch is loaded, to fork a shim and a worker takes eight times the CPU
    time.
    """

    def __init__(self, log: str) -> None:
        self._bare, self._warm = Zygote(log), Zygote(log, "--preload")

    async def fork(self, request: dict[str, Any]) -> int:
        """Have a rank forked. Returns the pid of its shim. Raises AgentError."""
        if not request["fork"]:
            return await self._bare.fork(request)
        await self._warm.renew()
        return await self._warm.fork(request)

    def no_warm(self) -> str | None:
        """The reason why no program can be forked with torch loaded; None if there is none.

        It is tried again once packages have changed.
        """
        return self._warm.failed()

    async def start(self) -> None:
        """Start the one for programs now, so that it is there for the first job."""
        await self._bare.start()

    async def close(self) -> None:
        """End both. Workers continue."""
        await self._bare.close()
        await self._warm.close()


class Zygote:
    """One zygote process, with these ``options``; it writes to the file ``log``."""

    def __init__(self, log: str, *options: str) -> None:
        self._log, self._options = log, options
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._lock = asyncio.Lock()
        self._packages: dict[str, int] = {}  # that it was started with
        self._ended_at_start = False  # with these packages

    async def fork(self, request: dict[str, Any]) -> int:
        """Have a rank forked. Returns the pid of its shim. Raises AgentError."""
        async with self._lock:
            await self._ensure()
            assert self._reader and self._writer
            try:
                self._writer.write(json.dumps(request).encode() + b"\n")
                await self._writer.drain()
                line = await self._answer(IDLE_FORK_S)
                told = json.loads(line)
                if "error" not in told:
                    return int(told["pid"])
            except (OSError, TimeoutError, ValueError) as error:
                await self._discard()
                why = shortage_of(error) or repr(error)
                raise AgentError(f"the zygote did not fork a worker: {why}") from None
            raise AgentError(str(told["error"]))

    async def start(self) -> None:
        """Start it now, unless it is there. Raises AgentError."""
        async with self._lock:
            await self._ensure()

    async def renew(self) -> None:
        """End it if a package was installed, removed or renewed since it started."""
        async with self._lock:
            if self._process is not None and self._packages != packages():
                await self._discard()

    def failed(self) -> str | None:
        """What is wrong with it if it ended at its start, and would again; else None."""
        if self._ended_at_start and self._packages == packages():
            return f"torch can't be loaded: see {self._log}"
        return None

    async def close(self) -> None:
        """End it. Workers continue."""
        async with self._lock:
            await self._discard()

    async def _ensure(self) -> None:
        if self._process is not None and self._process.returncode is None:
            assert self._reader
            if not self._reader.at_eof():
                return
        await self._discard()
        try:
            await self._begin()
        except (OSError, RuntimeError) as error:
            await self._discard()
            raise AgentError(
                f"the zygote can't be started: {shortage_of(error) or error}"
            ) from None
        await self._until_ready()

    async def _begin(self) -> None:
        """Start its process. Raises OSError, RuntimeError without room for a thread."""
        ours, theirs = socket.socketpair()
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        self._packages, self._ended_at_start = packages(), False
        with open(self._log, "ab") as log, theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rota.train.zygote",
                str(theirs.fileno()),
                *self._options,
                ROOM,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",  # no module of the folder that this process is in
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    async def _until_ready(self) -> None:
        try:
            ready = await self._answer(IDLE_START_S)
        except (OSError, TimeoutError):
            ready = b""
        if ready != b"ready\n":
            process = self._process
            assert process
            if not ready:
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), END_S)
            await self._discard()
            self._ended_at_start = process.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM)
            raise AgentError(f"the zygote did not start; see {self._log}")

    async def _answer(self, idle_s: float) -> bytes:
        assert self._reader and self._process
        return await while_it_works(self._reader.readline(), self._process.pid, idle_s)

    async def _discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        self._process = self._reader = self._writer = None
