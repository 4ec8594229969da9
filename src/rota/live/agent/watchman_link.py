"""Keeps the watchman of this node's jobs: see :mod:`rota.live.watchman`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import rota
from rota.live.wire import tags

AGAIN_S = 1.0  # until another one takes the place of one that has ended
END_S = 5.0  # for it to go with the agent
LOOK_AGAIN_S = 0.01
# In an interpreter that loads nothing else it needs a third of the memory.
PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from rota.live.watchman import main; main()"
)

log = logging.getLogger("rota.agent")


class WatchmanLink:
    """The watchman of a node with this folder and lease; ``trees`` have the jobs' control groups.

    It outlives an agent that is killed, until no process of a job is left, and gives way to the
    watchman of the next agent.
    """

    def __init__(self, folder: Path, node: str, lease: Path, trees: Sequence[Path]) -> None:
        self._folder, self._node, self._lease, self._trees = folder, node, lease, trees
        self._process: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        """Have a watchman, and another one whenever it ends."""
        while True:
            try:
                self._process = self._start()
                await self._end_of(self._process)
                log.warning("the watchman has ended: another one takes its place")
            except OSError as error:
                log.warning("no watchman can be started: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        """Let it go, now that no job is left; one that still sees a process of a job goes later."""
        if self._process is None:
            return
        assert self._process.stdin
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                while self._process.poll() is None:
                    await asyncio.sleep(LOOK_AGAIN_S)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start one. Raises OSError."""
        words = [str(Path(rota.__file__).parents[1]), str(self._folder), str(self._lease)]
        words += [str(tags.node_key(self._folder)), f"lease watchman of {self._node}"]
        words += map(str, self._trees)
        with open(self._folder / "watchman.log", "ab") as file:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, *words],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                cwd="/",
                start_new_session=True,
            )

    async def _end_of(self, process: subprocess.Popen[bytes]) -> None:
        ended, descriptor = asyncio.Event(), os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        process.wait()
        assert process.stdin
        process.stdin.close()
