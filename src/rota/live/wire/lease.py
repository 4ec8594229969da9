"""Until when the processes of a node may run: a word that its agent writes and its shims read.

A controller that has not heard a node for as long as its lease may start the node's jobs elsewhere.
It counts from its last answer; the agent counts from the question that was answered, which was
before, and on a clock that nobody can set: so the node's processes have stopped by then, even if
agent and network are gone. Times are seconds of CLOCK_BOOTTIME.
"""

import mmap
import os
from pathlib import Path

from rota.live.wire import clock


def lease_file(node_folder: Path) -> Path:
    """The file of a node's lease; another one after each boot, as CLOCK_BOOTTIME begins anew."""
    return node_folder / f"lease-{clock.boot_id()[:8]}"


class Lease:
    """The lease in a file of one word, made if it is not there: then it is over."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, as on a full disk."""
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, 8)  # to write where no room is would end the process
            self._map = mmap.mmap(descriptor, 8)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("d")

    @property
    def until_s(self) -> float:
        """When it is over."""
        return self._words[0]

    @property
    def left_s(self) -> float:
        """How long it lasts from now on; negative once it is over."""
        return self.until_s - clock.boottime_s()

    def renew(self, until_s: float) -> None:
        """It lasts until then, if it was to end before."""
        if until_s > self.until_s:
            self._words[0] = until_s

    def close(self) -> None:
        """Let go of the file."""
        self._words.release()
        self._map.close()
