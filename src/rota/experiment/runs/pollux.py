"""Jobs that play Pollux' measured profiles, under the rules of its simulator (OSDI 2021, 5.3).

The data is a folder with ``pollux/profiles`` and ``pollux/workloads/workload-1.csv`` to ``-4.csv``,
as AdaptDL's branch osdi21-artifact has them.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from rota.experiment.base import for_each_seed
from rota.experiment.runs.pollux_jobs import JITTER_S, WORKLOADS, misdeclared
from rota.model.cluster import parse_cluster
from rota.policy.information import information_of
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.report.statistic import percentile
from rota.sim.machine import restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.rented import RentedNodes
from rota.sim.simulation import Simulation
from rota.workload.measured import Measured
from rota.workload.measured_files import read_profiles
from rota.workload.trace import Trace

CLUSTER = "16x4"
INTERVAL_S, RESTART_S = 60.0, 30.0
Key = TypeVar("Key")
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
    {"thresholds": "57600", "promote_knob": "0", "within": "fifo", "placement": "emptiest"}
    | {"min_run_time_s": "0"},
    ticks=True,
)
OPTIMUS_ORACLE = Variant("optimus-oracle", {"remaining": "whole-epochs"}, ticks=True)
AS_PUBLISHED = Variant("pollux", {"objective": "pollux", "fits": "job"}, ticks=True)


class Subject(NamedTuple):
    """One simulation, but for its seed: a variant, and the jobs that ``jobs`` draws by seed.

    ``links`` is what jobs on several nodes lose beside each other, as in
    :class:`~rota.predict.interference.Interference`; if it is None they lose nothing, and nobody
    looks how long they were. With ``node_start_s`` the nodes are there to be rented.
    """

    data: Path
    variant: Variant
    jobs: Callable[[int], Trace]
    cluster: str = CLUSTER
    links: float | None = None
    node_start_s: float | None = None


class Run(NamedTuple):
    """Result of one simulation. CPU time includes that of the policy.

    ``beside`` is the part of the time of jobs on several nodes during which another such job was on
    one of their nodes.
    """

    jct_s: list[float]
    makespan_s: float
    restarts: int
    cpu_s: float
    beside: float = 0.0
    rented: Mapping[str, float] = {}

    @property
    def average_jct_s(self) -> float:
        """The mean job completion time."""
        return fmean(self.jct_s)


# Runs of one variant with one seed, one for each workload.
Runs = list[Run]


def settings_of(data: Path, cluster: str = CLUSTER) -> dict[str, Any]:
    """Settings that experiments on the published workloads have in common."""
    return {
        "data": str(data),
        "workloads": list(WORKLOADS),
        "cluster": cluster,
        "restart_s": RESTART_S,
        "interval_s": INTERVAL_S,
        "jitter_s": JITTER_S,
    }


def p99_jct_s(runs: Runs) -> float:
    """The 99th percentile of the completion times of all jobs together, by nearest rank."""
    found = percentile(sorted(jct_s for run in runs for jct_s in run.jct_s), 99)
    assert found is not None
    return found


def average_jct_s(runs: Runs) -> float:
    """The mean over workloads of the average completion time, as it is published."""
    return fmean(run.average_jct_s for run in runs)


def makespan_s(runs: Runs) -> float:
    """The mean over workloads of the time from the first arrival to the last end."""
    return fmean(run.makespan_s for run in runs)


def restarts_per_job(runs: Runs) -> float:
    """Number of restarts per job; the first start does not count."""
    return sum(run.restarts for run in runs) / sum(len(run.jct_s) for run in runs)


def run_all(
    subjects: Mapping[Key, Sequence[Subject]], seeds: Sequence[int]
) -> dict[Key, list[Runs]]:
    """Runs of each key's subjects in their order, by key and seed."""
    each = {(key, at): one for key, many in subjects.items() for at, one in enumerate(many)}
    most = max(len(one.jobs(seeds[0])) for one in each.values())
    found = for_each_seed(measure, each, seeds, num_jobs=most * AS_JOBS)
    return {
        key: [[found[key, at][seed] for at in range(len(many))] for seed in range(len(seeds))]
        for key, many in subjects.items()
    }


def measure(subject: Subject, seed: int) -> Run:
    """Simulate the jobs of one seed."""
    variant, jobs = subject.variant, subject.jobs(seed)
    profiles = profiles_of(subject.data, frozenset(spec.model for spec in jobs))
    rented = None if subject.node_start_s is None else RentedNodes(subject.node_start_s)
    simulation = Simulation(
        misdeclared(played(jobs, profiles), variant.length_error, seed),
        parse_cluster(subject.cluster),
        create(variant.policy, variant.settings),
        restarts(RESTART_S),
        speeds=MeasuredSpeeds(profiles),
        interval_s=INTERVAL_S if variant.ticks else None,
        interference=None if subject.links is None else Interference(links=subject.links),
        cloud=rented,
    )
    began_s = time.process_time()
    beside = 0.0 if subject.links is None else _beside_to_end(simulation)
    state, _ = simulation.run()
    cpu_s = time.process_time() - began_s
    jct_s = [end - begin for end, begin in zip(state.finish_s, state.submit_s, strict=True)]
    lasted_s = max(state.finish_s) - min(state.submit_s)
    told = {} if rented is None else {name: at or 0.0 for name, at in rented.figures().items()}
    return Run(jct_s, lasted_s, sum(state.restarts), cpu_s, beside, told)


@lru_cache(maxsize=8)
def profiles_of(data: Path, applications: frozenset[str]) -> dict[str, Measured]:
    """The measured profiles of these applications."""
    return read_profiles(data / "pollux" / "profiles", applications)


def _beside_to_end(simulation: Simulation) -> float:
    """Run to the end; the part of their time that jobs on several nodes were beside each other."""
    state, total_s, beside_s, before_s = simulation.state, 0.0, 0.0, 0.0
    spread: list[tuple[int, ...]] = []
    while simulation.step():
        now_s = simulation.engine.now_s
        crowded = _crowded(spread)
        total_s += (now_s - before_s) * len(spread)
        beside_s += (now_s - before_s) * sum(not crowded.isdisjoint(nodes) for nodes in spread)
        held = (state.held[row] for row in state.active)
        spread = [each.nodes() for each in held if each is not None and len(each.parts) > 1]
        before_s = now_s
    return beside_s / total_s if total_s else 0.0


def _crowded(spread: list[tuple[int, ...]]) -> set[int]:
    """The nodes on which there are several of these jobs."""
    jobs = Counter(node for nodes in spread for node in nodes)
    return {node for node, number in jobs.items() if number > 1}
