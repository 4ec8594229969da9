"""Where processes of a gang on several nodes find each other: addresses, interfaces, ports."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence

import psutil

from rota.errors import AgentError

CONNECT_S = 5.0  # for another node to answer


def interface_of(address: str) -> str:
    """The name of the interface that has an IP address. Raises AgentError if none has."""
    for name, told in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in told):
            return name
    raise AgentError(
        f"no interface of this machine has the address {address}, at which others are to find it"
    )


class Meeting:
    """An open port, to find out whether other nodes reach this one."""

    def __init__(self, address: str) -> None:
        """Listen at an address of this machine. Raises AgentError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._socket = socket.create_server((address, 0), family=family)
        except OSError as error:
            raise AgentError(f"{address} can't be listened on: {error.strerror}") from None
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Close the port."""
        self._socket.close()


async def reach(places: Sequence[tuple[str, str, int]]) -> str:
    """The error of the first of these nodes that can't be reached; "" if all can.

    Each is told as its name, its address, and a port that is open there.
    """
    errors = await asyncio.gather(*(_reach(*place) for place in places))
    return next(filter(None, errors), "")


async def _reach(node: str, address: str, port: int) -> str:
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return f"node {node} at {address} does not answer"
    except OSError as error:
        return f"node {node} at {address} can't be reached: {error.strerror or error}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
