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

Seed 0 is the workloads as they are; with others jobs come up to 30 s sooner or later. The bounds
hold for every seed.
"""

from functools import partial
from pathlib import Path

from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.pollux import (
    Runs,
    Subject,
    Variant,
    average_jct_s,
    makespan_s,
    run_all,
    settings_of,
)
from rota.experiment.runs.pollux_jobs import WORKLOADS, require, workload
from rota.workload.trace import Trace

NAME = "pollux-types"
SEEDS = [0, 1, 2]
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
VARIANTS = {types: Variant("pollux", {"types": types}, ticks=True) for types in ("off", "on")}


def run(data: Path | None = None) -> Outcome:
    """Play the workloads of ``data``. Raises DataMissingError."""
    data = require(data)
    draws = [partial(with_speeds, data=data, number=number) for number in WORKLOADS]
    subjects = {
        types: [Subject(data, variant, jobs, CLUSTER) for jobs in draws]
        for types, variant in VARIANTS.items()
    }
    settings = settings_of(data, CLUSTER) | {
        "a100_over_t4": A100_OVER_T4,
        "variants": {types: variant.as_list() for types, variant in VARIANTS.items()},
    }
    return Outcome(NAME, SEEDS, settings, figures(run_all(subjects, SEEDS)))


def with_speeds(seed: int, data: Path, number: int) -> Trace:
    """The jobs of a workload, each as fast on the two types as its application is."""
    jobs = workload(seed, data, number)
    return jobs.with_jobs(
        spec._replace(speeds=(("t4", 1.0), ("a100", A100_OVER_T4[spec.model]))) for spec in jobs
    )


def figures(runs: dict[str, list[Runs]]) -> list[Figure]:
    """Figures of the runs; ``runs`` has, for each setting of ``types`` and seed, the workloads."""
    blind, aware = runs["off"], runs["on"]
    found = [
        over_seeds(
            f"workload {number}: average JCT",
            "s",
            [each[at].average_jct_s for each in aware],
            baseline=[each[at].average_jct_s for each in blind],
        )
        for at, number in enumerate(WORKLOADS)
    ]
    before_s, after_s = ([average_jct_s(each) for each in one] for one in (blind, aware))
    over = ratios(after_s, before_s)
    last_s, first_s = ([makespan_s(each) for each in one] for one in (blind, aware))
    return [
        *found,
        over_seeds("average JCT", "s", after_s, baseline=before_s),
        over_seeds("average JCT over type-blind", "", over, bounds=BOUNDS, every=True),
        over_seeds("makespan", "s", first_s, baseline=last_s),
    ]
