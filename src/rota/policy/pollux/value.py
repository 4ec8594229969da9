"""The value of an allocation to each job: the objectives of Pollux.

All of them add up a concave function of the jobs' speedups, and differ in its power, in the jobs'
weights and in what a change of allocation is taken to cost. Arrays have the shape (jobs, sizes);
the first size is no GPU at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Vector = np.ndarray[tuple[int], np.dtype[Any]]
Matrix = np.ndarray[tuple[int, int], np.dtype[Any]]

SMALL = 1e-3  # is added to every speedup, so that one of 0 has a value too
HOUR_S = 3600.0
LENGTH_S = 1000.0  # work on one GPU at which a job's weight is neutral
LEAST_LENGTH_S = 60.0
MOST_LENGTH_S = 1e9  # longer jobs, beyond thirty years, weigh as much
LEAST_AGE_S = 1.0  # a job that has just been submitted is worth more than nothing


class Jobs(NamedTuple):
    """The jobs that ask for GPUs, one entry each.

    ``speedups`` are relative to one GPU; ``current`` is the number of the size that the job has
    now; ``running`` is True if it has GPUs; ``attained_gpu_s`` is its attained service; ``arrived``
    its rank in order of submission; ``kind`` the number of its kind; ``age_s`` the time since
    submission; ``restarts`` how often it has started or changed its GPUs; ``left_s`` the rest of
    its work in seconds on one GPU, NaN if unknown; ``one`` the goodput of one GPU, 1 if unknown;
    ``shrinks`` is True if it can become smaller while it runs.
    """

    speedups: Matrix
    current: Vector
    running: Vector
    attained_gpu_s: Vector
    arrived: Vector
    kind: Vector
    age_s: Vector
    restarts: Vector
    left_s: Vector
    one: Vector
    shrinks: Vector


def power_mean_values(speedups: Matrix, power: float) -> Matrix:
    """The jobs' parts of a power mean of their speedups, shifted so that no GPUs are worth 0."""
    values: Matrix = ((speedups + SMALL) ** power - SMALL**power) / power
    return values


def by_service(jobs: Jobs, *, limit_gpu_s: float, charged: Matrix) -> Matrix:
    """Values without declared lengths: the less service a job has had, the more it weighs.

    Jobs of one kind are assumed to be about as long, and of jobs that are alike none gains by
    taking turns: the first to come weighs most, the second half as much, and so on. Those beyond
    ``limit_gpu_s`` count as of one kind, as in the last queue of Tiresias (Gu et al., NSDI 2019).
    """
    served = jobs.attained_gpu_s
    weight = (1 + np.minimum(served, limit_gpu_s) / HOUR_S) ** -0.5
    alike = np.where(served >= limit_gpu_s, -1, jobs.kind)
    order = np.lexsort((jobs.arrived, alike))
    _, begins = np.unique(alike[order], return_index=True)
    begun = np.zeros(len(order), dtype=int)
    begun[begins] = begins
    ahead = np.arange(len(order)) - np.maximum.accumulate(begun)
    weight[order] /= 1 + ahead
    return weight[:, None] * power_mean_values(charged, 0.5)


def by_length(jobs: Jobs, *, charged: Matrix) -> Matrix:
    """Values with declared lengths: the shorter the rest of a job, the more it weighs.

    The weights are those of heSRPT (Berg et al., *heSRPT: Parallel Scheduling to Minimize Mean
    Slowdown*, Performance Evaluation 144, 2020) for speedups that grow as the square root of the
    GPUs, times a mild term of the length itself. An unknown rest counts as short.
    """
    left_s = np.where(np.isnan(jobs.left_s), 0.0, np.minimum(jobs.left_s, MOST_LENGTH_S))
    order = np.lexsort((-jobs.arrived, -left_s))  # the last one weighs most
    rank = np.empty(len(left_s))
    rank[order] = np.arange(1, len(left_s) + 1)
    weight = np.sqrt(2 * rank - 1) * ((left_s + LEAST_LENGTH_S) / LENGTH_S) ** -0.25
    return weight[:, None] * power_mean_values(charged, 0.7)


def as_published(jobs: Jobs, *, fair: Vector, share: float, restart_s: float) -> Matrix:
    """The published values (OSDI 2021, section 4.2): harmonic mean of speedups over a fair share.

    ``fair`` is each job's speedup at its fair share, and ``share`` is one GPU as a part of a node.
    A change costs the part of a job's age that its restarts have taken; the first start is not a
    restart.
    """
    speedups = share * jobs.speedups / np.maximum(fair, 1e-12)[:, None]
    age_s = np.maximum(jobs.age_s, LEAST_AGE_S)
    restarts = np.maximum(jobs.restarts - 1, 0)
    factor = np.maximum(age_s - restarts * restart_s, 0.0) / (age_s + restart_s)
    return power_mean_values(_unless_kept(jobs, speedups, factor), -1.0)


def charged_for_restarts(jobs: Jobs, *, restart_s: float, horizon_s: float) -> Matrix:
    """Speedups less the cost of a restart, over the ``horizon_s`` for which a job keeps GPUs.

    A job that has run pays it for continuing, too: otherwise the least difference in attained
    service would make two jobs take turns.
    """
    restarts = jobs.running | (jobs.attained_gpu_s > 0)
    factor = np.where(restarts, 1 - restart_s / horizon_s, 1.0)
    return _unless_kept(jobs, jobs.speedups, factor)


def charged_for_stops(jobs: Jobs, values: Matrix, *, restart_s: float, horizon_s: float) -> Matrix:
    """Values by the root of speedups; no choice is worth less than none if it stops a job.

    A running job that could shrink instead loses by a stop what a change of size would cost it, as
    it has to continue some day: otherwise any newcomer would take the GPUs of a like job.
    """
    kept = values[np.arange(len(values)), jobs.current.astype(int)]
    stops = np.where(jobs.running & jobs.shrinks, 1 - (1 - restart_s / horizon_s) ** 0.5, 0.0)
    values[:, 0] -= stops * kept
    return values


def _unless_kept(jobs: Jobs, speedups: Matrix, factor: Vector) -> Matrix:
    """Speedups times a factor of each job, except at the job's present size."""
    kept = np.arange(speedups.shape[1]) == jobs.current[:, None]
    return np.where(kept, speedups, speedups * factor[:, None])
