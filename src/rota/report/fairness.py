"""Fairness of service: slowdown, finish-time fairness, Jain's index, and bins by job size.

A job's *need* is its duration where that is known, else the service that it took: the time in which
it would have ended alone on the GPUs it asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import inf
from operator import sub
from typing import Any, NamedTuple

from rota.model.state.state import ClusterState

# Tiresias (NSDI 2019), section 5.1, tells small from large gangs and short from long jobs here.
SMALL_GPUS = 4
SHORT_S = 800.0
BINS = ("SS", "SL", "LS", "LL")  # gang small or large, then job short or long

# Feitelson and others, "Theory and practice in parallel job scheduling" (JSSPP 1997): below this,
# a job's slowdown says more about the clock than about the wait.
BOUND_S = 10.0

# A job is worse off than with a share of its own beyond this rho: what merely starting costs is
# nobody's unfairness.
UNFAIR = 1.01


class Jobs(NamedTuple):
    """The jobs that a figure is about, column by column."""

    num_gpus: array[int]
    submit_s: array[float]
    jct_s: array[float]
    need_s: array[float]
    queue_s: array[float]


def columns_of(state: ClusterState, rows: Sequence[int]) -> Jobs:
    """The columns of some ended jobs, in the order of ``rows``."""
    columns: list[array[Any]] = [state.num_gpus, state.submit_s, state.finish_s]
    columns += [state.duration_s, state.service_s, state.overhead_s]
    if len(rows) < len(state.spec):
        columns = [array(column.typecode, [column[row] for row in rows]) for column in columns]
    gpus, submit, finish, durations, service, overhead = columns
    jct = array("d", map(sub, finish, submit))
    known = zip(durations, service, strict=True)
    need = array("d", [duration if duration >= 0 else served for duration, served in known])
    queue = array("d", map(sub, map(sub, jct, service), overhead))
    return Jobs(gpus, submit, jct, need, queue)


def slowdowns(jobs: Jobs) -> array[float]:
    """Bounded slowdown of each job: ``max(1, JCT / max(need, 10 s))``."""
    return array(
        "d",
        [
            1.0 if jct <= (bounded := need if need > BOUND_S else BOUND_S) else jct / bounded
            for jct, need in zip(jobs.jct_s, jobs.need_s, strict=True)
        ],
    )


def jain_index(shares: Sequence[float]) -> float | None:
    """``(sum x)^2 / (n sum x^2)``: 1 if all are equal, 1/n if one has everything.

    Jain, Chiu and Hawe (DEC-TR-301, 1984). None of nothing, or where all shares are zero.
    """
    total, squares = sum(shares), sum([share * share for share in shares])
    return total * total / (len(shares) * squares) if squares else None


def progress_rates(jobs: Jobs) -> list[float]:
    """``need / JCT`` of each job that needed anything: the share of its time in which it advanced.

    It is 1 for a job that never waited, and above 1 on GPUs faster than those its duration is for.
    """
    pairs = zip(jobs.need_s, jobs.jct_s, strict=True)
    return [need / jct for need, jct in pairs if need > 0 and jct > 0]


def finish_time_fairness(jobs: Jobs, active: Sequence[float], num_gpus: int) -> list[float]:
    """rho of each job that needed anything: its JCT over that on an equal share of the cluster.

    Themis (NSDI 2020, section 3) and Gavel (OSDI 2020, section 4.4). The share is ``num_gpus / N``,
    where N is the number of jobs that were active during the job's own time, from
    :func:`mean_active`; a gang larger than its share takes turns on it:
    ``need * max(1, gang * N / num_gpus)``.
    """
    columns = zip(jobs.num_gpus, jobs.jct_s, jobs.need_s, active, strict=True)
    return [
        jct / (need * share) if (share := gang * count / num_gpus) > 1 else jct / need
        for gang, jct, need, count in columns
        if need > 0
    ]


def mean_active(submit_s: Sequence[float], finish_s: Sequence[float]) -> array[float]:
    """Mean number of active jobs between each job's submission and its finish.

    It counts itself, so that 1 is the least. A finish below zero is one that has not come: such a
    job counts as active for good, and its own average is 1.
    """
    count = len(submit_s)
    ends = array("d", [finish if finish >= 0 else inf for finish in finish_s])
    coming = sorted(range(count), key=submit_s.__getitem__)  # quick: rows are in this order
    leaving = sorted(range(count), key=ends.__getitem__)
    job_s = array("d", bytes(8 * count))  # of a job, how many were active, integrated until it came
    means = array("d", [1.0]) * count
    active, total, last, came = 0, 0.0, 0.0, 0
    for row in leaving:
        end = ends[row]
        while came < count and (submit := submit_s[coming[came]]) <= end:
            total += active * (submit - last)
            last = submit
            job_s[coming[came]] = total
            active += 1
            came += 1
        if end == inf:
            break
        total += active * (end - last)
        last = end
        active -= 1
        if end > submit_s[row]:
            means[row] = max(1.0, (total - job_s[row]) / (end - submit_s[row]))
    return means


def by_bin(jobs: Jobs, slowdown: Sequence[float]) -> dict[str, dict[str, Any]]:
    """The number of jobs in each size bin, and averages over them."""
    counts, jct, queue, slow = {}, {}, {}, {}
    for name in BINS:
        counts[name], jct[name], queue[name], slow[name] = 0, 0.0, 0.0, 0.0
    columns = zip(jobs.num_gpus, jobs.need_s, jobs.jct_s, jobs.queue_s, slowdown, strict=True)
    for gpus, need, jct_s, queue_s, factor in columns:
        name = BINS[2 * (gpus > SMALL_GPUS) + (need >= SHORT_S)]
        counts[name] += 1
        jct[name] += jct_s
        queue[name] += queue_s
        slow[name] += factor
    return {
        name: {
            "jobs": count,
            "avg_jct_s": jct[name] / count if count else None,
            "avg_queue_s": queue[name] / count if count else None,
            "avg_slowdown": slow[name] / count if count else None,
        }
        for name, count in counts.items()
    }
