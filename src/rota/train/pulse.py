"""A rank's present phase, which its agent can read at no cost to the rank.

It is a file of four numbers, mapped into memory: writing it is no system call, and the agent can
read it although the rank hangs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time

from rota.live.wire import COMPUTING, PULSE


class Pulse:
    """Written at each change of phase; nothing is written without ``path``."""

    def __init__(self, path: str | None) -> None:
        self._map: mmap.mmap | None = None
        self._computed_s = self._samples = 0.0
        self._since_s = time.monotonic()
        self._phase = COMPUTING
        if path:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(OSError):  # a full disk: better no pulse than to die of it
                # On what has no room on the disk, to write into memory ends the process.
                os.pwrite(descriptor, bytes(PULSE.size), 0)
                self._map = mmap.mmap(descriptor, PULSE.size)
            os.close(descriptor)

    def enter(self, phase: int, samples: int = 0) -> None:
        """Enter another phase, after computing so many samples in this one."""
        now = time.monotonic()
        if self._phase == COMPUTING:
            self._computed_s += now - self._since_s
        self._samples += samples
        self._phase, self._since_s = phase, now
        if self._map is not None:
            self._map[:] = PULSE.pack(phase, now, self._computed_s, self._samples)
