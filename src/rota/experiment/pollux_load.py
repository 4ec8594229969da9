"""Completion times at half to twice the load, by what a policy is told (Pollux, OSDI 2021).

The published workloads of another load are other draws from the same hours of the same log: 80, 240
and 320 jobs instead of 160. Here a seed draws them from the four workloads of ``pollux-jct``: a
half of each, or each with a half or all of the next. So our figures and the published ones, means
over eight workloads, are of different jobs, and what is judged is our policies against Pollux as
published on the same jobs: at no load and with no seed may they be slower on average, or restart a
job more than three times. Rules and variants are those of ``pollux-jct``.
"""

from functools import partial
from pathlib import Path
from random import Random

from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.pollux import (
    AS_PUBLISHED,
    OPTIMUS_ORACLE,
    TIRESIAS,
    Runs,
    Subject,
    Variant,
    average_jct_s,
    p99_jct_s,
    restarts_per_job,
    run_all,
    settings_of,
)
from rota.experiment.runs.pollux_jobs import WORKLOADS, jittered, jobs_of, require
from rota.workload.trace import Trace

NAME = "pollux-load"
SEEDS = [1, 2, 3]
LOADS = (0.5, 1.0, 1.5, 2.0)
BASELINE = "Pollux as published"
VARIANTS = {
    "Tiresias": TIRESIAS,
    "Optimus+Oracle": OPTIMUS_ORACLE,
    BASELINE: AS_PUBLISHED,
    "A + label": Variant("pollux"),
    "B + label": Variant("pollux", {"objective": "length"}),
}
JUDGED = ("A + label", "B + label")
# Average JCT by load, s, the mean over the eight workloads of each.
PUBLISHED_S = {
    "Tiresias": (2091.0, 4038.0, 6182.0, 10_040.0),
    "Optimus+Oracle": (2395.0, 5682.0, 7235.0, 9721.0),
    BASELINE: (1534.0, 2751.0, 3685.0, 5289.0),
}
NO_SLOWER = (0.0, 1.0)
FEW_RESTARTS = (0.0, 3.0)  # a job


def run(data: Path | None = None) -> Outcome:
    """Simulate every variant at every load. Raises DataMissingError."""
    data = require(data)
    figures = []
    for at, load in enumerate(LOADS):
        draws = [partial(at_load, data=data, number=number, load=load) for number in WORKLOADS]
        subjects = {
            label: [Subject(data, variant, jobs) for jobs in draws]
            for label, variant in VARIANTS.items()
        }
        runs = run_all(subjects, SEEDS)
        published = {label: values[at] for label, values in PUBLISHED_S.items()}
        figures += figures_at(load, runs, published)
    settings = settings_of(data) | {
        "loads": list(LOADS),
        "variants": {label: variant.as_list() for label, variant in VARIANTS.items()},
        "baseline": BASELINE,
    }
    return Outcome(NAME, SEEDS, settings, figures)


def at_load(seed: int, data: Path, number: int, load: float) -> Trace:
    """The jobs of a workload at ``load`` times the published load, in the same hours; at most 2.

    The published loads were drawn anew from the same hours of the same log. Here, jobs of the next
    workload are added for a higher load, and jobs are left out for a lower one.
    """
    jobs = jobs_of(data, number)
    if load == 1:
        return jittered(jobs, seed)
    chance = Random(f"load {load} {seed}")
    next_one = jobs_of(data, WORKLOADS[(WORKLOADS.index(number) + 1) % len(WORKLOADS)])
    pool = jobs.jobs if load < 1 else next_one.jobs
    drawn = chance.sample(pool, round(len(pool) * (load if load < 1 else load - 1)))
    name = f"{jobs.name} at load {load:g}"
    if load < 1:
        return jittered(Trace(drawn, name), seed)
    more = [spec._replace(job_id=f"{spec.job_id} of {next_one.name}") for spec in drawn]
    return jittered(Trace([*jobs, *more], name), seed)


def figures_at(
    load: float, runs: dict[str, list[Runs]], published: dict[str, float]
) -> list[Figure]:
    """Figures of each variant at one load."""
    base = [average_jct_s(each) for each in runs[BASELINE]]
    figures = []
    for label, ours in runs.items():
        where = f"load {load:g}: {{}}, {label}".format
        averages = [average_jct_s(each) for each in ours]
        there_s = published.get(label, published[BASELINE])
        figures.append(
            over_seeds(where("average JCT"), "s", averages, published=there_s, baseline=base)
        )
        if label in JUDGED:
            over = ratios(averages, base)
            name = where("average JCT over Pollux as published")
            figures.append(over_seeds(name, "times", over, bounds=NO_SLOWER, every=True))
        figures.append(over_seeds(where("p99 of JCT"), "s", [p99_jct_s(each) for each in ours]))
        again = [restarts_per_job(each) for each in ours]
        bounds = FEW_RESTARTS if label in JUDGED else None
        name = where("restarts a job")
        figures.append(over_seeds(name, "", again, bounds=bounds, every=True))
    return figures
