"""The CPU cores that a rank may use, and the loader workers that are worth having on them."""

from __future__ import annotations

import os

MOST_WORKERS = 32  # of one rank: each is a process, with a copy of the dataset


class Cores:
    """The job's share of CPU cores: first that of ``ROTA_CPUS``, then what the agent tells.

    ``millicores`` are thousandths of a core, of all ranks together; None if nobody told.
    """

    def __init__(self) -> None:
        self.millicores = _millicores_of(os.environ.get("ROTA_CPUS", ""))

    def of_a_rank(self, ranks: int) -> float:
        """Cores for one of so many ranks: its part of the share, within its affinity."""
        if self.millicores is None:
            return self.bound() / ranks
        return min(self.millicores / 1000 / ranks, self.bound())

    def bound(self) -> int:
        """Number of cores that this process is bound to."""
        return len(os.sched_getaffinity(0))

    def workers(self, ranks: int) -> int:
        """Number of loader workers for one of so many ranks, at least 1, a core for each."""
        return max(1, min(int(self.of_a_rank(ranks)), MOST_WORKERS))


def _millicores_of(text: str) -> int | None:
    """Whole cores as text; None for anything else, which a program may have set."""
    return 1000 * int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None
