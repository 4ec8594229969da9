"""Fetches pieces for an arrival straight from the agent that hands them out, by a ticket.

Until the connection is open, and once it has ended, they come through the controller: nothing waits
for a connection that can't be made.
"""

import asyncio
import logging
import ssl

from rota.errors import AgentError
from rota.live.agent.migrate_in import Arrival
from rota.live.wire import PIECE_BYTES, Message
from rota.live.wire.messages import MAX_SENTENCE
from rota.live.wire.pieces import framed, read_answer

log = logging.getLogger("rota.agent")

CONNECT_S = 3.0
PAUSES_S = (0.0, 0.3, 1.0)  # before each try: the other agent may hear of its ticket later
SHUTDOWN_S = 1.0  # of TLS, at the end


async def fetch_directly(arrival: Arrival, ticket: Message) -> None:
    """Have an arrival's pieces come directly for as long as that can be."""
    link = None
    for pause_s in PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            link = await DirectLink.open(ticket)
            break
        except (AgentError, EOFError, OSError, TimeoutError) as error:
            log.debug("job %s: no connection to node %s: %r", arrival.job_id, arrival.source, error)
    about = arrival.job_id, arrival.source
    if link is None:
        log.info("job %s: node %s can't be reached: pieces come through the controller", *about)
        return
    try:
        arrival.go_by(link.ask)
        await link.run(arrival)
    except (AgentError, EOFError, OSError, TimeoutError) as error:
        text = "job %s: the connection to node %s broke: the rest comes through the controller (%r)"
        log.info(text, *about, error)
    finally:
        arrival.go_by(None)
        link.close()


class DirectLink:
    """An open connection, on which a ticket was accepted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._asked: asyncio.Queue[Message] = asyncio.Queue()

    @classmethod
    async def open(cls, ticket: Message) -> "DirectLink":
        """Connect and show the ticket. Raises AgentError, EOFError, OSError, TimeoutError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the one certificate that it trusts is that agent's
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=ticket["certificate"])
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                ticket["host"],
                ticket["port"],
                limit=PIECE_BYTES,
                ssl=context,
                ssl_handshake_timeout=CONNECT_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
            link = cls(reader, writer)
            try:
                writer.writelines(framed({"type": "ticket", "ticket": ticket["ticket"]}))
                answer, _ = await read_answer(reader)
                if answer["type"] != "admitted":
                    raise AgentError("the ticket is refused")
            except BaseException:
                link.close()
                raise
        return link

    def ask(self, question: Message) -> None:
        """Ask for a piece."""
        told = {key: question[key] for key in ("type", "file", "offset")}
        self._writer.writelines(framed(told))
        self._asked.put_nowait(question)

    async def run(self, arrival: Arrival) -> None:
        """Pass answers on until the connection ends. Raises AgentError, EOFError, OSError,
        TimeoutError.
        """
        while True:
            await self._asked.get()
            arrival.heard(*_checked(*await read_answer(self._reader)))

    def close(self) -> None:
        """End the connection."""
        self._writer.transport.abort()


def _checked(message: Message, piece: bytes) -> tuple[Message, bytes]:
    """What counts of an answer. Raises AgentError for one that is none."""
    if isinstance(error := message.get("error"), str):
        return {"error": error[:MAX_SENTENCE]}, b""
    told = {key: message.get(key) for key in ("file", "offset", "checksum")}
    if not isinstance(told["file"], str) or any(
        type(told[key]) is not int for key in ("offset", "checksum")
    ):
        raise AgentError(f"no answer: {message!r:.80}")
    return told, piece
