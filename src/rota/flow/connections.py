"""Connections that a process group has opened: gloo can't be told to close them."""

import contextlib
import os
import socket
from collections.abc import Collection


def open_sockets() -> dict[int, str]:
    """The sockets of this process by descriptor, with names that no other socket ever has."""
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith("socket:"):
                found[descriptor] = name
    return found


def hang_up(descriptor: int, name: str, hosts: Collection[str] = ()) -> None:
    """End a connection to a process of this machine, or of ``hosts``, if that is what it still is.

    A socket that listens is left alone: gloo ends the process if that fails.
    """
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{descriptor}") != name:
            return
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            peer = connection.getpeername()[0].removeprefix("::ffff:")
            if peer in hosts or connection.getpeername()[0] == connection.getsockname()[0]:
                connection.shutdown(socket.SHUT_RDWR)
