"""Frames between controller and agent: one bound for all, the same on both sides.

A message that a frame has no room for is cut into parts, binary frames of the type ``part`` whose
bytes are the message's; ``more`` says that another part follows. A message has a bound as well, so
that no peer fills the other's memory. A sender keeps to both: see :func:`frames_of`.
"""

import json

from rota.errors import AgentError
from rota.live.wire import PIECE_BYTES, Message, encode, pack, unpack

MOST_FRAME_BYTES = 4 << 20
MOST_WHOLE_BYTES = 64 << 20  # of a message in parts
_PART = encode({"type": "part"})[:-2]  # how a part begins


def frames_of(message: Message | bytes) -> list[str | bytes]:
    """The frames that carry a message. Raises AgentError for one that is larger than may be."""
    if isinstance(message, bytes):  # with a piece of a file, which is small enough
        return [message]
    text = json.dumps(message)
    if len(text) <= MOST_FRAME_BYTES:
        return [text]
    if len(text) > MOST_WHOLE_BYTES:
        raise AgentError(
            f"a message of the type {message['type']} has {len(text):,} bytes; "
            f"{MOST_WHOLE_BYTES:,} are the most"
        )
    data = text.encode()
    starts = range(0, len(data), PIECE_BYTES)
    return [
        pack({"type": "part", "more": at != starts[-1]}, data[at : at + PIECE_BYTES])
        for at in starts
    ]


class Parts:
    """The parts of a message that have come on a connection, until the message is whole."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def whole(self, frame: str | bytes) -> str | bytes | None:
        """A frame that is no part as it is, and a message with its last part; else None.

        Raises AgentError if it is larger than a message may be, or no text.
        """
        if isinstance(frame, str) or not frame.startswith(_PART):
            return frame
        message, piece = unpack(frame)
        self._pieces.append(piece)
        self._num_bytes += len(piece)
        if self._num_bytes > MOST_WHOLE_BYTES:
            raise AgentError(f"a message in parts has more than {MOST_WHOLE_BYTES:,} bytes")
        if message.get("more"):
            return None
        data, self._pieces, self._num_bytes = b"".join(self._pieces), [], 0
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise AgentError(f"not a message: {data[:80]!r}") from None
