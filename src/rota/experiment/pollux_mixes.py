"""Completion times on other mixes of jobs than the published one (after Pollux, OSDI 2021).

Settings that were chosen on one mix of jobs may fit that mix alone. Here jobs are drawn anew: each
is one of the published ones, but every mix has its own share of each application, and they come
anywhere in the span, or in sweeps of 5 to 20 equal jobs within a minute, or in the bursts and the
mix of a synthetic trace. The span is such that users ask for as many GPU-hours an hour as in the
four published workloads. Rules and variants are those of ``pollux-jct``, whose figures are of other
jobs.

Judged are our policies against Pollux as published on the same jobs: with no mix and no seed may
they be slower on average.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.pollux import (
    AS_PUBLISHED,
    CLUSTER,
    INTERVAL_S,
    RESTART_S,
    TIRESIAS,
    Runs,
    Subject,
    Variant,
    average_jct_s,
    p99_jct_s,
    profiles_of,
    restarts_per_job,
    run_all,
)
from rota.experiment.runs.pollux_jobs import WORKLOADS, jobs_of, require
from rota.model.job import JobSpec
from rota.sim.measured import played
from rota.workload.synthetic import generate
from rota.workload.trace import Trace

NAME = "pollux-mixes"
SEEDS = [1, 2, 3]
NUM_GPUS = 64  # of the cluster
HOURS = 8.0  # span of arrivals of a published workload
AS_PROFILED = {"resnet50": "imagenet"}  # the generator's name -> the profile's
SWEEP_JOBS, SWEEP_S = (5, 20), 60.0
BASELINE = "Pollux as published"
VARIANTS = {
    "Tiresias": TIRESIAS,
    "Optimus": Variant("optimus", ticks=True),
    BASELINE: AS_PUBLISHED,
    "A, ticks": Variant("pollux", {"fits": "job"}, ticks=True),
    "A + label": Variant("pollux"),
    "B + label": Variant("pollux", {"objective": "length"}),
}
JUDGED = ("A, ticks", "A + label", "B + label")
NO_SLOWER = (0.0, 1.0)


class Mix(NamedTuple):
    """The applications of a mix, and its number of jobs.

    Either each application has a weight, or both applications and arrivals are those of a profile
    of :mod:`rota.workload.synthetic`, which chooses by the GPU-hours of its jobs, as was published.
    """

    applications: dict[str, float] | str
    jobs: int
    sweeps: bool = False


PUBLISHED = {"ncf": 41, "cifar10": 38, "deepspeech2": 9, "bert": 6, "yolov3": 4.5, "imagenet": 1.5}
MIXES = {
    "as published": Mix(PUBLISHED, 160),
    "as published, in sweeps": Mix(PUBLISHED, 160, sweeps=True),
    "small": Mix({"ncf": 1, "cifar10": 1}, 160),
    "medium": Mix({"bert": 1, "deepspeech2": 1}, 100),
    "medium, in sweeps": Mix({"bert": 1, "deepspeech2": 1}, 100, sweeps=True),
    "large": Mix({"yolov3": 7, "imagenet": 3}, 40),
    "half imagenet": Mix({"imagenet": 4, "ncf": 1, "cifar10": 1, "bert": 1, "deepspeech2": 1}, 40),
    "smallest and largest": Mix({"ncf": 9, "imagenet": 1}, 100),
    "all alike": Mix(dict.fromkeys(PUBLISHED, 1), 60),
    "one kind": Mix({"cifar10": 1}, 100),
    "as on Philly": Mix("philly", 160),
    "as on Philly, larger gangs": Mix("philly-multi", 80),
    "as on Helios": Mix("helios-earth", 160),
}


def run(data: Path | None = None) -> Outcome:
    """Simulate every variant on every mix. Raises DataMissingError."""
    data = require(data)
    subjects = {
        (name, label): [Subject(data, variant, partial(drawn, data=data, mix=mix))]
        for name, mix in MIXES.items()
        for label, variant in VARIANTS.items()
    }
    runs = run_all(subjects, SEEDS)
    figures = []
    for name in MIXES:
        figures += figures_of(name, {label: runs[name, label] for label in VARIANTS})
    return Outcome(NAME, SEEDS, _settings(data), figures)


def drawn(seed: int, data: Path, mix: Mix) -> Trace:
    """The jobs of a mix."""
    chance, found = Random(f"{mix} {seed}"), by_application(data)
    jobs: list[JobSpec] = []
    at: list[tuple[float, float]] = []  # (part of the span, further seconds)
    for name, part in arrivals(mix, seed, chance):
        one = chance.choice(found[name])
        for _ in range(chance.randint(*SWEEP_JOBS) if mix.sweeps else 1):
            jobs.append(one)
            at.append((part, chance.uniform(0.0, SWEEP_S) if mix.sweeps else 0.0))
        if len(jobs) >= mix.jobs:
            break
    span_s = gpu_s(jobs) / asked_per_s(data)
    return Trace(
        [
            spec._replace(job_id=str(number), submit_s=part * span_s + later_s)
            for number, (spec, (part, later_s)) in enumerate(zip(jobs, at, strict=True))
        ][: mix.jobs]
    )


def arrivals(mix: Mix, seed: int, chance: Random) -> Iterator[tuple[str, float]]:
    """(application, arrival as a part of the span), as many as the mix asks for."""
    if isinstance(mix.applications, str):
        jobs = generate(mix.applications, num_jobs=mix.jobs, num_gpus=NUM_GPUS, seed=seed)
        last_s = max(spec.submit_s for spec in jobs)
        yield from (
            (AS_PROFILED.get(spec.model, spec.model), spec.submit_s / last_s) for spec in jobs
        )
    else:
        names, weights = [*mix.applications], [*mix.applications.values()]
        while True:
            yield chance.choices(names, weights)[0], chance.random()


@lru_cache(maxsize=1)
def by_application(data: Path) -> dict[str, list[JobSpec]]:
    """The published jobs, with the durations that they have as their users submitted them."""
    jobs = [spec for number in WORKLOADS for spec in jobs_of(data, number)]
    profiles = profiles_of(data, frozenset(spec.model for spec in jobs))
    found: dict[str, list[JobSpec]] = defaultdict(list)
    for number in WORKLOADS:
        for spec in played(jobs_of(data, number), profiles):
            found[spec.model].append(spec)
    return found


def gpu_s(jobs: list[JobSpec]) -> float:
    """GPU-seconds that the users of these jobs ask for."""
    return sum(spec.num_gpus * (spec.duration_s or 0.0) for spec in jobs)


def asked_per_s(data: Path) -> float:
    """GPU-seconds for which users ask in a second of the published workloads."""
    jobs = [spec for each in by_application(data).values() for spec in each]
    return gpu_s(jobs) / (len(WORKLOADS) * HOURS * 3600)


def figures_of(name: str, runs: dict[str, list[Runs]]) -> list[Figure]:
    """Figures of each variant on one mix."""
    base = [average_jct_s(each) for each in runs[BASELINE]]
    figures = []
    for label, ours in runs.items():
        where = f"{name}: {{}}, {label}".format
        averages = [average_jct_s(each) for each in ours]
        figures.append(over_seeds(where("average JCT"), "s", averages, baseline=base))
        over = ratios(averages, base)
        bounds = NO_SLOWER if label in JUDGED else None
        title = where("average JCT over Pollux as published")
        figures.append(over_seeds(title, "times", over, bounds=bounds, every=True))
        figures.append(over_seeds(where("p99 of JCT"), "s", [p99_jct_s(each) for each in ours]))
        again = [restarts_per_job(each) for each in ours]
        figures.append(over_seeds(where("restarts a job"), "", again))
    return figures


def _settings(data: Path) -> dict[str, Any]:
    return {
        "data": str(data),
        "cluster": CLUSTER,
        "restart_s": RESTART_S,
        "interval_s": INTERVAL_S,
        "mixes": {name: mix._asdict() for name, mix in MIXES.items()},
        "variants": {label: variant.as_list() for label, variant in VARIANTS.items()},
        "baseline": BASELINE,
    }
