"""Everything an attempt needs of its machine: the time, timers, tasks and processes.

Nothing else that decides about an attempt reads a clock, starts a task or looks at a process.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any

from rota.live.agent import processes
from rota.live.agent.rank import Rank
from rota.live.wire import clock
from rota.live.wire.lease import Lease
from rota.live.wire.procfs import NO_DESCRIPTOR


class World:
    """This machine. Tests give attempts one in which time is virtual and processes are made up."""

    lease: Lease | None = None  # during which the processes of this node may run

    def now_s(self) -> float:
        """The cluster's time: seconds since 1970."""
        return clock.now_s()

    def boottime_s(self) -> float:
        """Seconds since the machine was booted, its sleep included."""
        return clock.boottime_s()

    def monotonic_s(self) -> float:
        """Seconds of CLOCK_MONOTONIC, which ranks tell their pulses in."""
        return time.monotonic()

    def boot_id(self) -> str:
        """The name of this life of the machine, a new one after every reboot."""
        return clock.boot_id()

    def later(
        self, seconds: float, call: Callable[..., object], *arguments: Any
    ) -> asyncio.TimerHandle:
        """Call a function after so many seconds."""
        return asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background."""
        return asyncio.get_running_loop().create_task(coroutine)

    async def in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call that may take long, made in a thread."""
        return await asyncio.to_thread(call, *arguments)

    def new_rank(self, slot: int, folder: Path, life: int = 0) -> Rank:
        """A process of an attempt with this folder, not started yet, or to be found."""
        return Rank(slot, folder, life, self.lease)

    def started_at(self, pid: int) -> float | None:
        """Start time of a process, by :meth:`boottime_s`; None if it is gone."""
        return processes.started_at(pid)

    def bind(self, pid: int, cores: Collection[int], *, widens: bool = True) -> None:
        """Restrict a process and all its descendants to these cores; see :func:`processes.bind`."""
        processes.bind(pid, cores, widens=widens)

    def kill_remains(
        self, shims: Iterable[int], tags: Iterable[int | None], marks: dict[str, str] | None = None
    ) -> int:
        """Kill the processes that dead shims have left behind. Returns their number."""
        try:
            return processes.kill_remains(shims, tags, marks)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                return 1  # nobody can look whether there are any: it is looked again
            raise
