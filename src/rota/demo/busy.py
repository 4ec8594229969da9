"""How busy the machine was while trainings ran: how long they waited for a CPU core."""

import json
from collections.abc import Callable, Collection
from pathlib import Path

from rota.experiment.runs.cores import Used, used

PRESSURE = Path("/proc/pressure/cpu")
MOST_DELAY = 0.25  # of the time that trainings want to run; alone on two cores they wait for less
MOST_PRESSURE = 0.7  # of the time; some task waits now and then on a quiet machine, too


class RunDelay:
    """The part of their time for which the trainings of some clusters waited for a core.

    That is their run delay over run delay and CPU time, as the kernel counts both for each process.
    The clusters' folders lie in ``homes``. Where the kernel does not count, its pressure stall
    information tells: the part of the time for which any task of the machine waited.
    """

    def __init__(
        self,
        homes: Path,
        clock: Callable[[], float],
        pressure: Path = PRESSURE,
        read: Callable[[Collection[int]], Used] = used,
    ) -> None:
        self._homes, self._clock, self._pressure, self._read = homes, clock, pressure, read
        self._seen: dict[int, Used] = {}
        self._began = clock(), self._stalled_s()

    def look(self) -> None:
        """Read the times of the trainings that run. Call it often: they go as processes end."""
        for file in self._homes.glob("*/nodes/*/jobs/*/*/rank*.pid"):
            try:
                pid = json.loads(file.read_bytes())["worker"]
            except (OSError, ValueError, KeyError):
                continue  # it is being written
            now = self._read([pid])
            if now.cpu_s > 0:
                self._seen[pid] = now

    def share(self) -> float | None:
        """The part by now; None where the kernel counts neither."""
        delay_s = sum(each.delay_s for each in self._seen.values())
        total_s = delay_s + sum(each.cpu_s for each in self._seen.values())
        return delay_s / total_s if total_s else None

    def complaint(self) -> str | None:
        """A sentence that figures are worth little, and why; None on a quiet machine."""
        share = self.share()
        if share is not None:
            if share <= MOST_DELAY:
                return None
            why = f"jobs waited for a core {share:.0%} of their time"
        else:
            began_s, before_s = self._began
            stalled_s, passed_s = self._stalled_s(), self._clock() - began_s
            if before_s is None or stalled_s is None or passed_s <= 0:
                return None
            if (part := (stalled_s - before_s) / passed_s) <= MOST_PRESSURE:
                return None
            why = f"some task waited for a core {part:.0%} of the time"
        return f"Busy machine: {why}; figures are worth little."

    def _stalled_s(self) -> float | None:
        """Seconds for which some task waited for a core, since the machine started."""
        try:
            some = self._pressure.read_text().splitlines()[0]  # its last word is total=...
            return int(some.rpartition("=")[2]) / 1e6
        except (OSError, ValueError, IndexError):
            return None
