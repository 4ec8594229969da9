"""The one job table: what every trace becomes, whatever it was read from."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import eq, le
from typing import Any

from rota.model.job import JobSpec, Suspension

# Column -> (unit, meaning). The first four every trace has; the others may be absent.
COLUMNS = {
    "job_id": ("", "the job's name, unique in the trace"),
    "submit_s": ("s", "when the job arrives, from the trace's zero"),
    "duration_s": ("s", "run time with all its GPUs, without any wait"),
    "num_gpus": ("GPUs", "size of the gang"),
    "vc": ("", "virtual cluster or queue"),
    "user": ("", "who submitted it"),
    "priority": ("1..100", "larger is sooner; the weight of weighted policies"),
    "model": ("", "what it trains"),
    "skew": ("0..1", "its largest tensor over its model's size"),
    "speeds": ("", "speed by GPU type as TYPE=SPEED;TYPE=SPEED, where duration_s is for 1"),
    "elastic": ("", "sizes that the job may have: 1;2;4"),
    "gpu_util": ("0..1", "part of the time in which its GPUs compute when it has them alone"),
    "memory_gb": ("GB", "memory that it needs of each GPU"),
    "batch": ("samples", "of a whole step, over all its GPUs"),
    "time_limit_s": ("s", "run time after which the job would have been ended"),
    "depends_on": ("", "jobs that must have ended before it may start: ID;ID=ended"),
    "share": (
        "",
        "background: it uses what others leave; foreground=1.05: how much slower it may be",
    ),
    "flow_weight": ("", "of a flow job: its part of the GPU that it shares with other flow jobs"),
    "suspension": ("", "how the job gives its GPUs up: plain (never), restart or cooperative"),
}
# The words of that column.
PLAIN, RESTART, COOPERATIVE = "plain", "restart", "cooperative"
SUSPENSIONS = {
    PLAIN: Suspension.PROCESS,
    RESTART: Suspension.RESTART,
    COOPERATIVE: Suspension.BOUNDARY,
}
REQUIRED = ("job_id", "submit_s", "duration_s", "num_gpus")
MAX_GPUS = 1_000_000
MAX_ID = 200
MAX_BATCH = 1_000_000_000
MAX_S = 1e10  # three centuries; in much longer times a float loses milliseconds
SPEEDS = (1e-3, 1e3)  # from, to: what a speed by GPU type may be besides 0


class Trace:
    """Jobs in order of (submit_s, id). Ids that are all whole numbers are ordered as numbers.

    ``num_rejected`` rows of the file could not be read; ``rejected`` says of the first of them
    why, as (line, reason). ``notes`` are sentences on what else differs from the file.
    ``waited_s`` tells by job id how long jobs waited where the trace was recorded, if it says so.
    ``is_log`` is True of the log of a cluster, whose jobs knew of no suspension.
    """

    __slots__ = ("is_log", "jobs", "name", "notes", "num_rejected", "rejected", "waited_s")

    def __init__(
        self,
        jobs: Iterable[JobSpec],
        name: str = "trace",
        *,
        num_rejected: int = 0,
        rejected: Iterable[tuple[int, str]] = (),
        notes: Iterable[str] = (),
        waited_s: Mapping[str, float] | None = None,
        is_log: bool = False,
    ) -> None:
        self.is_log = is_log
        self.jobs = _ordered(list(jobs))
        self.name = name
        self.num_rejected = num_rejected
        self.rejected = list(rejected)
        self.notes = list(notes)
        self.waited_s = waited_s or {}

    def with_jobs(self, jobs: Iterable[JobSpec]) -> "Trace":
        """A trace of these jobs under the same name, with the same rejected rows and notes."""
        return Trace(
            jobs,
            self.name,
            num_rejected=self.num_rejected,
            rejected=self.rejected,
            notes=self.notes,
            waited_s=self.waited_s,
            is_log=self.is_log,
        )

    def suspended_as(self, kind: Suspension | None) -> "Trace":
        """A trace of the same jobs, all of which are suspended in that way.

        None: each as the trace tells. Where it tells nothing, jobs of a log keep their GPUs until
        they end, and others restart.
        """
        untold = Suspension.PROCESS if self.is_log else Suspension.RESTART
        return self.with_jobs(
            spec._replace(suspension=(spec.suspension or untold) if kind is None else kind)
            for spec in self.jobs
        )

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[JobSpec]:
        return iter(self.jobs)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Hold Python's cyclic collector off while a trace is made.

    Jobs form no cycles, and looking for some among a million takes as long as making them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _ordered(jobs: list[JobSpec]) -> list[JobSpec]:
    ids = [spec.job_id for spec in jobs]
    submit_s = [spec.submit_s for spec in jobs]
    joined = "".join(ids)
    numbered = joined.isascii() and joined.isdigit() and all(ids)
    key: Callable[[str], Any] = _by_number if numbered else str
    # Most files are in order already, and telling so is cheaper than sorting.
    if all(map(le, submit_s, submit_s[1:])):
        ties = [row for row, tie in enumerate(map(eq, submit_s, submit_s[1:])) if tie]
        if all(key(ids[row]) <= key(ids[row + 1]) for row in ties):
            return jobs
    keys = list(zip(submit_s, map(int, ids) if numbered else ids, ids, strict=True))
    return [jobs[row] for row in sorted(range(len(jobs)), key=keys.__getitem__)]


def _by_number(job_id: str) -> tuple[int, str]:
    return int(job_id), job_id
