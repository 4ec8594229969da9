"""Pollux' published workloads, played under a policy by the rules of its simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rota.errors import DataMissingError
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.machine import restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.simulation import Simulation
from rota.workload.measured_files import read_profiles
from rota.workload.readers import read_trace
from rota.workload.trace import Trace

if TYPE_CHECKING:
    from rota.workload.measured import Measured

WORKLOADS = (1, 2, 3, 4)
CLUSTER = "16x4"
INTERVAL_S, RESTART_S = 60.0, 30.0
WORTH_JOBS = 5000  # a workload's 160 jobs cost as much as so many of a trace without profiles


class Run(NamedTuple):
    """One workload: the mean completion time of its jobs, and when the last one ended.

    ``beside`` is the part of their time that jobs on several nodes had another such job on one.
    """

    avg_jct_s: float
    makespan_s: float
    beside: float


def require(data: Path | None) -> Path:
    """The folder with the workloads and profiles. Raises DataMissingError if there is none."""
    lacking = None if data is None else next((p for p in _needed(data) if not p.exists()), None)
    if data is None or lacking is not None:
        what = "data is not given" if lacking is None else f"there is no {lacking}"
        raise DataMissingError(
            f"{what}; give the folder that has pollux/workloads/workload-1.csv to -4.csv and "
            "pollux/profiles as --data"
        )
    return data


def _needed(data: Path) -> list[Path]:
    workloads = [_workload(data, number) for number in WORKLOADS]
    return [data / "pollux" / "profiles", *workloads]


def _workload(data: Path, number: int) -> Path:
    return data / "pollux" / "workloads" / f"workload-{number}.csv"


def play(
    data: Path,
    number: int,
    settings: Mapping[str, str],
    *,
    cluster: str = CLUSTER,
    links: float = 0.0,
    changed: Callable[[Trace], Trace] = lambda trace: trace,
) -> Run:
    """One of the workloads under ``pollux`` with these settings.

    ``links`` as in :class:`~rota.predict.interference.Interference`; ``changed`` makes other jobs
    of those of the workload.
    """
    trace = read_trace(_workload(data, number))
    profiles = _profiles(data / "pollux" / "profiles", frozenset(spec.model for spec in trace))
    simulation = Simulation(
        played(changed(trace), profiles),
        parse_cluster(cluster),
        create("pollux", dict(settings)),
        restarts(RESTART_S),
        speeds=MeasuredSpeeds(profiles),
        interval_s=INTERVAL_S,
        interference=Interference(links=links),
    )
    beside = _to_end(simulation)
    state = simulation.state
    times = [end - begin for end, begin in zip(state.finish_s, state.submit_s, strict=True)]
    return Run(sum(times) / len(times), max(state.finish_s) - min(state.submit_s), beside)


@lru_cache(maxsize=1)
def _profiles(folder: Path, applications: frozenset[str]) -> dict[str, Measured]:
    return read_profiles(folder, applications)


def _to_end(simulation: Simulation) -> float:
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
