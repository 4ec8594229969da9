"""CPU cores by what jobs make of them, against a share for each GPU (SAD, SoCC 2018)

SAD's authors report a preliminary result, without the trace and the algorithm: utilisation 19 %
higher and completion times 34 % shorter than with cores dealt out without regard to jobs. Here
200 jobs of one GPU and 10 to 100 minutes each, of three mixes of models, arrive at a server of 8
GPUs and 24 cores, once faster than it can serve them and once not. Their speeds by cores are
Synergy's (OSDI 2022), and the scheduler knows step times with noise, of what jobs have run, alone.

There are two baselines: the static share of cores of each GPU, which is what the authors name, and
all cores of the server split evenly over the GPUs in use, which is stronger. There are two
definitions of utilisation, both up to the last arrival: the part of the GPUs' time in which a job
runs, and in which one computes, if a job at its peak speed computes all the time.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from rota.experiment.base import Figure, Outcome, for_each_seed, over_seeds
from rota.experiment.runs.course import Course
from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
from rota.model.measured.phase_times import TRAIN
from rota.policy.registry import create
from rota.report.metrics import summarise
from rota.sim.cores import CatalogCores, curves_of
from rota.sim.simulation import Simulation
from rota.workload.trace import Trace

NAME = "sad-cluster"
SEEDS = list(range(10))
NUM_JOBS = 200
CLUSTER, GPUS, SHARE = "1x8:v100:cpus=24", 8, 3.0  # cores for each GPU
LASTS_S = (600.0, 6000.0)  # with the share of cores
GAPS_S = {"saturated": 300.0, "light": 450.0}  # between arrivals, on average; the server can do 412
MIXES = {
    "half for images": ("alexnet", "resnet18_imagenet", "gnmt", "transformer"),
    "half for images, one modest": ("alexnet", "resnet50", "gnmt", "lm"),
    "six models": (
        *("alexnet", "resnet18_imagenet", "mobilenet_v2", "resnet50", "gnmt", "transformer"),
    ),
}
HUNGRY = "half for images"  # the mix on which the published utilisation is judged
WAYS = {"SAD": "sad", "static share": "proportional", "equal split": "equal"}
POLICIES = ("fifo", "gandiva", "tiresias", "pollux")
PUBLISHED_JCT, PUBLISHED_UTILISATION = -34.0, 19.0
# In percent. A run with known curves, made beforehand, gave -35 to -51 % under saturation.
JCT_BOUNDS, UTILISATION_BOUNDS, NO_LOSS = (-80.0, -34.0), (19.0, 60.0), (-80.0, 0.0)


class Setting(NamedTuple):
    """One way of sharing out cores under one policy, a load and a mix."""

    policy: str
    mix: str
    load: str
    way: str


class Run(NamedTuple):
    """The result of one simulation: seconds, and parts of the GPUs' time."""

    jct_s: float
    busy: float
    computing: float


SETTINGS = [
    Setting(policy, mix, load, way)
    for policy in POLICIES
    for mix in (MIXES if policy == "fifo" else [HUNGRY])
    for load in GAPS_S
    for way in WAYS
]


def run() -> Outcome:
    """Simulate every setting on every seed."""
    runs = for_each_seed(measure, {each: each for each in SETTINGS}, SEEDS, num_jobs=NUM_JOBS)
    figures = [
        figure
        for ours in SETTINGS
        if ours.way == "SAD"
        for baseline in ("static share", "equal split")
        for figure in _compared(ours, baseline, runs[ours], runs[ours._replace(way=baseline)])
    ]
    settings = {
        "cluster": CLUSTER,
        "jobs": NUM_JOBS,
        "gaps_s": GAPS_S,
        "mixes": {name: list(models) for name, models in MIXES.items()},
        "noise": CatalogCores().noise,
    }
    return Outcome(NAME, SEEDS, settings, figures)


def workload(mix: str, load: str, seed: int) -> Trace:
    """The jobs of one seed: each model of the mix is as likely as the others."""
    chance = random.Random(f"{mix} {load} {seed}")
    at_s, jobs = 0.0, []
    for number in range(NUM_JOBS):
        at_s += chance.expovariate(1 / GAPS_S[load])
        lasts_s, model = chance.uniform(*LASTS_S), chance.choice(MIXES[mix])
        jobs.append(JobSpec(str(number), 1, round(at_s, 3), round(lasts_s, 3), model=model))
    return Trace(jobs, f"{mix}, {load}, seed {seed}")


def measure(setting: Setting, seed: int) -> Run:
    """Simulate one setting."""
    policy = create(setting.policy, {"cpus": WAYS[setting.way]})
    trace = workload(setting.mix, setting.load, seed)
    nodes = parse_cluster(CLUSTER)
    simulation = Simulation(trace, nodes, policy, cpus=CatalogCores(seed=seed))
    state, last_s = simulation.state, trace.jobs[-1].submit_s
    course = Course(simulation)
    course.until(last_s)
    held_s = sum(state.service(row, last_s) for row in range(len(state.spec)))
    works_s = sum(
        work_s / peak(spec.model)
        for spec, work_s in zip(state.spec, course.work_s(last_s), strict=True)
    )
    state, decisions = simulation.run()
    summary = summarise(state, decisions=decisions, policy=setting.policy)
    return Run(summary["avg_jct_s"], held_s / (GPUS * last_s), works_s / (GPUS * last_s))


def peak(model: str) -> float:
    """The model's speed with all cores that it has a use for, 1 being that with the share."""
    return curves_of(model)[TRAIN].relative(float("inf"), SHARE)


def _compared(
    ours: Setting, baseline: str, runs: Sequence[Run], others: Sequence[Run]
) -> list[Figure]:
    """The changes against a baseline, in percent of its value with the same jobs."""
    where = f"{ours.policy}, {ours.mix}, {ours.load}, over {baseline}"
    judged = ours.policy == "fifo" and ours.load == "saturated" and baseline == "static share"
    jct_bounds = JCT_BOUNDS if judged else NO_LOSS
    computing_bounds = UTILISATION_BOUNDS if judged and ours.mix == HUNGRY else None
    told = [  # name, attribute of a run, published change, bounds
        ("JCT", "jct_s", PUBLISHED_JCT, jct_bounds),
        ("GPUs compute", "computing", PUBLISHED_UTILISATION, computing_bounds),
        ("GPUs in use", "busy", None, None),
    ]
    return [
        over_seeds(
            f"{name}, {where}",
            "%",
            _changes([getattr(run, part) for run in runs], [getattr(run, part) for run in others]),
            published=published if baseline == "static share" else None,
            bounds=bounds,
        )
        for name, part, published, bounds in told
    ]


def _changes(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [100 * (value / other - 1) for value, other in zip(values, others, strict=True)]
