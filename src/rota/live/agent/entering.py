"""Tells why jobs, which run as the agent's user, can't enter a folder."""

import asyncio
import contextlib
import logging
import os
import pwd
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

ANSWER_S = 0.5  # for file systems to answer, less than who asks waits
DEAD_S = 10.0  # after which a file system counts as one that never answers
MOST_LOOKS = 16  # threads that may wait for file systems at once

log = logging.getLogger("rota.agent")


class FolderLooks:
    """Looks at folders, each in a thread of its own, so that a dead file system holds up no other.

    A folder is looked at by one thread at a time, however often it is asked for. Threads that wait
    for ever do not keep the agent from ending.
    """

    def __init__(self) -> None:
        self._looking: dict[str, asyncio.Future[str]] = {}
        self._dead: set[str] = set()  # of these, those that have taken DEAD_S

    async def obstacles(self, paths: Iterable[str]) -> dict[str, str]:
        """The obstacle to each path that has one: see :func:`obstacle_to`.

        Paths that take longer than a moment are left out, until they count as dead.
        """
        asked = {path: look for path in paths if (look := self._look(path)) is not None}
        if asked:
            await asyncio.wait(asked.values(), timeout=ANSWER_S)
        found = {}
        for path, look in asked.items():
            if look.done() and look.result():
                found[path] = look.result()
            elif path in self._dead:
                found[path] = f"the file system of {path} does not answer"
        return found

    def _look(self, path: str) -> asyncio.Future[str] | None:
        """The look at a path that goes on, or a new one; None if there are too many."""
        if (known := self._looking.get(path)) is not None:
            return known
        if len(self._looking) >= MOST_LOOKS:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()

        def tell(why: str) -> None:
            self._looking.pop(path, None)
            self._dead.discard(path)
            future.set_result(why)

        def look() -> None:
            why = obstacle_to(path)
            with contextlib.suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(tell, why)

        try:
            threading.Thread(target=look, name=f"look at {path}", daemon=True).start()
        except RuntimeError:  # no thread can be started
            return None
        self._looking[path] = future
        loop.call_later(DEAD_S, self._complain, path, future)
        return future

    def _complain(self, path: str, look: asyncio.Future[str]) -> None:
        if not look.done():
            self._dead.add(path)
            log.warning("%s can't be looked at: its file system does not answer", path)


def user_name() -> str:
    """The name of the user that agent and jobs run as; its number if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def obstacle_to(path: str) -> str:
    """The first folder of a path that can't be entered, and why; "" if all can be entered."""
    for place in (*reversed(Path(path).parents), Path(path)):
        try:
            mode = place.stat().st_mode
        except FileNotFoundError:
            return f"there is no {place}"
        except OSError as error:
            return f"{place}: {error.strerror}"
        if not stat.S_ISDIR(mode):
            return f"{place} is no folder"
        if not os.access(place, os.X_OK):
            return f"user {user_name()} can't enter {place} (mode {stat.S_IMODE(mode):04o})"
    return ""
