"""The tag of each process of a job: a number that finds processes that have outlived their shim.

It is the soft limit of the CPU time of real-time processes, in microseconds: programs inherit it
whatever they are executed by and with, and one so large never takes effect. It has a key of the
folder of its node, so that a watchman knows the processes of its node, and a part of its own. The
tags of a shim and of the fence of a host say that these are guards: they look after the processes
below them.
"""

import os
import resource
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

TAG = 1 << 62  # in every tag
GUARD = 1 << 61
WITH_KEY = 1 << 60  # it has the key of a node; those of older agents have none
WATCHMAN = 1 << 59  # a watchman's own
KEY_BITS, OWN_BITS = 24, 35


def node_key(node_folder: Path) -> int:
    """The key of a node's folder, another one for a copy of it. Raises OSError."""
    status = os.stat(node_folder)
    return zlib.crc32(f"{status.st_dev}/{status.st_ino}".encode()) >> (32 - KEY_BITS)


def new_secret(node_folder: Path) -> str:
    """A secret to make the tags of an attempt's processes from; it begins with the node's key.

    Raises OSError.
    """
    return f"{node_key(node_folder):06x}-{secrets.token_hex(16)}"


def tag_on_node(key: int, own: int) -> int:
    """The tag with the key of a node, and with as much of ``own`` as it has room for."""
    return TAG | WITH_KEY | key << OWN_BITS | own & ((1 << OWN_BITS) - 1)


def key_in(number: int | None) -> int | None:
    """The key of the node in a tag; None if it has none, or if the number is no tag."""
    if number is None or number < 0 or number & (TAG | WITH_KEY) != TAG | WITH_KEY:
        return None
    return number >> OWN_BITS & ((1 << KEY_BITS) - 1)


def set_tag(tag: int) -> None:
    """Give a tag to this process, and to everything that it starts.

    Where the user is limited to less, processes go without.
    """
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (tag, hard))


def tag_or_limit(pid: int) -> int | None:
    """The tag of a process; None if the process is gone, or another user's.

    That of a guard has GUARD in it. Returns a number below TAG, the limit, if it has no tag.
    """
    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    except OSError:
        return None
