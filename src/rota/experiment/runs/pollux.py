"""Pollux' workloads on its measured profiles, under the rules of its simulator (OSDI 2021, 5.3).

The data is a folder with ``pollux/profiles`` and ``pollux/workloads/workload-1.csv`` to ``-4.csv``,
as AdaptDL's branch osdi21-artifact has them.
"""

import time
from collections.abc import Sequence
from functools import lru_cache, partial
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from rota.errors import DataMissingError
from rota.experiment.base import for_each_seed
from rota.model.cluster import parse_cluster
from rota.policy.information import information_of
from rota.policy.registry import create
from rota.report.statistic import percentile
from rota.sim.machine import restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.simulation import simulate
from rota.workload.measured import Measured
from rota.workload.measured_files import read_profiles
from rota.workload.readers import read_trace
from rota.workload.trace import Trace

CLUSTER = "16x4"
INTERVAL_S, RESTART_S = 60.0, 30.0
WORKLOADS = (1, 2, 3, 4)
OTHERS = (5, 6, 7, 8)  # which the data may have as well
JITTER_S = 30.0  # half of the interval, so that no arrival keeps its place in it
AS_JOBS = 15  # a job here takes about as long as simulating so many that play no profile


class Variant(NamedTuple):
    """A policy with its settings.

    With ``ticks`` it decides at multiples of the interval alone, as the published ones do, else as
    a live controller. ``length_error`` is the sigma of the log-normal factor by which users are
    wrong about the number of epochs.
    """

    policy: str
    settings: dict[str, str] = {}
    ticks: bool = False
    length_error: float = 0.0

    def as_list(self) -> list[Any]:
        """The policy, its settings, when it decides, what it is told of lengths."""
        when = f"every {INTERVAL_S:g} s" if self.ticks else "at events"
        told = information_of(create(self.policy, self.settings))
        if self.length_error:
            told += f", wrong by a log-normal factor of sigma {self.length_error:g}"
        return [self.policy, self.settings, when, told]


TIRESIAS = Variant(
    "tiresias",
    {"thresholds": "57600", "promote_knob": "0", "within": "fifo", "placement": "emptiest"},
    ticks=True,
)
OPTIMUS_ORACLE = Variant("optimus-oracle", {"remaining": "whole-epochs"}, ticks=True)
AS_PUBLISHED = Variant("pollux", {"objective": "pollux", "fits": "job"}, ticks=True)


class Run(NamedTuple):
    """What one simulation gave. CPU time is that of the simulation, the policy's included."""

    jct_s: list[float]
    makespan_s: float
    restarts: int
    cpu_s: float

    @property
    def average_jct_s(self) -> float:
        """The mean job completion time."""
        return fmean(self.jct_s)


# Runs of one variant with one seed, one for each workload.
Runs = list[Run]


def p99_jct_s(runs: Runs) -> float:
    """The 99th percentile of the completion times of all jobs together, by nearest rank."""
    found = percentile(sorted(jct_s for run in runs for jct_s in run.jct_s), 99)
    assert found is not None
    return found


def average_jct_s(runs: Runs) -> float:
    """The mean over workloads of the average completion time, as it is published."""
    return fmean(run.average_jct_s for run in runs)


def restarts_per_job(runs: Runs) -> float:
    """How often a job started again, after its first start."""
    return sum(run.restarts for run in runs) / sum(len(run.jct_s) for run in runs)


def require(data: Path | None) -> Path:
    """The folder, which has what is needed. Raises DataMissingError."""
    if data is None:
        raise DataMissingError(
            "it needs the published profiles and workloads; give the folder in which "
            "pollux/profiles and pollux/workloads lie as --data"
        )
    needed = [data / "pollux" / "profiles", *(workload(data, number) for number in WORKLOADS)]
    absent = [str(path) for path in needed if not path.exists()]
    if absent:
        raise DataMissingError(
            f"there is no {absent[0]}; give the folder in which pollux/profiles and "
            "pollux/workloads lie as --data"
        )
    return data


def workload(data: Path, number: int) -> Path:
    """The file of a workload, from 1."""
    return data / "pollux" / "workloads" / f"workload-{number}.csv"


