"""Metrics of a run: one summary for the simulator, the live cluster and what-if runs."""

from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Any

from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState
from rota.report.fairness import (
    UNFAIR,
    Jobs,
    by_bin,
    columns_of,
    finish_time_fairness,
    jain_index,
    mean_active,
    progress_rates,
    slowdowns,
)
from rota.report.statistic import mean, median, percentile

PARTS, LEAST_PART = 10, 10  # parts of the jobs, and how many jobs one has at least
PER_JOB_COLUMNS = (
    "job_id",
    "num_gpus",
    "submit_s",
    "first_start_s",
    "finish_s",
    "jct_s",
    "service_s",
    "overhead_s",
    "lost_s",
    "queue_s",
    "preemptions",
    "migrations",
    "state",
)


def summarise(
    state: ClusterState, *, decisions: int, policy: str, needs_duration: bool = False
) -> dict[str, Any]:
    """Figures of a run that follow from each job's state at its end, by name.

    They are those of the foreground jobs. Where there are background jobs, ``background_jobs``,
    ``background_finished`` and ``background_avg_jct_s`` are theirs, and ``harvest_gpu_s`` is their
    work so far, in seconds of one GPU for themselves.
    ``jobs`` counts all jobs and ``finished`` those that succeeded; times are averaged over the
    finished ones alone and are None where there is none. JCT is finish - submit; the median is the
    mean of the two middle values, other percentiles go by nearest rank; the makespan is last finish
    - first submit of the finished jobs; a job's queue time is JCT - service - costs charged to
    it. ``lost_attempts`` counts the starts of all jobs that did not last until the job's end, but
    for those that failed and were retried, as the job asked for.
    ``needs_duration`` marks an oracle. The figures of fairness are those of
    :mod:`rota.report.fairness`; what needs the course of the run is in :mod:`rota.report.history`.
    """
    background = _background(state)
    if background:
        state = state.only(row for row, spec in enumerate(state.spec) if not spec.is_background)
    succeeded = int(JobState.SUCCEEDED)
    rows = [row for row, code in enumerate(state.state) if code == succeeded]
    jobs = columns_of(state, rows)
    jct, queue = sorted(jobs.jct_s), sorted(jobs.queue_s)
    makespan_s = _makespan_s(state, rows)
    return {
        "policy": policy,
        "needs_duration": needs_duration,
        "jobs": len(state.spec),
        "finished": len(rows),
        "avg_jct_s": mean(jct),
        "median_jct_s": median(jct),
        "p90_jct_s": percentile(jct, 90),
        "p95_jct_s": percentile(jct, 95),
        "p99_jct_s": percentile(jct, 99),
        "makespan_s": makespan_s,
        "avg_jct_s_by_part": by_part(rows, jobs.jct_s, len(state.spec)),
        "avg_queue_s": mean(queue),
        "median_queue_s": median(queue),
        "p95_queue_s": percentile(queue, 95),
        "preemptions": sum(state.preemptions),
        "migrations": sum(state.migrations),
        "restarts": sum(state.restarts),
        "restarts_per_job": mean(state.restarts),
        "lost_attempts": _lost_attempts(state),
        **_gpu_time(state, rows, makespan_s),
        **_fairness(state, rows, jobs),
        "events": state.events,
        "decisions": decisions,
        **background,
    }


def _background(state: ClusterState) -> dict[str, float | None]:
    """The figures of background jobs; none where there is no such job."""
    if not state.has_background_jobs:
        return {}
    rows = [row for row, spec in enumerate(state.spec) if spec.is_background]
    ended = [row for row in rows if state.state[row] == JobState.SUCCEEDED]
    return {
        "background_jobs": len(rows),
        "background_finished": len(ended),
        "background_avg_jct_s": mean([state.finish_s[r] - state.submit_s[r] for r in ended]),
        "harvest_gpu_s": sum(state.service_s[row] - state.lag_s[row] for row in rows),
    }


