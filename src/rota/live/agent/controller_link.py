"""The agent's connection to the controller: opened again whenever it is lost."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

import psutil
import websockets
from websockets.asyncio.client import ClientConnection, connect

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.wire import Message

RECONNECT_S = 0.2
REJECTED_PAUSE_S = 1.0
LONELY_S = 10.0  # without a controller process and without jobs, an agent ends after so long

log = logging.getLogger("rota.agent")


class ControllerLink:
    """The connection to the controller of one folder.

    ``greeting`` gives what a new connection begins with, ``heard`` takes each frame, and may raise
    AgentError; ``busy`` says whether there are jobs. ``ending`` is set when there is neither a job
    nor, for some time, a controller: its process, which has ``controller_pid``, or if it is not on
    this machine (None) its connection.
    """

    def __init__(
        self,
        folder: Folder,
        controller_pid: int | None,
        greeting: Callable[[], list[Message]],
        heard: Callable[[str | bytes], object],
        busy: Callable[[], bool],
        ending: asyncio.Event,
    ) -> None:
        self.connected = False
        self._folder = folder
        self._controller_pid = controller_pid
        self._greeting = greeting
        self._heard = heard
        self._busy = busy
        self._ending = ending
        self._outbox: asyncio.Queue[Message | bytes] = asyncio.Queue()
        self._lonely_since: float | None = None

    def tell(self, message: Message | bytes) -> None:
        """Send to the controller; without one, the next greeting will say it."""
        if self.connected:
            self._outbox.put_nowait(message)

    async def run(self) -> None:
        """Keep the connection open until the agent ends."""
        complaint = ""
        while not self._ending.is_set():
            try:
                server = json.loads(self._folder.server.read_text())
                token = self._folder.agent_token.read_text().strip()
                if self._controller_pid is not None:  # that of before, or the one after it
                    self._controller_pid = server["pid"]
                async with connect(
                    server["url"].replace("http", "ws", 1) + "/agent/v1",
                    additional_headers={"Authorization": f"Bearer {token}"},
                    max_size=None,
                    compression=None,  # weights hardly shrink, and that at a high price
                    proxy=None,
                ) as connection:
                    await self._converse(connection)
                    complaint = ""
            except AgentError as error:
                if str(error) != complaint:  # the error may stay the same for long
                    complaint = str(error)
                    log.error("%s", complaint)
                await asyncio.sleep(REJECTED_PAUSE_S)
            except (OSError, ValueError, KeyError, websockets.WebSocketException) as error:
                log.debug("no controller: %r", error)
            self.connected = False
            if self._should_give_up():
                log.info("no controller and no job: ending")
                self._ending.set()
            await asyncio.sleep(RECONNECT_S)

    def _should_give_up(self) -> bool:
        now = asyncio.get_running_loop().time()
        pid = self._controller_pid
        if self._busy() or (pid is not None and psutil.pid_exists(pid)):
            self._lonely_since = None
        elif self._lonely_since is None:
            self._lonely_since = now
        return self._lonely_since is not None and now - self._lonely_since > LONELY_S

    async def _converse(self, connection: ClientConnection) -> None:
        while not self._outbox.empty():
            self._outbox.get_nowait()  # the greeting says it all
        self._lonely_since = None
        self.connected = True  # what happens from now on follows the greeting
        for message in self._greeting():
            self.tell(message)
        sender = asyncio.create_task(self._send_outbox(connection))
        try:
            async for frame in connection:
                self._heard(frame)
        finally:
            sender.cancel()

    async def _send_outbox(self, connection: ClientConnection) -> None:
        with contextlib.suppress(websockets.WebSocketException):
            while True:
                message = await self._outbox.get()
                await connection.send(
                    message if isinstance(message, bytes) else json.dumps(message)
                )
