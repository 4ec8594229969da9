"""This machine as a one-node cluster: the agent is a child process, restarted when it dies."""

import asyncio
import logging
import os
import socket
import sys

from rota.folder import Folder, is_locked

WATCH_EVERY_S = 0.5
END_TIMEOUT_S = 60.0  # for all jobs to be asked, killed, and gone
RESTART_PAUSE_S = 0.2  # so that an agent that can't start does not take a core

log = logging.getLogger("rota.provider")


class LocalProvider:
    """Keeps one agent alive for this machine, and leaves alone one that already is."""

    def __init__(self, folder: Folder, gpus: int | None) -> None:
        self.node = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())
        self._folder = folder
        self._gpus = gpus
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Begin to watch over the agent."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching. The agent ends by itself when it has nothing left to do."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait_for_end(self, *, started: bool) -> None:
        """Wait until the agent is gone; one that never got as far as to connect is killed."""
        await self.stop()
        if self._process is not None:
            if not started:
                self._process.kill()
            try:
                await asyncio.wait_for(self._process.wait(), END_TIMEOUT_S)
            except TimeoutError:  # a process that even SIGKILL does not end, for example
                log.error("the agent did not end in %s s and is killed", END_TIMEOUT_S)
                self._process.kill()
            return
        deadline = asyncio.get_running_loop().time() + END_TIMEOUT_S
        while started and self._is_alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)

    async def _watch(self) -> None:
        while True:
            if not self._is_alive():
                await self._spawn()
            if self._process is not None:
                await self._process.wait()
                log.warning("the agent ended with status %s", self._process.returncode)
                self._process = None
                await asyncio.sleep(RESTART_PAUSE_S)
            else:  # an agent that a former controller started
                await asyncio.sleep(WATCH_EVERY_S)

    def _is_alive(self) -> bool:
        path = self._folder.node(self.node) / "agent.lock"
        if not path.exists():
            return False
        return is_locked(path)

    async def _spawn(self) -> None:
        folder = self._folder.node(self.node)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [sys.executable, "-m", "rota.live.agent"]
        command += ["--home", str(self._folder.path), "--node", self.node]
        command += ["--controller-pid", str(os.getpid())]
        if self._gpus is not None:
            command += ["--gpus", str(self._gpus)]
        with open(folder / "agent.log", "ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for the controller
            )
