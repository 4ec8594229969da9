"""Serves all hooks, in a thread beside the controller's loop, which never waits for it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rota.folder import Folder
from rota.model.events import Event
from rota.model.job import COMMAND
from rota.model.news import TOLD
from rota.model.state.state import ClusterState
from rota.server.notify import program
from rota.server.notify.line import Line, Send
from rota.server.notify.message import test_body
from rota.server.notify.outcome import Outcome
from rota.store.deliveries import Deliveries, Hook

if TYPE_CHECKING:
    from rota.server.notify.webhook import Sender

STOP_S = 5.0  # for tries that are under way to be called off

log = logging.getLogger("rota.server")


class Notifier:
    """A line for each hook. Its thread begins with the first hook, and ends with :meth:`stop`.

    Its methods are called on the controller's event loop, and none makes that wait for a hook.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        state: ClusterState,
        now_s: Callable[[], float],
        folder: Folder,
        send: Send | None = None,
    ) -> None:
        self._deliveries, self._state, self._now_s = deliveries, state, now_s
        self._send = send or _Sending(folder)
        self._lines: dict[tuple[str, float], tuple[Line, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._ends = False
        self._loop: asyncio.AbstractEventLoop | None = None  # of the thread
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve the hooks that there are."""
        if self._deliveries.hooks():
            self.look()

    def look(self) -> None:
        """Take note of hooks that were added or removed."""
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, name="rota-notify", daemon=True)
            self._deliveries.store.listeners.append(self._tell)
            self._thread.start()
        self._call(self._changed.set)

    async def test(self, hook: Hook, user: str) -> Outcome:
        """Send the hook something, once, and tell how that ended."""
        self.look()
        assert self._loop is not None
        trying = self._send(hook, test_body(hook.name, user, self._now_s()))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(trying, self._loop))

    async def stop(self) -> None:
        """Call off what is under way, within some seconds; the log has what is still to do."""
        self._ends = True
        if self._thread is not None:
            self._deliveries.store.listeners.remove(self._tell)
            self._call(self._changed.set)
            await asyncio.to_thread(self._thread.join, STOP_S)
            self._thread = None

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log URLs, which are secret
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            log.exception("hooks are told nothing until the controller is started again")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        try:
            while not self._ends:
                self._changed.clear()
                hooks = {(hook.name, hook.at_s): hook for hook in self._deliveries.hooks()}
                gone = [key for key in self._lines if key not in hooks]
                await _cancel([self._lines.pop(key)[1] for key in gone])
                for key, hook in hooks.items():
                    if key not in self._lines:
                        parts = (self._deliveries, self._state, self._now_s, self._send)
                        line = Line(hook, *parts)
                        self._lines[key] = line, asyncio.create_task(line.run())
                await self._changed.wait()
        finally:
            await _cancel(asyncio.all_tasks() - {asyncio.current_task()})

    def _wake(self) -> None:
        for line, _ in self._lines.values():
            line.news.set()

    # -- from the controller's thread ----------------------------------------------------------

    def _tell(self, events: Sequence[Event]) -> None:
        if any(isinstance(event, TOLD) for event in events):
            self._call(self._wake)

    def _call(self, what: Callable[[], object]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the thread has ended
            self._loop.call_soon_threadsafe(what)


class _Sending:
    """Sends to hooks of both kinds."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._sender: Sender | None = None

    async def __call__(self, hook: Hook, body: str) -> Outcome:
        if hook.kind == COMMAND:
            return await program.tell(self._folder, hook.target, body)
        if self._sender is None:
            from rota.server.notify import webhook  # here: httpx is for who has a webhook

            self._sender = webhook.Sender(webhook.TIME_LIMIT_S)
        return await self._sender.send(hook, body)


async def _cancel(tasks: Collection["asyncio.Task[None] | None"]) -> None:
    for task in tasks:
        if task is not None:
            task.cancel()
    await asyncio.gather(*filter(None, tasks), return_exceptions=True)
