"""The columns of a cluster's state: one row per job, in (arrival, id) order."""

from __future__ import annotations

from array import array
from typing import Any

from rota.model.allocation import Allocation
from rota.model.commands import Command
from rota.model.job import JobSpec, JobState
from rota.model.reason import Reason

_FLOATS: tuple[str, ...] = ("submit_s", "service_s", "since_s", "changed_s", "overhead_s")
_FLOATS += (
    "first_start_s",
    "finish_s",
    "duration_s",
    "speed",
    "lag_s",
    "lost_s",
    "skew",
    "extra_gpu_s",
    "extra_overhead_gpu_s",
)
_INTS: tuple[str, ...] = ("num_gpus", "priority", "state", "reason", "attempt", "preemptions")
_INTS += ("migrations", "suspension", "movable", "portable", "resizable", "most_ranks", "restarts")

# What a job that has just arrived is in.
PENDING, WAIT_PRIORITY = int(JobState.PENDING), int(Reason.WAIT_PRIORITY)


class Columns:
    """What is known of every job, by row.

    Numeric columns are ``array.array`` ("d" for seconds, "q" for the rest); a time that has not
    come is -1. ``target`` is where the last plan wants a job (assumed), ``held`` what it holds
    (confirmed, or promised to a command on its way), ``home`` where a suspended job's state lies.
    ``speed`` is that of a running job relative to what its duration is for, ``lag_s`` by how much
    its work lags behind its service, ``lost_s`` the work that it lost and had to do again.
    ``skew`` is the share of the largest tensor in its model, -1 if nobody told. ``num_gpus`` is
    the size that a job has, or had last; ``extra_gpu_s`` its GPU-seconds beyond service times that,
    ``extra_overhead_gpu_s`` those beyond overheads times that. ``most_ranks`` tells how many its
    program's batches can be shared among, 0 if it has not told.
    ``restarts`` counts how often it went on, or started again, with GPUs given to it anew or with
    others. ``movable`` says whether a suspended job can go on on other GPUs, ``portable`` whether
    also on those of another node.
    """

    submit_s: array[float]
    service_s: array[float]
    since_s: array[float]
    changed_s: array[float]
    overhead_s: array[float]
    first_start_s: array[float]
    finish_s: array[float]
    duration_s: array[float]
    speed: array[float]
    lag_s: array[float]
    lost_s: array[float]
    skew: array[float]
    extra_gpu_s: array[float]
    extra_overhead_gpu_s: array[float]
    num_gpus: array[int]
    priority: array[int]
    state: array[int]
    reason: array[int]
    attempt: array[int]
    preemptions: array[int]
    migrations: array[int]
    suspension: array[int]
    movable: array[int]
    portable: array[int]
    resizable: array[int]
    most_ranks: array[int]
    restarts: array[int]

    def __init__(self) -> None:
        for name in _FLOATS:
            setattr(self, name, array("d"))
        for name in _INTS:
            setattr(self, name, array("q"))
        self.times_replaced = 0  # how often the numeric columns have become other arrays
        self.spec: list[JobSpec] = []
        self.target: list[Allocation | None] = []
        self.held: list[Allocation | None] = []
        self.home: list[Allocation | None] = []
        self.outstanding: list[Command | None] = []
        self.marks: list[Any] = []
        self.progress: list[dict[str, Any] | None] = []

    def append(self, spec: JobSpec) -> int:
        """Add a job that has just arrived; its row."""
        row = len(self.spec)
        try:
            self._append_numbers(spec)
        except BufferError:  # somebody holds a numpy view of a column: leave it the old array
            for name in _FLOATS + _INTS:
                column = getattr(self, name)
                setattr(self, name, array(column.typecode, column[:row]))
            self.times_replaced += 1
            self._append_numbers(spec)
        self.spec.append(spec)
        self.target.append(None)
        self.held.append(None)
        self.home.append(None)
        self.outstanding.append(None)
        self.marks.append(None)
        self.progress.append(None)
        return row

    def _append_numbers(self, spec: JobSpec) -> None:
        duration = -1.0 if spec.duration_s is None else spec.duration_s
        self.submit_s.append(spec.submit_s)
        self.service_s.append(0.0)
        self.since_s.append(-1.0)
        self.changed_s.append(spec.submit_s)
        self.overhead_s.append(0.0)
        self.first_start_s.append(-1.0)
        self.finish_s.append(-1.0)
        self.duration_s.append(duration)
        self.speed.append(1.0)
        self.lag_s.append(0.0)
        self.lost_s.append(0.0)
        self.skew.append(-1.0 if spec.skew is None else spec.skew)
        self.extra_gpu_s.append(0.0)
        self.extra_overhead_gpu_s.append(0.0)
        self.num_gpus.append(spec.num_gpus)
        self.priority.append(spec.priority)
        self.state.append(PENDING)
        self.reason.append(WAIT_PRIORITY)
        self.attempt.append(0)
        self.preemptions.append(0)
        self.migrations.append(0)
        self.restarts.append(0)
        self.suspension.append(0)
        self.movable.append(1)
        self.portable.append(1)
        # A live job is resizable once its program says so, a simulated one from the start.
        self.most_ranks.append(0)
        elastic = spec.elastic
        self.resizable.append(
            1 if elastic is not None and not elastic.by_restart and spec.simulated else 0
        )

    def service(self, row: int, now_s: float) -> float:
        """Seconds for which the job has held all its GPUs and worked, up to ``now_s``."""
        since = self.since_s[row]
        return self.service_s[row] + (now_s - since if since >= 0 else 0.0)

    def work(self, row: int, now_s: float) -> float:
        """Seconds of its duration that the job has done: service at its speeds, less what it lost.

        Equal to :meth:`service` for a job that always ran at speed 1 and lost nothing.
        """
        since = self.since_s[row]
        done_s = self.service_s[row] - self.lag_s[row]
        return done_s + ((now_s - since) * self.speed[row] if since >= 0 else 0.0)
