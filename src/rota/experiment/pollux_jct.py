"""Completion times under goodput-driven sizes, by what the policy is told (Pollux, OSDI 2021).

Four of the eight published workloads, 160 jobs each on 16 nodes of 4 T4 GPUs, play the published
profiles under the rules of the published simulator: a restart costs 30 s, and a variant that
*ticks* decides every 60 s alone; the others also when a job comes or ends, as a live controller
does. Tiresias and Optimus with an oracle have the sizes and batches that users tuned. Seed 0 is the
workloads as they are; with others jobs come up to 30 s sooner or later. Published are the averages
of the same four workloads in the simulator, which differ from the testbed's by their jobs.

The bounds were fixed beforehand, and hold for every seed. They are those that a study of the
allocator found to be within reach with the same information; no p99 may be above that of published
Pollux over all its eight workloads. The other four are run as well if the data has them, and
reported. What the policy is told of lengths stands beside each variant, among the settings.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rota.experiment.base import Figure, Outcome, over_seeds
from rota.experiment.runs.pollux import (
    AS_PUBLISHED,
    OPTIMUS_ORACLE,
    TIRESIAS,
    Runs,
    Subject,
    Variant,
    average_jct_s,
    makespan_s,
    p99_jct_s,
    restarts_per_job,
    run_all,
    settings_of,
)
from rota.experiment.runs.pollux_jobs import WORKLOADS, others, require, workloads

NAME = "pollux-jct"
SEEDS = [0, 1, 2, 3]
HOUR_S = 3600.0
BY_LENGTH = {"objective": "length"}
BASELINE = "Pollux as published"
VARIANTS = {
    "Tiresias": TIRESIAS,
    "Optimus+Oracle": OPTIMUS_ORACLE,
    BASELINE: AS_PUBLISHED,
    "A, ticks": Variant("pollux", {"fits": "job"}, ticks=True),
    "A + label, ticks": Variant("pollux", ticks=True),
    "A + label": Variant("pollux"),
    "B + label": Variant("pollux", BY_LENGTH),
    "B + label, lengths wrong": Variant("pollux", BY_LENGTH, length_error=0.5),
}
# Variant -> the largest mean average JCT that is within its bounds, and one to aim at, in seconds.
BOUNDS_S = {
    "A, ticks": (2430.0, None),
    "A + label": (2250.0, 2180.0),
    "B + label": (2100.0, 2030.0),
    "B + label, lengths wrong": (2250.0, None),
}
MOST_P99_S = 46_026.0
MOST_RESTARTS = 3.0  # a job
MOST_CPU_S = 3.0  # a simulation


class Published(NamedTuple):
    """The simulator's average JCT by workload, s; the testbed's average, p99 and makespan, h."""

    average_jct_s: tuple[float, ...]
    testbed_h: tuple[float, float, float]


PUBLISHED = {
    "Tiresias": Published((2473.65, 5144.9625, 3876.25625, 3280.2625), (1.2, 15.0, 24.0)),
    "Optimus+Oracle": Published((4087.0625, 6913.875, 3944.00625, 5967.75), (1.5, 15.0, 20.0)),
    BASELINE: Published((2089.0, 3323.0, 2188.0, 2721.0), (0.76, 11.0, 16.0)),
}
PUBLISHED_ON_OTHERS_S = {5: 2674.0, 6: 2446.0, 7: 3616.0, 8: 2952.0}  # of Pollux


def run(data: Path | None = None) -> Outcome:
    """Simulate every variant on every workload and seed. Raises DataMissingError."""
    data = require(data)
    runs = _runs(data, WORKLOADS)
    figures = [figure for label in VARIANTS for figure in figures_of(label, runs)]
    figures += [figure for label in VARIANTS for figure in by_workload(label, runs)]
    if more := others(data):
        runs = _runs(data, more)
        figures += [on_others(label, runs, more) for label in VARIANTS]
    settings = settings_of(data) | {
        "other workloads": more,
        "variants": {label: variant.as_list() for label, variant in VARIANTS.items()},
        "to aim at, s": {label: aim for label, (_, aim) in BOUNDS_S.items() if aim is not None},
        "baseline": BASELINE,
    }
    return Outcome(NAME, SEEDS, settings, figures)


def _runs(data: Path, numbers: Sequence[int]) -> dict[str, list[Runs]]:
    """Runs of these workloads, by variant and seed."""
    return run_all(
        {
            label: [Subject(data, variant, jobs) for jobs in workloads(data, numbers)]
            for label, variant in VARIANTS.items()
        },
        SEEDS,
    )


def figures_of(label: str, runs: dict[str, list[Runs]]) -> list[Figure]:
    """Figures of one variant over all workloads, beside Pollux as published."""
    ours, beside = runs[label], runs[BASELINE]
    published = PUBLISHED.get(label, PUBLISHED[BASELINE])
    average_h, p99_h, makespan_h = published.testbed_h
    bound = BOUNDS_S.get(label)
    return [
        over_seeds(
            f"average JCT, {label}",
            "s",
            [average_jct_s(each) for each in ours],
            published=fmean(published.average_jct_s),
            baseline=[average_jct_s(each) for each in beside],
            bounds=None if bound is None else (0.0, bound[0]),
            every=True,
        ),
        over_seeds(
            f"average JCT, {label}, testbed",
            "h",
            [average_jct_s(each) / HOUR_S for each in ours],
            published=average_h,
        ),
        over_seeds(
            f"p99 of JCT, {label}",
            "h",
            [p99_jct_s(each) / HOUR_S for each in ours],
            published=p99_h,
            baseline=[p99_jct_s(each) / HOUR_S for each in beside],
            bounds=None if bound is None else (0.0, MOST_P99_S / HOUR_S),
            every=True,
        ),
        over_seeds(
            f"makespan, {label}",
            "h",
            [makespan_s(each) / HOUR_S for each in ours],
            published=makespan_h,
            baseline=[makespan_s(each) / HOUR_S for each in beside],
        ),
        over_seeds(
            f"restarts a job, {label}",
            "",
            [restarts_per_job(each) for each in ours],
            baseline=[restarts_per_job(each) for each in beside],
            bounds=None if bound is None else (0.0, MOST_RESTARTS),
            every=True,
        ),
        over_seeds(
            f"CPU time of a simulation, {label}",
            "s",
            [fmean(run.cpu_s for run in each) for each in ours],
            bounds=None if bound is None else (0.0, MOST_CPU_S),
        ),
    ]


def by_workload(label: str, runs: dict[str, list[Runs]]) -> list[Figure]:
    """The average of each workload."""
    published = PUBLISHED.get(label, PUBLISHED[BASELINE]).average_jct_s
    return [
        over_seeds(
            f"workload {number}: average JCT, {label}",
            "s",
            [each[at].average_jct_s for each in runs[label]],
            published=published[at],
            baseline=[each[at].average_jct_s for each in runs[BASELINE]],
        )
        for at, number in enumerate(WORKLOADS)
    ]


def on_others(label: str, runs: dict[str, list[Runs]], numbers: list[int]) -> Figure:
    """The mean over workloads that no bound is about."""
    return over_seeds(
        f"workloads {', '.join(map(str, numbers))}: average JCT, {label}",
        "s",
        [average_jct_s(each) for each in runs[label]],
        published=fmean(PUBLISHED_ON_OTHERS_S[number] for number in numbers),
        baseline=[average_jct_s(each) for each in runs[BASELINE]],
    )