def others(data: Path) -> list[int]:
    """The workloads that the data has besides those that it must have."""
    return [number for number in OTHERS if workload(data, number).exists()]


def run_all(
    data: Path,
    variants: dict[str, Variant],
    seeds: list[int],
    *,
    workloads: Sequence[int] = WORKLOADS,
    load: float = 1.0,
) -> dict[str, list[Runs]]:
    """By variant, for each seed, the runs of the workloads in their order."""
    subjects = {
        (label, number): (variant, number)
        for label, variant in variants.items()
        for number in workloads
    }
    size = len(_jobs(data, 1)) * load
    found = for_each_seed(
        partial(run_one, data=data, load=load), subjects, seeds, num_jobs=round(size * AS_JOBS)
    )
    return {
        label: [[found[label, number][at] for number in workloads] for at in range(len(seeds))]
        for label in variants
    }


def run_one(subject: tuple[Variant, int], seed: int, data: Path, load: float) -> Run:
    """Simulate a variant on a workload."""
    variant, number = subject
    profiles = _profiles(data)
    jobs = played(jittered(at_load(data, number, load, seed), seed), profiles)
    jobs = misdeclared(jobs, variant.length_error, seed)
    speeds = MeasuredSpeeds(profiles)
    nodes, policy = parse_cluster(CLUSTER), create(variant.policy, variant.settings)
    interval_s = INTERVAL_S if variant.ticks else None
    began_s = time.process_time()
    state, _ = simulate(
        jobs, nodes, policy, restarts(RESTART_S), speeds=speeds, interval_s=interval_s
    )
    cpu_s = time.process_time() - began_s
    jct_s = [end - begin for end, begin in zip(state.finish_s, state.submit_s, strict=True)]
    makespan_s = max(state.finish_s) - min(state.submit_s)
    return Run(jct_s, makespan_s, sum(state.restarts), cpu_s)


def jittered(jobs: Trace, seed: int) -> Trace:
    """The jobs, each submitted up to JITTER_S sooner or later; with seed 0 as they were."""
    if seed == 0:
        return jobs
    chance = Random(f"jitter {seed}")
    moved = [
        spec._replace(submit_s=max(0.0, spec.submit_s + chance.uniform(-JITTER_S, JITTER_S)))
        for spec in jobs
    ]
    return jobs.with_jobs(moved)


def misdeclared(jobs: Trace, sigma: float, seed: int) -> Trace:
    """The jobs, whose users declare epochs that are wrong by a log-normal factor."""
    if not sigma:
        return jobs
    chance = Random(f"length {seed}")
    return jobs.with_jobs(
        spec._replace(epochs=(spec.epochs or 0.0) * exp(chance.gauss(0.0, sigma))) for spec in jobs
    )


def at_load(data: Path, number: int, load: float, seed: int) -> Trace:
    """As many times the jobs of a workload in the same hours, up to twice.

    The published ones were drawn anew, as many as it takes, from the same hours of the same log.
    Here what is missing is drawn from the workload that follows, and what is too much is left out.
    """
    jobs = _jobs(data, number)
    if load == 1:
        return jobs
    chance = Random(f"load {load} {seed}")
    next_one = _jobs(data, WORKLOADS[(WORKLOADS.index(number) + 1) % len(WORKLOADS)])
    pool = jobs.jobs if load < 1 else next_one.jobs
    drawn = chance.sample(pool, round(len(pool) * (load if load < 1 else load - 1)))
    if load < 1:
        return Trace(drawn, f"{jobs.name} at load {load:g}")
    more = [spec._replace(job_id=f"{spec.job_id} of {next_one.name}") for spec in drawn]
    return Trace([*jobs, *more], f"{jobs.name} at load {load:g}")


@lru_cache(maxsize=8)
def _jobs(data: Path, number: int) -> Trace:
    return read_trace(str(workload(data, number)))


@lru_cache(maxsize=1)
def _profiles(data: Path) -> dict[str, Measured]:
    there = [*WORKLOADS, *others(data)]
    applications = {spec.model for number in there for spec in _jobs(data, number)}
    return read_profiles(data / "pollux" / "profiles", applications)
