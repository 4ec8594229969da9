"""What a run came to: one summary for the simulator, the live cluster and what-if runs."""

from collections.abc import Sequence
from math import ceil, fsum
from typing import Any

from rota.model.job import JobState
from rota.model.state import ClusterState

PER_JOB_COLUMNS = (
    "job_id",
    "num_gpus",
    "submit_s",
    "first_start_s",
    "finish_s",
    "jct_s",
    "service_s",
    "overhead_s",
    "queue_s",
    "preemptions",
    "migrations",
    "state",
)


def summarise(
    state: ClusterState, *, decisions: int, policy: str, needs_duration: bool = False
) -> dict[str, Any]:
    """The figures of a run, by name.

    ``jobs`` counts all jobs and ``finished`` those that succeeded; times are averaged over the
    finished ones alone and are None where there is none. JCT is finish - submit; the median is
    the mean of the two middle values, other percentiles go by nearest rank; the makespan is last
    finish - first submit of the finished jobs; a job's queue time is JCT - service - overheads
    charged to it. ``gpu_utilisation`` is the finished jobs' GPU-seconds of service over the GPUs
    that the cluster has now times the makespan. ``needs_duration`` marks an oracle.
    """
    rows = _finished(state)
    jct = sorted(state.finish_s[row] - state.submit_s[row] for row in rows)
    makespan_s = _makespan_s(state, rows)
    gpu_s = fsum(state.service_s[row] * state.num_gpus[row] for row in rows)
    capacity_gpu_s = state.total_gpus * (makespan_s or 0.0)
    return {
        "policy": policy,
        "needs_duration": needs_duration,
        "jobs": len(state.spec),
        "finished": len(rows),
        "avg_jct_s": mean(jct),
        "median_jct_s": median(jct),
        "p95_jct_s": percentile(jct, 95),
        "p99_jct_s": percentile(jct, 99),
        "makespan_s": makespan_s,
        "avg_queue_s": mean([_queue_s(state, row) for row in rows]),
        "preemptions": sum(state.preemptions),
        "migrations": sum(state.migrations),
        "gpu_utilisation": gpu_s / capacity_gpu_s if capacity_gpu_s else None,
        "events": state.events,
        "decisions": decisions,
    }


def per_job(state: ClusterState) -> list[tuple[Any, ...]]:
    """One row per job in (arrival, id) order, with the fields of ``PER_JOB_COLUMNS``.

    What has not come about is None: the first start of a job that never ran, and the finish, JCT
    and queue time of one that has not ended.
    """
    table: list[tuple[Any, ...]] = []
    for row, spec in enumerate(state.spec):
        start_s, finish_s = state.first_start_s[row], state.finish_s[row]
        ended = finish_s >= 0
        table.append(
            (
                spec.job_id,
                spec.num_gpus,
                spec.submit_s,
                start_s if start_s >= 0 else None,
                finish_s if ended else None,
                finish_s - spec.submit_s if ended else None,
                state.service_s[row],
                state.overhead_s[row],
                _queue_s(state, row) if ended else None,
                state.preemptions[row],
                state.migrations[row],
                JobState(state.state[row]).name,
            )
        )
    return table


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean, or None of nothing."""
    return fsum(values) / len(values) if values else None


def median(rising: Sequence[float]) -> float | None:
    """The middle value, or the mean of the two middle ones; None of nothing."""
    if not rising:
        return None
    middle = len(rising) // 2
    return rising[middle] if len(rising) % 2 else (rising[middle - 1] + rising[middle]) / 2


def percentile(rising: Sequence[float], percent: int) -> float | None:
    """The smallest value that at least ``percent`` % of the values do not exceed; None of nothing.

    This is the nearest rank, ``ceil(percent / 100 * n)``, counted from 1.
    """
    if not rising:
        return None
    return rising[max(1, ceil(percent * len(rising) / 100)) - 1]


def _finished(state: ClusterState) -> list[int]:
    return [row for row, code in enumerate(state.state) if code == JobState.SUCCEEDED]


def _makespan_s(state: ClusterState, rows: list[int]) -> float | None:
    if not rows:
        return None
    return max(state.finish_s[row] for row in rows) - min(state.submit_s[row] for row in rows)


def _queue_s(state: ClusterState, row: int) -> float:
    jct_s = state.finish_s[row] - state.submit_s[row]
    return jct_s - state.service_s[row] - state.overhead_s[row]
