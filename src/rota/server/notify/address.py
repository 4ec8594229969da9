"""Which addresses a webhook may lead to."""

import asyncio
import socket
import threading
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
# IANA's special-purpose registries, and not Python's own view of them, which changes with its
# version. The few addresses in these ranges that are reached worldwide serve protocols, not hooks.
_NOT_PUBLIC = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # of providers, and of many clusters and VPNs
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "240.0.0.0/4",
    )
)
# All else is loopback, link-local, site-local, unique-local, or translated to an IPv4 address of
# the local network's choice (64:ff9b:1::/48).
_PUBLIC_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    IPv6Network(each)
    for each in (
        "2001::/23",  # of protocols; Teredo, which leads through its client's own network
        "2001:db8::/32",
        "3fff::/20",
    )
)

Address = IPv4Address | IPv6Address


def refusal(text: str, *, allows_private: bool, encrypted: bool) -> str | None:
    """The reason for which an address must not be connected to; None if it may be."""
    address = _innermost(ip_address(text.partition("%")[0]))
    if address.is_multicast or address.is_unspecified:
        return f"{address} is no address of one machine"
    if _is_public(address):
        return None if encrypted else f"{address} is a public address, and http is not encrypted"
    if allows_private:
        return None
    return f"{address} is loopback, private or link-local, which --allow-private allows"


def _is_public(address: Address) -> bool:
    """True for an address that is reached from anywhere."""
    if isinstance(address, IPv4Address):
        return not any(address in each for each in _NOT_PUBLIC)
    return address in _PUBLIC_V6 and not any(address in each for each in _NOT_PUBLIC_V6)


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
