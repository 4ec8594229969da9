"""Connections on which one agent fetches pieces of files from another, without the controller.

They are TLS: who fetches trusts the certificate that the controller has told, and no other. First
the ticket of the controller is shown, ``ticket`` with the secret ``ticket``; the answer is
``admitted``, or ``refused`` and the end. Questions are then ``fetch`` with ``file`` and ``offset``,
answers ``fetched``, in the order of the questions, as through the controller. Each frame is a
length, a message as a line, and the piece.
"""

import asyncio
import struct

from rota.errors import AgentError
from rota.live.wire import PIECE_BYTES, Message, encode, unpack

LENGTH = struct.Struct(">I")
MOST_MESSAGE_BYTES = 1 << 16  # without the piece
MOST_BYTES = MOST_MESSAGE_BYTES + PIECE_BYTES
STALL_S = 5.0  # without a byte of an answer
FRAME_S = 60.0  # for a whole one


def framed(message: Message, piece: bytes = b"") -> list[bytes]:
    """The parts of a frame. Raises AgentError for one that is larger than may be."""
    line = encode(message)
    if len(line) > MOST_MESSAGE_BYTES or len(piece) > PIECE_BYTES:
        raise AgentError(
            f"a message has {len(line):,} bytes and its piece {len(piece):,}; "
            f"{MOST_MESSAGE_BYTES:,} and {PIECE_BYTES:,} are the most"
        )
    return [LENGTH.pack(len(line) + len(piece)) + line, piece]


async def read_frame(reader: asyncio.StreamReader, most_bytes: int) -> tuple[Message, bytes]:
    """Read a message and the piece after it, for as long as that takes.

    Raises EOFError, OSError, and AgentError for what is no frame.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > most_bytes:
        raise AgentError(f"a frame of {length} bytes; {most_bytes} are the most")
    return unpack(await reader.readexactly(length))


async def read_answer(reader: asyncio.StreamReader) -> tuple[Message, bytes]:
    """Read the frame of an answer that was asked for.

    Raises TimeoutError if nothing comes for a while, and as :func:`read_frame`.
    """
    async with asyncio.timeout(FRAME_S):
        (length,) = LENGTH.unpack(await _take(reader, LENGTH.size))
        if length > MOST_BYTES:
            raise AgentError(f"a frame of {length} bytes; {MOST_BYTES} are the most")
        return unpack(await _take(reader, length))


async def _take(reader: asyncio.StreamReader, count: int) -> bytes:
    taken = bytearray()
    while len(taken) < count:
        async with asyncio.timeout(STALL_S):
            part = await reader.read(count - len(taken))
        if not part:
            raise EOFError("the connection has ended")
        taken += part
    return bytes(taken)
