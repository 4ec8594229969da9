"""An island's host without an order of gangs: each device serves first come, first served.

    python -m support.flow_unordered FOLDER DEVICES MEMORY_BYTES

An operation gets its turn on each device for itself, as soon as its worker there is ready for it:
what processes do that share devices and know nothing of each other. Nobody has a grant.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rota.flow.host import Host
from rota.flow.island import Island, Operation, Ticket
from rota.flow.order import Fifo
from rota.flow.page import RING, SOCKET


class FirstCome(Island):
    """Gives each device's turns in the order in which its workers are ready."""

    def __init__(self, devices: Iterable[int]) -> None:
        super().__init__(devices, Fifo())
        self._submitted: dict[tuple[int, int], deque[int]] = {}  # by client and device: numbers
        self._ready: dict[tuple[int, int], int] = {}
        self._come: dict[int, deque[tuple[int, int]]] = {d: deque() for d in self._devices}
        self._given = dict.fromkeys(self._devices, 0)
        self._over = dict.fromkeys(self._devices, 0)

    def submit(self, client: int, operations: Iterable[Operation]) -> None:
        for each in operations:
            for device in each.devices:
                self._submitted.setdefault((client, device), deque()).append(each.number)
                self.ready(client, device, self._ready.get((client, device), 0))

    def ready(self, client: int, device: int, number: int) -> None:
        self._ready[client, device] = number
        waiting = self._submitted.get((client, device), deque())
        while waiting and waiting[0] <= number:
            self._come[device].append((client, waiting.popleft()))

    def done(self, device: int, seq: int) -> None:
        self._over[device] = seq

    def issue(self) -> list[Ticket]:
        tickets = []
        for device, come in self._come.items():
            while come and self._given[device] - self._over[device] < RING:
                client, number = come.popleft()
                self._given[device] += 1
                tickets.append(Ticket(client, number, ((device, self._given[device]),)))
        return tickets


class UnorderedHost(Host):
    """A host that has such an island."""

    def __init__(self, folder: Path, devices: int, *more: Any, **options: Any) -> None:
        super().__init__(folder, devices, *more, island=FirstCome(range(devices)), **options)
        self._floor.barrier.works = False  # without which there are no grants


@contextmanager
def unordered_island(devices: int) -> Iterator[tuple[Path, int]]:
    """Such an island: its folder, for ``flow.connect``, and the pid of its host."""
    folder = Path(tempfile.mkdtemp(prefix="rota-flow-unordered-", dir="/dev/shm"))
    command = [sys.executable, "-m", __name__, str(folder), str(devices), str(1 << 30), "cpu"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            while not (folder / SOCKET).exists():
                assert process.poll() is None
                time.sleep(0.01)
            yield folder, process.pid
        finally:
            assert process.stdin is not None
            process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    from rota.flow import host

    host.Host = UnorderedHost  # type: ignore[misc]
    host.main()
