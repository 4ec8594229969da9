"""Hands pieces of files out to agents of other machines that show a ticket of the controller.

Anybody on the network can connect: until a ticket is shown, a caller has a place among a few, for
a few seconds. A ticket is good once, for one attempt, and its connection ends with the ticket.
"""

import asyncio
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from rota.errors import AgentError
from rota.live.wire import PIECE_BYTES, Message
from rota.live.wire.pieces import MOST_MESSAGE_BYTES, framed, read_frame

log = logging.getLogger("rota.agent")

Key = tuple[str, int]
Answer = Callable[[Key, Message], Awaitable[tuple[Message, bytes]]]

MOST_STRANGERS = 32
CROWDED_PAUSE_S = 0.05  # before another caller is let in, while there are so many
TICKET_S = 5.0  # for the handshake and the ticket
GOOD_S = 60.0  # an unused ticket
SEND_S = 30.0  # for a piece
SHUTDOWN_S = 1.0  # of TLS, at the end
NO_FILES_PAUSE_S = 1.0
MOST_OFFSET = 1 << 62


class Ticket(NamedTuple):
    """A secret, and until when it can be shown (CLOCK_MONOTONIC)."""

    secret: str
    until_s: float


class PieceServer:
    """Listens on a ``port``: None takes any free one, 0 none, and then nothing is handed out.

    ``answer`` gives the reply to a question about an attempt, and a piece, and may raise
    AgentError; ``spawn`` starts a task.
    """

    def __init__(
        self, port: int | None, answer: Answer, spawn: Callable[[Any], asyncio.Task[Any]]
    ) -> None:
        self._port, self._answer, self._spawn = port, answer, spawn
        self._socket: socket.socket | None = None
        self._address = ""
        self._context: ssl.SSLContext | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tickets: dict[Key, Ticket] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}  # in order of arrival
        self._admitted: dict[Key, asyncio.Task[None]] = {}

    def listen(self, address: str) -> int | None:
        """Listen on an address of this machine, if not yet; the port, or None if that can't be."""
        if self._port == 0 or not address:
            return None
        if self._socket is None or address != self._address:
            self.close()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                self._socket = socket.create_server((address, self._port or 0), family=family)
            except OSError as error:
                what = f"{address} port {self._port or 'any'}: {error.strerror}"
                log.warning("the state of jobs goes through the controller alone: %s", what)
                return None
            self._socket.setblocking(False)
            self._address = address
        return int(self._socket.getsockname()[1])

    def begin(self, certificate: str | None, key: str | None) -> None:
        """Take callers with this certificate, as PEM; None: nobody. Tickets of before are void."""
        self._void_all()
        if certificate is None or key is None or self._socket is None:
            self.close()
            return
        self._context = _context(certificate, key)
        if self._accepting is None:
            self._accepting = self._spawn(self._accept(self._socket))

    def admit(self, key: Key, secret: str | None) -> None:
        """Hand an attempt's files out to who shows this secret; None: to nobody any more."""
        self._tickets.pop(key, None)
        if (task := self._admitted.pop(key, None)) is not None:
            task.cancel()
        if secret is not None:
            self._tickets[key] = Ticket(secret, time.monotonic() + GOOD_S)

    def close(self) -> None:
        """Listen no more, and hand nothing out."""
        self._void_all()
        for task in self._strangers:
            task.cancel()
        if self._socket is not None:
            if self._accepting is not None:
                self._accepting.cancel()
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        self._socket = self._accepting = self._context = None

    def _void_all(self) -> None:
        for key in self._tickets.keys() | self._admitted.keys():
            self.admit(key, None)

    # -- callers -------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                raw, _ = await loop.sock_accept(listening)
            except OSError as error:  # no file is left, perhaps
                log.warning("nobody can fetch files directly: %s", error.strerror)
                await asyncio.sleep(NO_FILES_PAUSE_S)
                continue
            task = self._spawn(self._serve(raw))
            self._strangers[task] = None
            task.add_done_callback(lambda ended: self._strangers.pop(ended, None))
            await asyncio.sleep(0)  # callers that wait already are let in without a pause
            if len(self._strangers) > MOST_STRANGERS:
                await asyncio.sleep(CROWDED_PAUSE_S)
                if len(self._strangers) > MOST_STRANGERS:
                    oldest = next(iter(self._strangers))
                    oldest.cancel()
                    await asyncio.wait([oldest])

    async def _serve(self, raw: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        key, transport = None, None  # a connection without a transport has closed itself
        try:
            async with asyncio.timeout(TICKET_S):
                reader, writer = await self._shake_hands(raw)
                transport = writer.transport
                shown, _ = await read_frame(reader, MOST_MESSAGE_BYTES)
            key = self._use(shown)
            if key is None:
                writer.writelines(framed({"type": "refused"}))
                return
            self._strangers.pop(task, None)
            self._admitted[key] = task
            writer.writelines(framed({"type": "admitted"}))
            while True:
                question, _ = await read_frame(reader, MOST_MESSAGE_BYTES)
                reply, piece = await self._answer(key, _checked(question))
                async with asyncio.timeout(SEND_S):
                    for part in framed({"type": "fetched", **reply}, piece):
                        writer.write(part)
                    await writer.drain()
        except (AgentError, EOFError, OSError, TimeoutError, ValueError) as error:
            log.debug("a caller's connection ended: %r", error)
        except asyncio.CancelledError:
            if transport is not None:
                transport.abort()
            raise
        finally:
            if key is not None and self._admitted.get(key) is task:
                del self._admitted[key]
            if transport is not None:
                transport.close()

    async def _shake_hands(
        self, raw: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(MOST_MESSAGE_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            raw,
            ssl=self._context,
            ssl_handshake_timeout=TICKET_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        transport.set_write_buffer_limits(PIECE_BYTES)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _use(self, shown: Message) -> Key | None:
        """The attempt whose ticket this is; it is used up. None if it is good for nothing."""
        secret, now_s, found = str(shown.get("ticket")), time.monotonic(), None
        secret = secret if secret.isascii() else ""  # others can't be compared
        for key, ticket in self._tickets.items():
            if secrets.compare_digest(ticket.secret, secret) and now_s < ticket.until_s:
                found = key
        if found is not None:
            del self._tickets[found]
        return found


def _checked(question: Message) -> Message:
    """What counts of a question: which piece of which file. Raises AgentError."""
    file, offset = question.get("file"), question.get("offset")
    if not isinstance(file, str) or type(offset) is not int or not 0 <= offset < MOST_OFFSET:
        raise AgentError("a question for no piece of a file")
    return {"file": file, "offset": offset}


def _context(certificate: str, key: str) -> ssl.SSLContext:
    """A server's context; the key is never on a disk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    descriptor = os.memfd_create("rota-certificate", os.MFD_CLOEXEC)
    with open(descriptor, "w") as file:
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context
