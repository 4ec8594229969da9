"""Nodes rented by the utility of their GPUs, against a cluster of fixed size (Pollux, OSDI 2021).

Section 4.2.2 of the paper keeps the utility of a cluster's GPUs, the sum of the jobs' speedups over
one GPU divided by the GPUs, within a band, and its section on the cloud trains one large model on
as many nodes as it uses well at each stage. Both are done here with measured profiles: four
published workloads of 160 jobs, as they are and with arrivals four times as far apart, on 1 to 16
nodes of 4 T4 GPUs against 16 all the time; and ImageNet alone on 1 to 16 nodes, against every
number that does not change.

A node starts in two minutes, and is paid for from when it was asked for; a restart costs 30 s.
Policies decide whenever something happens, as a live controller does, and every minute. With
seeds other than 0 jobs come up to 30 s sooner or later. *In the band* is of the time in which there
was a number of nodes to choose: not of that in which utility was above the band with 16 nodes, or
below with one. The band is the published one.

The bounds were fixed after trials with two of the workloads: a fixed cluster may be no cheaper, and
at a quarter of the load it must cost a quarter more; jobs may take a quarter longer. ImageNet's
cost must be below that of a fixed number of nodes that takes as long.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.pollux import (
    RESTART_S,
    Runs,
    Subject,
    Variant,
    average_jct_s,
    profiles_of,
    restarts_per_job,
    run_all,
)
from rota.experiment.runs.pollux_jobs import JITTER_S, WORKLOADS, Draw, jittered, jobs_of, require
from rota.model.job import JobSpec
from rota.policy.information import information_of
from rota.policy.registry import create
from rota.sim.measured import consolidated
from rota.workload.measured import Batch
from rota.workload.trace import Trace

NAME = "pollux-autoscale"
SEEDS = [0, 1, 2]
LOADS = (1.0, 0.25)
NODES, NODE_GPUS = 16, 4
CLUSTER = f"{NODES}x{NODE_GPUS}"
SIZES = ((NODES, NODES), (1, NODES))  # fixed, and rented
BAND = (0.35, 0.65)
SHRINK_AFTER_S = 300.0
START_S = 120.0
LARGE = "imagenet"
FIXED = (1, 2, 4, 6, 8, 10, 12, 14, 16)  # nodes
NO_DEARER = (0.0, 1.0)
CHEAPER = (0.0, 0.8)
LITTLE_LONGER = (0.0, 1.25)
IN_BAND = (0.5, 1.0)
HOUR_S = 3600.0


class Found(NamedTuple):
    """Means over several simulations."""

    average_jct_s: float
    node_hours: float
    utility: float
    in_band: float
    node_starts: float
    restarts: float  # a job


def run(data: Path | None = None) -> Outcome:
    """Simulate all of them. Raises DataMissingError."""
    data = require(data)
    figures = []
    for load in LOADS:
        draws = [partial(stretched, data=data, number=number, load=load) for number in WORKLOADS]
        subjects = {nodes: [on_nodes(data, nodes, jobs) for jobs in draws] for nodes in SIZES}
        runs = run_all(subjects, SEEDS)
        fixed, scaled = ([found(each) for each in runs[nodes]] for nodes in SIZES)
        figures += compared(f"load {load:g}", fixed, scaled, CHEAPER if load < 1 else NO_DEARER)
    figures += alone(data)
    return Outcome(NAME, SEEDS, _settings(data), figures)


def stretched(seed: int, data: Path, number: int, load: float) -> Trace:
    """The jobs of a workload, ``1 / load`` times as far apart."""
    jobs = jobs_of(data, number)
    moved = jobs.with_jobs(spec._replace(submit_s=spec.submit_s / load) for spec in jobs)
    return jittered(moved, seed)


def on_nodes(data: Path, nodes: tuple[int, int], jobs: Draw) -> Subject:
    """These jobs on so many nodes, the least and the most."""
    given = {
        "nodes": ",".join(map(str, nodes)),
        "utility": ",".join(map(str, BAND)),
        "shrink_after_s": str(SHRINK_AFTER_S),
    }
    return Subject(data, Variant("pollux", given), jobs, CLUSTER, node_start_s=START_S)


def large(seed: int) -> Trace:
    """One job of the large model, whatever the seed."""
    return Trace((JobSpec(LARGE, 1, 0.0, 1.0, model=LARGE),))


def found(runs: Runs) -> Found:
    """The means over these runs."""
    keys = ("node_hours", "avg_utility", "time_in_band", "node_starts")
    hours, utility, in_band, starts = (fmean(run.rented[key] for run in runs) for key in keys)
    average_s, again = average_jct_s(runs), restarts_per_job(runs)
    return Found(average_s, hours, utility, in_band, starts, again)


def compared(
    where: str, fixed: Sequence[Found], scaled: Sequence[Found], cost: tuple[float, float]
) -> list[Figure]:
    """Rented nodes beside as many as can be, means over the workloads, a value for each seed."""
    keys = {
        "node_hours": ("node-hours of a workload", ""),
        "average_jct_s": ("average JCT", "s"),
        "utility": ("average utility", ""),
        "in_band": ("time in the band", ""),
        "node_starts": ("nodes started", ""),
        "restarts": ("restarts a job", ""),
    }
    figures = []
    for key, (name, unit) in keys.items():
        ours = [getattr(each, key) for each in scaled]
        beside = [getattr(each, key) for each in fixed]
        bounds = IN_BAND if key == "in_band" else None
        name = f"{where}: {name}"
        figures.append(over_seeds(name, unit, ours, baseline=beside, bounds=bounds))
        if key in ("node_hours", "average_jct_s"):
            over = ratios(ours, beside)
            bounds = cost if key == "node_hours" else LITTLE_LONGER
            figures.append(over_seeds(f"{name}, over {NODES} nodes", "times", over, bounds=bounds))
    return figures


def alone(data: Path) -> list[Figure]:
    """One large model: its time and cost beside those of fixed numbers of nodes."""
    sizes = [(nodes, nodes) for nodes in FIXED]
    subjects = {nodes: [on_nodes(data, nodes, large)] for nodes in [*sizes, SIZES[1]]}
    measured = {nodes: found(each) for nodes, (each,) in run_all(subjects, [0]).items()}
    ours = measured.pop(SIZES[1])
    figures = []
    for (nodes, _), each in measured.items():
        where = f"{LARGE} alone, against {nodes} fixed"
        hours, beside = ours.average_jct_s / HOUR_S, each.average_jct_s / HOUR_S
        figures.append(Figure(f"{where}: JCT", "h", None, beside, hours))
        figures.append(Figure(f"{where}: node-hours", "", None, each.node_hours, ours.node_hours))
    curve = [(each.average_jct_s, each.node_hours) for each in measured.values()]
    over = ours.node_hours / as_long(curve, ours.average_jct_s)
    name = f"{LARGE} alone: cost over that of fixed nodes that take as long"
    figures.append(Figure(name, "times", None, None, over, *NO_DEARER))
    name, beside = f"{LARGE} alone: time in the band", measured[SIZES[0]].in_band
    figures.append(Figure(name, "", None, beside, ours.in_band, *IN_BAND))
    name = f"{LARGE} alone: utility of {NODES} nodes if it were by throughput"
    figures.append(Figure(name, "", None, None, throughput_utility(data)))
    return figures


def as_long(fixed: Sequence[tuple[float, float]], jct_s: float) -> float:
    """Cost of a fixed number of nodes that takes ``jct_s``, from (seconds, node-hours) of each.

    Interpolates linearly between the logarithms; beyond the ends, the cost is that of the end.
    """
    points = sorted((log(seconds), log(hours)) for seconds, hours in fixed)
    at = min(max(log(jct_s), points[0][0]), points[-1][0])
    for (left, low), (right, high) in pairwise(points):
        if at <= right:
            return exp(low + (high - low) * (at - left) / (right - left))
    return exp(points[-1][1])


def throughput_utility(data: Path) -> float:
    """Utility of ``LARGE`` on the most nodes if every sample taught as much as the first."""
    profile = profiles_of(data, frozenset([LARGE]))[LARGE]
    full = Batch(profile.most_per_gpu, 0)
    alone_s, together_s = (
        profile.step_s(consolidated(gpus), full) for gpus in (1, NODES * NODE_GPUS)
    )
    return alone_s / together_s


def _settings(data: Path) -> dict[str, Any]:
    return {
        "data": str(data),
        "workloads": list(WORKLOADS),
        "loads": list(LOADS),
        "cluster": CLUSTER,
        "band": list(BAND),
        "shrink_after_s": SHRINK_AFTER_S,
        "node_start_s": START_S,
        "restart_s": RESTART_S,
        "jitter_s": JITTER_S,
        "fixed": list(FIXED),
        "information": information_of(create("pollux")),
    }
