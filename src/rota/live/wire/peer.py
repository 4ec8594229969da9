"""Who is at the other end of a Unix socket, by the kernel's word."""

import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("iII")


class Peer(NamedTuple):
    """A process, 0 if it is not visible from here, and the ids of its user and group."""

    pid: int
    user: int
    group: int


def peer_of(connection: socket.socket) -> Peer:
    """Who connected, or listened, as the connection was made. Raises OSError."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(told))
