"""The child process that drives searches: started while there is one, and again when it dies."""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

from rota.errors import InputError, pip_install
from rota.folder import Folder
from rota.live.provider.local import last_words
from rota.model.ending import signal_name
from rota.request.sweepfile import BY_OPTUNA

MODULE = "rota.sweep"
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0  # one that has lived for so long did not die of its start
GRACE_S = 1.0  # from the end of its stdin to its end
MOST_LOG_BYTES = 4 << 20
KEPT_LOG_BYTES = 2 << 20

log = logging.getLogger("rota.server")


def require_optuna(algorithm: str) -> None:
    """Raise InputError if the search's ``algorithm`` needs Optuna, and that is not installed."""
    if algorithm in BY_OPTUNA and find_spec("optuna") is None:
        raise InputError(
            f"sweep.algorithm: {algorithm!r} needs Optuna, which the controller's Python does not "
            f"have; install it there with: {pip_install('sweep')}"
        )


class SweepDriver:
    """Keeps the driver alive while ``is_needed()``; all on one event loop.

    The driver is ``python -m module --home FOLDER``. Its stdin is a pipe whose other end this
    process alone has: it ends when that does, also after kill -9, and a line there says that there
    is news. What it prints goes to ``sweep.log`` in the folder, of which the last part is kept.
    """

    def __init__(self, is_needed: Callable[[], bool], folder: Folder, module: str = MODULE) -> None:
        self._is_needed = is_needed
        self._folder = folder
        self._module = module
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._input: asyncio.StreamWriter | None = None  # of the process, while there is one
        self.error: str | None = None  # its last unexpected end; None once it runs steadily

    def start(self) -> None:
        """Begin to watch over it."""
        self._look.set()
        self._task = asyncio.create_task(self._watch())

    def look(self) -> None:
        """Look now whether it is needed: a search has begun or ended."""
        self._look.set()

    def tell_news(self) -> None:
        """Have it look at the searches; one that has yet to read of earlier news will anyhow."""
        pipe = self._input
        if pipe is not None and not pipe.transport.get_write_buffer_size():
            pipe.write(b"\n")

    async def stop(self) -> None:
        """End it, within about a second, and watch no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            while not self._is_needed():
                self.error, pause_s = None, FIRST_PAUSE_S
                await self._next_look()
            began_s = loop.time()
            await self._run()
            if not self._is_needed():
                continue
            if loop.time() - began_s >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            log.warning("%s; it is started again in %.1f s", self.error, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _next_look(self) -> None:
        await self._look.wait()
        self._look.clear()

    async def _run(self) -> None:
        """Start it, and wait until it has ended or is needed no longer."""
        try:
            process = await self._spawn()
        except OSError as error:
            self.error = f"the driver of searches can't be started: {error}"
            return
        ended = asyncio.create_task(process.wait())
        self._input = process.stdin
        try:
            while not ended.done() and self._is_needed():
                looked = asyncio.create_task(self._next_look())
                done, _ = await asyncio.wait(
                    (ended, looked), timeout=STEADY_S, return_when=asyncio.FIRST_COMPLETED
                )
                looked.cancel()
                self._cut_log()
                if not done:
                    self.error = None
            if ended.done():
                how = self._how(process.returncode or 0)
                self.error = f"the driver of searches {how}; see {self._folder.sweep_log}"
        finally:
            ended.cancel()
            self._input = None
            await _end(process)

    async def _spawn(self) -> Process:
        # Which controller it serves is said by its folder, not by what was set where this began.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("ROTA_SERVER", "ROTA_TOKEN")
        }
        with open(self._folder.sweep_log, "ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", self._module, "--home", str(self._folder.path)),
                stdin=PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the controller
            )

    def _cut_log(self) -> None:
        """Leave the last part of a log that has grown long; the process goes on behind it."""
        with suppress(OSError), open(self._folder.sweep_log, "r+b") as file:
            if file.seek(0, os.SEEK_END) > MOST_LOG_BYTES:
                file.seek(-KEPT_LOG_BYTES, os.SEEK_END)
                file.readline()  # a part of a line
                kept = file.read()
                file.seek(0)
                file.truncate()
                file.write(kept)

    def _how(self, status: int) -> str:
        """Describes its end. If it was killed, its last output does not explain that."""
        if status < 0:
            return f"was killed by {signal_name(-status)}"
        last = last_words(self._folder.sweep_log)
        return f"ended with status {status}{f' ({last:.300})' if last else ''}"


async def _end(process: Process) -> None:
    """End its stdin, and kill it if it goes on nevertheless."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):  # wait_for may lose a cancellation meanwhile
                await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
