"""Pollux on GPUs of two types: by how fast each job is on each, and without a look at that.

Sia (Jayaram Subramanya et al., SOSP 2023) showed that goodput by GPU type is what elastic jobs on a
mixed cluster need. Its simulations can't be repeated here; what is compared is the same policy on
the same jobs, four of Pollux' published workloads of 160 jobs each: with ``types=on`` it learns how
much faster a kind is on the fast type, of which it knows nothing at first; with ``types=off`` all
GPUs count alike, though a job still gets GPUs of one type only, so that no slow one holds up fast
ones.

How much faster jobs are on an A100 than on a T4 is invented from published measurements: seconds of
a step on one GPU, in the profiles of Pollux (T4) over those of Sia (DGX A100; repository
siasosp23/artifacts, ``sia-simulator/traces/*/placements-dgx-ext.csv``), at the largest batch of a
GPU that both were measured with. Here whole steps are so many times as fast, whatever the batch.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from rota.experiment.base import Figure, Outcome
from rota.experiment.runs.pollux_workloads import (
    INTERVAL_S,
    RESTART_S,
    WORKLOADS,
    WORTH_JOBS,
    Run,
    play,
    require,
)
from rota.experiment.runs.pool import over_cores
from rota.policy.information import information_of
from rota.policy.registry import create
from rota.workload.trace import Trace

NAME = "pollux-types"
CLUSTER = "12x4:t4,4x4:a100"
A100_OVER_T4 = {
    "bert": 5.24,  # 0.8553 s and 0.1631 s for 11 samples
    "cifar10": 5.90,  # 0.7021 s for 1024, 0.1190 s for 1025
    "deepspeech2": 1.67,  # 2.541 s for 80, 1.520 s for 81
    "imagenet": 3.13,  # 0.7624 s and 0.2438 s for 163
    "ncf": 1.99,  # 0.02132 s and 0.01072 s for 32768
    "yolov3": 1.08,  # 0.3261 s and 0.3016 s for 8
}
BOUNDS = (0.4, 0.95)  # of the average completion time with types over that without
Runs = Mapping[str, list[Run]]


def run(data: Path | None = None) -> Outcome:
    """Play the workloads of ``data``. Raises DataMissingError."""
    folder = require(data)
    calls = [(folder, number, types) for types in ("off", "on") for number in WORKLOADS]
    found = iter(over_cores(measure, calls, num_jobs=WORTH_JOBS))
    runs = {types: [next(found) for _ in WORKLOADS] for types in ("off", "on")}
    settings: dict[str, Any] = {"cluster": CLUSTER, "workloads": WORKLOADS}
    settings |= {"a100_over_t4": A100_OVER_T4, "interval_s": INTERVAL_S, "restart_s": RESTART_S}
    settings["information"] = information_of(create("pollux"))
    return Outcome(NAME, [], settings, figures(runs))


def measure(data: Path, number: int, types: str) -> Run:
    """One workload on the mixed cluster, with types or without."""
    return play(data, number, {"types": types}, cluster=CLUSTER, changed=with_speeds)


def with_speeds(trace: Trace) -> Trace:
    """The same jobs, each as fast on the two types as its application is."""
    return trace.with_jobs(
        spec._replace(speeds=(("t4", 1.0), ("a100", A100_OVER_T4[spec.model]))) for spec in trace
    )


def figures(runs: Runs) -> list[Figure]:
    """What came out, by setting of ``types`` a list of workloads each."""
    blind, aware = runs["off"], runs["on"]
    found = [
        Figure(f"workload {number}: average JCT", "s", None, before.avg_jct_s, after.avg_jct_s)
        for number, before, after in zip(WORKLOADS, blind, aware, strict=True)
    ]
    before_s, after_s = (fmean(run.avg_jct_s for run in each) for each in (blind, aware))
    last_s, first_s = (fmean(run.makespan_s for run in each) for each in (blind, aware))
    return [
        *found,
        Figure("average JCT", "s", None, before_s, after_s),
        Figure("average JCT over type-blind", "", None, 1.0, after_s / before_s, *BOUNDS),
        Figure("makespan", "s", None, last_s, first_s),
    ]
