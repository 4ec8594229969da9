"""Which addresses a webhook may lead to."""

import asyncio
import socket
import threading
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")

Address = IPv4Address | IPv6Address


def refusal(text: str, *, allows_private: bool, encrypted: bool) -> str | None:
    """The reason for which an address must not be connected to; None if it may be."""
    address = _innermost(ip_address(text.partition("%")[0]))
    if address.is_multicast or address.is_unspecified:
        return f"{address} is no address of one machine"
    if address.is_global:
        return None if encrypted else f"{address} is a public address, and http is not encrypted"
    if allows_private:
        return None
    return f"{address} is loopback, private or link-local, which --allow-private allows"


def _innermost(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, if it does to one; else itself."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


async def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a name, best first. Raises OSError.

    The system's resolver can't be called off: it is asked in a thread that nobody waits for once
    the caller has gone.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def ask() -> None:
        found: list[str] | OSError
        try:
            told = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(address[0]) for *_, address in told))
        except (OSError, UnicodeError) as error:
            found = error if isinstance(error, OSError) else OSError(str(error))
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, found)

    def settle(found: list[str] | OSError) -> None:
        if answer.cancelled():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    threading.Thread(target=ask, name="rota-resolve", daemon=True).start()
    return await answer