def of_log(jobs: Iterable[JobSpec], waited_s: Mapping[str, float]) -> dict[str, Any]:
    """Figures of a log's own jobs, as those of :func:`summarise`.

    ``waited_s`` is how long jobs waited, by id; the wait of others is unknown.
    """
    listed = list(jobs)
    rows = [row for row, spec in enumerate(listed) if spec.job_id in waited_s]
    told = [listed[row] for row in rows]
    jct_s = [waited_s[spec.job_id] + (spec.duration_s or 0.0) for spec in told]
    rising, queue = sorted(jct_s), sorted(waited_s[spec.job_id] for spec in told)
    ends = [spec.submit_s + value for spec, value in zip(told, jct_s, strict=True)]
    return {
        "finished": len(told),
        "avg_jct_s": mean(rising),
        "median_jct_s": median(rising),
        "p90_jct_s": percentile(rising, 90),
        "p95_jct_s": percentile(rising, 95),
        "p99_jct_s": percentile(rising, 99),
        "makespan_s": max(ends) - min(spec.submit_s for spec in told) if told else None,
        "avg_jct_s_by_part": by_part(rows, jct_s, len(listed)),
        "avg_queue_s": mean(queue),
        "median_queue_s": median(queue),
        "p95_queue_s": percentile(queue, 95),
        "most_gpus": _most_gpus(told, waited_s),
    }


def _most_gpus(jobs: Iterable[JobSpec], waited_s: Mapping[str, float]) -> int:
    """The most GPUs that the jobs held at once, each after its wait and without a break."""
    changes: list[tuple[float, int]] = []
    for spec in jobs:
        start_s = spec.submit_s + waited_s[spec.job_id]
        changes.append((start_s, spec.num_gpus))
        changes.append((start_s + (spec.duration_s or 0.0), -spec.num_gpus))
    held = most = 0
    for _, gpus in sorted(changes):  # who ends makes room at that moment
        held += gpus
        most = max(most, held)
    return most


def by_part(rows: Sequence[int], jct_s: Sequence[float], num_jobs: int) -> list[float | None]:
    """The average JCT of each of ``PARTS`` parts of the jobs, in order of arrival.

    None for a part of which no job has finished; no part at all where there are too few jobs.
    """
    if num_jobs < PARTS * LEAST_PART:
        return []
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for row, value in zip(rows, jct_s, strict=True):
        parts[row * PARTS // num_jobs].append(value)
    return [mean(values) for values in parts]


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
                state.lost_s[row],
                _queue_s(state, row) if ended else None,
                state.preemptions[row],
                state.migrations[row],
                JobState(state.state[row]).name,
            )
        )
    return table


def _gpu_time(
    state: ClusterState, rows: Sequence[int], makespan_s: float | None
) -> dict[str, float | None]:
    """GPU-seconds charged and lost by all jobs, and the finished jobs' part of the cluster's.

    The cluster's are those of every node that ever joined, lost ones included, over the makespan.
    """
    gangs, service, overhead = state.num_gpus, state.service_s, state.overhead_s
    served = sum([service[row] * gangs[row] + state.extra_gpu_s[row] for row in rows])
    extra = state.extra_overhead_gpu_s
    held = served + sum([overhead[row] * gangs[row] + extra[row] for row in rows])
    capacity = _num_gpus(state) * (makespan_s or 0.0)
    return {
        "overhead_gpu_s": sum(map(mul, overhead, gangs)) + sum(extra),
        "lost_gpu_s": sum(map(mul, state.lost_s, gangs)),
        "gpu_allocation": held / capacity if capacity else None,
        "gpu_utilisation": served / capacity if capacity else None,
    }


def _lost_attempts(state: ClusterState) -> int:
    without, lost = (JobState.PENDING, JobState.HELD), 0
    for row, starts in enumerate(state.attempt):
        stands = state.state[row] not in without
        # A job that was cancelled before its retry has none that stands.
        lost += max(0, starts - stands - state.retried.get(row, 0))
    return lost


def _fairness(state: ClusterState, rows: Sequence[int], jobs: Jobs) -> dict[str, Any]:
    slowdown = slowdowns(jobs)
    active = mean_active(state.submit_s, state.finish_s)
    rho = finish_time_fairness(jobs, [active[row] for row in rows], _num_gpus(state))
    return {
        "avg_slowdown": mean(slowdown),
        "p99_slowdown": percentile(sorted(slowdown), 99),
        "avg_rho": mean(rho),
        "worst_rho": max(rho, default=None),
        "unfair_jobs": len([1 for value in rho if value > UNFAIR]) / len(rho) if rho else None,
        "jain_index": jain_index(progress_rates(jobs)),
        "bins": by_bin(jobs, slowdown),
    }


def _num_gpus(state: ClusterState) -> int:
    return sum(node.num_gpus for node in state.nodes)


def _makespan_s(state: ClusterState, rows: Sequence[int]) -> float | None:
    if not rows:
        return None
    return max([state.finish_s[row] for row in rows]) - min([state.submit_s[row] for row in rows])


def _queue_s(state: ClusterState, row: int) -> float:
    jct_s = state.finish_s[row] - state.submit_s[row]
    return jct_s - state.service_s[row] - state.overhead_s[row]
