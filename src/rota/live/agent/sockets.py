"""The sockets on which the workers of a node find its agent.

The first one is in the node's folder, which is there as long as the agent is: a folder for sockets
elsewhere may be removed when its user logs out, or cleaned of old files. The second one is in such
a folder all the same, if there can be one: workers that an older agent has started look for their
agent there, and so do all workers where the state folder's file system has no sockets.
"""

import asyncio
import logging
import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

from rota.errors import InputError
from rota.folder import Folder
from rota.live.wire import MAX_LINE_BYTES
from rota.live.wire.unixpath import is_short, short

KEPT_FILES = 32  # descriptors that connections leave to the agent, or half of what there may be

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

log = logging.getLogger("rota.agent")


class Sockets:
    """Where an agent listens for its workers; ``serve`` is called with each connection."""

    def __init__(self, folder: Folder, node: str, serve: Serve) -> None:
        self._folder, self._node, self._serve = folder, node, serve
        self._is_full = False
        self._own = folder.socket(node)
        self._open: dict[Path, tuple[asyncio.Server, os.stat_result]] = {}
        self._told: dict[str, str] = {}  # by place, the reason why it can't listen there

    @property
    def path(self) -> str:
        """Where workers are to connect: a path that any program can, if there is one."""
        return str(next(filter(is_short, self._open), next(iter(self._open), self._own)))

    async def open(self) -> None:
        """Listen, at one place at least. Raises InputError if there is none."""
        await self.look()
        if not self._open:
            why = "; ".join(f"{place}: {each}" for place, each in self._told.items())
            raise InputError(
                f"there is no place for the socket of this node's agent: {why}; set "
                "XDG_RUNTIME_DIR to a folder of yours, or use a state folder on another disk"
            )

    async def look(self) -> None:
        """Listen anew where somebody has removed the socket, or its folder."""
        await self._listen_at(self._own)
        try:
            outside = self._folder.outside_socket(self._node)
        except InputError as error:
            self._tell("outside of the state folder", str(error))
        else:
            await self._listen_at(outside)

    def close(self) -> None:
        """Listen no more, and remove the sockets that are this agent's."""
        for path, (server, made) in self._open.items():
            server.close()
            if _is_there(path, made):
                path.unlink(missing_ok=True)
        self._open.clear()

    async def _listen_at(self, path: Path) -> None:
        known = self._open.get(path)
        if known is not None and _is_there(path, known[1]):
            return
        try:
            if known is not None:
                log.warning("%s was removed: it is made anew", path)
                known[0].close()
                del self._open[path]
            path.unlink(missing_ok=True)
            with short(path) as address:
                server = await asyncio.start_unix_server(self._meet, address, limit=MAX_LINE_BYTES)
            path.chmod(0o600)
            self._open[path] = server, path.stat()
            self._told.pop(str(path), None)
        except OSError as error:
            self._tell(str(path), error.strerror or str(error))

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, unless the agent would need its descriptor: jobs may open many."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        kept = min(KEPT_FILES, most // 2)
        number = writer.get_extra_info("socket").fileno()
        if most == resource.RLIM_INFINITY or number < most - kept:
            self._is_full = False
            await self._serve(reader, writer)
            return
        if not self._is_full:
            self._is_full = True
            text = "workers' connections are closed: the agent may open %d files; raise ulimit -n"
            log.error(text, most)
        writer.close()

    def _tell(self, place: str, why: str) -> None:
        if self._told.get(place) != why:
            self._told[place] = why
            log.warning("no socket at %s: %s", place, why)


def _is_there(path: Path, made: os.stat_result) -> bool:
    """True if the socket at a path is still the one that was made."""
    try:
        return os.path.samestat(path.stat(), made)
    except OSError:
        return False
