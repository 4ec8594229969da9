"""The agent's connection to the controller: opened again whenever it is lost."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

import websockets
from websockets.asyncio.client import ClientConnection, connect

from rota.errors import AgentError
from rota.live.agent.endpoint import Address, Endpoint
from rota.live.wire import Message
from rota.live.wire.frames import MOST_FRAME_BYTES, Parts, frames_of

RECONNECT_S = 0.2
MOST_RECONNECT_S = 5.0  # between two tries to reach a controller of another machine
REJECTED_PAUSE_S = 1.0
LONELY_S = 10.0  # without a controller process and without jobs, an agent ends after so long
LOCAL_PING_S = 20.0
PING_S, PONG_S = 5.0, 10.0  # of a connection to another machine, which a cut cable does not close
UNKNOWN_TOKEN = 401

log = logging.getLogger("rota.agent")


class ControllerLink:
    """The connection to one controller, which is at the ``endpoint``.

    ``greeting`` gives what a new connection begins with, ``heard`` takes each frame, and may raise
    AgentError; ``busy`` says whether there are jobs. ``ending`` is set when there is neither a job
    nor, for some time, a controller. ``removed`` is called, once, when the controller of an
    endpoint that stays knows the agent's token no longer: then the link ends.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        greeting: Callable[[], list[Message]],
        heard: Callable[[str | bytes], object],
        busy: Callable[[], bool],
        ending: asyncio.Event,
        removed: Callable[[], object] = lambda: None,
    ) -> None:
        self.connected = False
        self.own_address = ""  # of this machine, towards a controller of another one
        self._endpoint = endpoint
        self._greeting = greeting
        self._heard = heard
        self._busy = busy
        self._ending = ending
        self._removed = removed
        self._outbox: asyncio.Queue[Message | bytes] = asyncio.Queue()
        self._lonely_since: float | None = None
        self._pause_s = RECONNECT_S

    def tell(self, message: Message | bytes) -> None:
        """Send to the controller; without one, the next greeting will say it."""
        if self.connected:
            self._outbox.put_nowait(message)

    async def run(self) -> None:
        """Keep the connection open until the agent ends."""
        complaint = ""
        while not self._ending.is_set():
            try:
                async with self._connect(self._endpoint.address()) as connection:
                    await self._converse(connection)
                    complaint = ""
            except AgentError as error:
                if str(error) != complaint:  # the error may stay the same for long
                    complaint = str(error)
                    log.error("%s", complaint)
                await asyncio.sleep(REJECTED_PAUSE_S)
            except (OSError, ValueError, KeyError, websockets.WebSocketException) as error:
                if self.connected:
                    log.warning("the connection to the controller has ended: %s", error)
                else:
                    log.debug("no controller: %r", error)
                if self._endpoint.stays and _is_of_an_unknown_token(error):
                    self._removed()
                    return
            self.connected = False
            if self._should_give_up():
                log.info("no controller and no job: ending")
                self._ending.set()
            await asyncio.sleep(self._next_pause_s())

    def _connect(self, address: Address) -> connect:
        afar = address.context is not None
        return connect(
            address.url,
            additional_headers={"Authorization": f"Bearer {address.token}"},
            ssl=address.context,
            max_size=MOST_FRAME_BYTES,
            compression=None,  # weights hardly shrink, and that at a high price
            proxy=None,
            ping_interval=PING_S if afar else LOCAL_PING_S,
            ping_timeout=PONG_S if afar else LOCAL_PING_S,
        )

    def _next_pause_s(self) -> float:
        """The pause before the next try: longer each time, where many agents may call at once."""
        if not self._endpoint.stays:
            return RECONNECT_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MOST_RECONNECT_S)
        return pause_s * random.uniform(0.5, 1.0)

    def _should_give_up(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._busy() or self._endpoint.stays or not self._endpoint.is_gone():
            self._lonely_since = None
        elif self._lonely_since is None:
            self._lonely_since = now
        return self._lonely_since is not None and now - self._lonely_since > LONELY_S

    async def _converse(self, connection: ClientConnection) -> None:
        while not self._outbox.empty():
            self._outbox.get_nowait()  # the greeting says it all
        self._lonely_since, self._pause_s = None, RECONNECT_S
        if self._endpoint.stays:
            self.own_address = str(connection.local_address[0])
        self.connected = True  # what happens from now on follows the greeting
        for message in self._greeting():
            self.tell(message)
        sender, parts = asyncio.create_task(self._send_outbox(connection)), Parts()
        try:
            async for frame in connection:
                if (whole := parts.whole(frame)) is not None:
                    self._heard(whole)
        finally:
            sender.cancel()

    async def _send_outbox(self, connection: ClientConnection) -> None:
        with contextlib.suppress(websockets.WebSocketException):
            while True:
                message = await self._outbox.get()
                try:
                    frames = frames_of(message)
                except AgentError as error:
                    log.error("not sent: %s", error)
                    continue
                for frame in frames:
                    await connection.send(frame)


def _is_of_an_unknown_token(error: Exception) -> bool:
    """True if a controller that is the right one has refused the token."""
    if not isinstance(error, websockets.InvalidStatus):
        return False
    return error.response.status_code == UNKNOWN_TOKEN
