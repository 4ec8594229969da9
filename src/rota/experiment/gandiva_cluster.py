"""An overloaded cluster of 180 GPUs: more work done, first results sooner (Gandiva, OSDI 2018).

The paper's cluster experiment runs synthetic jobs, modelled on a production trace, on 180 GPUs in
servers of 4: throughput rises by 26 %, and the average time to the first 100 mini-batches falls by
4.5 times. Its job list is not public. The mix here was fixed before anything was run: 600 jobs
arrive within 8 hours, 40 % of them one-GPU jobs that leave their GPU idle. Throughput is the useful
work of all jobs, in GPU-hours at the speed of a job alone, that is done 12 hours after the first
arrival; the time to the first mini-batches is that of every job, even if it comes later. Both are
compared with first in, first out on GPUs of one's own.

The verdict is from this mix alone. The sweep beside it, over how many jobs can be packed and
without packing or migration, shows where the gains come from and when they are to be had.
"""

from bisect import bisect
from itertools import accumulate, combinations_with_replacement
from math import exp, log, sqrt
from operator import mul
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from rota.experiment.base import Figure, Outcome, for_each_seed, information, over_seeds
from rota.experiment.gandiva_packing import COSTS, RESNET, SUPER_RESOLUTION, VAE, Kind
from rota.experiment.runs.course import Course
from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.simulation import Simulation
from rota.workload.trace import Trace

NAME = "gandiva-cluster"
SEEDS = list(range(5))
CLUSTER = "45x4"
NUM_JOBS = 600
ARRIVE_WITHIN_S = 8 * 3600.0
HORIZON_S = 12 * 3600.0
SHORTEST_S, LONGEST_S = 0.5 * 3600.0, 8 * 3600.0  # durations are uniform in their logarithm
SIZES = {1: 0.65, 2: 0.1, 4: 0.2, 8: 0.05}  # GPUs -> part of the jobs
PACKABLE = 0.4  # part of all jobs; they have one GPU, and half of them are of either kind
MINI_BATCH_S = 0.6
FIRST_S = 100 * MINI_BATCH_S  # about a quantum, as in the paper
# A GPU of the paper's P40s. Of either packable kind no more fit than the paper packed; two ResNets
# fit, so that they are tried.
GPU_GB = 24.0
MEMORY_GB = {VAE.model: 4.3, SUPER_RESOLUTION.model: 7.1, RESNET.model: 10.0}

PUBLISHED_GAIN, PUBLISHED_SOONER = 1.26, 4.5
GAIN_BOUNDS = (1 + 0.26 * 0.8, 1 + 0.26 * 1.2)
SOONER_BOUNDS = (PUBLISHED_SOONER, HORIZON_S / FIRST_S)  # at least; more is impossible there
WORK_OF_A_RUN = 100_000  # simulated jobs that one run is worth: a minute, by its many decisions

# Beside the verdict, not judged, each for the first seed: how many jobs can be packed, and without
# which mechanism.
SWEPT = (0.0, 0.2, 0.4, 0.6, 0.8)
WITHOUT: dict[str, dict[str, str]] = {
    "whole": {},
    "no packing": {"pack": "off"},
    "no migration": {"migrate": "off"},
}


class Case(NamedTuple):
    """A policy with its settings, and the part of the jobs that can be packed."""

    policy: str
    settings: tuple[tuple[str, str], ...]
    packable: float


class Result(NamedTuple):
    """Useful work and mini-batches by the horizon, and the mean time to the first mini-batches.

    ``work_gpu_h`` is GPU-hours at the speed of a job alone; a gang's mini-batch counts once.
    """

    work_gpu_h: float
    mini_batches: float
    first_s: float


def run() -> Outcome:
    """Run the mix under FIFO and under Gandiva, and the sweep."""
    fifo, ours = Case("fifo", (), PACKABLE), Case("gandiva", (), PACKABLE)
    mix = for_each_seed(measure, {"fifo": fifo, "ours": ours}, SEEDS, num_jobs=WORK_OF_A_RUN)
    return Outcome(NAME, SEEDS, _settings(), [*judged(mix["fifo"], mix["ours"]), *_sweep()])


def _settings() -> dict[str, Any]:
    kinds = [VAE, SUPER_RESOLUTION, RESNET]
    return {
        "cluster": CLUSTER,
        "jobs": NUM_JOBS,
        "arrive_within_s": ARRIVE_WITHIN_S,
        "horizon_s": HORIZON_S,
        "sizes": SIZES,
        "packable": PACKABLE,
        "duration_s": [SHORTEST_S, LONGEST_S],
        "mini_batch_s": MINI_BATCH_S,
        "gpu_gb": GPU_GB,
        "memory_gb": MEMORY_GB,
        "utilisation": {kind.model: kind.utilisation for kind in kinds},
        "speeds beside": {f"{a}, {b}": round(x, 4) for (a, b), (x, _) in pair_speeds().items()},
        "costs": COSTS._asdict(),
        "policies": ["gandiva", {"gpu_memory_gb": str(GPU_GB)}, "fifo", {}],
        "information": information("gandiva", "fifo"),
    }


def judged(fifo: list[Result], ours: list[Result]) -> list[Figure]:
    """The two published figures, and what they are made of."""
    pairs = list(zip(fifo, ours, strict=True))
    return [
        over_seeds(
            "throughput, gandiva over FIFO",
            "times",
            [one.work_gpu_h / other.work_gpu_h for other, one in pairs],
            published=PUBLISHED_GAIN,
            bounds=GAIN_BOUNDS,
        ),
        over_seeds(
            "time to the first 100 mini-batches, FIFO over gandiva",
            "times",
            [other.first_s / one.first_s for other, one in pairs],
            published=PUBLISHED_SOONER,
            bounds=SOONER_BOUNDS,
        ),
        over_seeds(
            "useful work",
            "GPU-hours",
            [one.work_gpu_h for one in ours],
            baseline=[other.work_gpu_h for other in fifo],
        ),
        over_seeds(
            "mini-batches, gandiva over FIFO",
            "times",
            [one.mini_batches / other.mini_batches for other, one in pairs],
        ),
        over_seeds(
            "time to the first 100 mini-batches",
            "s",
            [one.first_s for one in ours],
            baseline=[other.first_s for other in fifo],
        ),
    ]


def _sweep() -> list[Figure]:
    cases = {("fifo", part): Case("fifo", (), part) for part in SWEPT}
    for label, settings in WITHOUT.items():
        given = tuple(settings.items())
        cases |= {(label, part): Case("gandiva", given, part) for part in SWEPT}
    found = for_each_seed(measure, cases, SEEDS[:1], num_jobs=WORK_OF_A_RUN)
    figures = []
    for label, part in cases:
        if label == "fifo":
            continue
        (fifo,), (ours,) = found["fifo", part], found[label, part]
        name = f"{part:.0%} packable, {label}"
        gain, sooner = ours.work_gpu_h / fifo.work_gpu_h, fifo.first_s / ours.first_s
        figures.append(Figure(f"{name}: throughput", "times", None, 1.0, gain))
        figures.append(Figure(f"{name}: first mini-batches sooner", "times", None, 1.0, sooner))
    return figures


def measure(case: Case, seed: int) -> Result:
    """Simulate one case until every job has done its first mini-batches."""
    settings = dict(case.settings)
    if case.policy == "gandiva":
        settings["gpu_memory_gb"] = str(GPU_GB)
    simulation = Simulation(
        workload(case.packable, seed),
        parse_cluster(CLUSTER),
        create(case.policy, settings),
        COSTS,
        interference=Interference(pair_speeds()),
    )
    course = Course(simulation, FIRST_S)
    course.until(HORIZON_S)
    done_s = course.work_s(HORIZON_S)
    work_gpu_s = sum(map(mul, done_s, course.state.num_gpus))
    course.until_all_have()
    first_s = fmean(course.first_s.values())
    return Result(work_gpu_s / 3600, sum(done_s) / MINI_BATCH_S, first_s)


def pair_speeds() -> dict[tuple[str, str], tuple[float, float]]:
    """Speeds beside each other: of packable kinds the geometric mean, of others that of ResNets."""
    kinds = [VAE, SUPER_RESOLUTION, RESNET]
    return {
        (one.model, other.model): (speed, speed)
        for one, other in combinations_with_replacement(kinds, 2)
        for speed in [RESNET.speed if RESNET in (one, other) else sqrt(one.speed * other.speed)]
    }


def workload(packable: float, seed: int) -> Trace:
    """The jobs. If more are packable than there are one-GPU jobs, there are fewer gangs."""
    chance = Random(f"{NAME}/{seed}")
    arrivals = sorted(chance.uniform(0.0, ARRIVE_WITHIN_S) for _ in range(NUM_JOBS))
    one = max(SIZES[1], packable)
    larger = {size: part * (1 - one) / (1 - SIZES[1]) for size, part in SIZES.items() if size > 1}
    jobs = []
    for number, at_s in enumerate(arrivals):
        duration_s = exp(chance.uniform(log(SHORTEST_S), log(LONGEST_S)))
        drawn, either, gang = chance.random(), chance.random(), chance.random()
        kind, size = RESNET, 1
        if drawn < packable:
            kind = VAE if either < 0.5 else SUPER_RESOLUTION
        elif drawn >= one:
            size = _drawn(larger, gang)
        jobs.append(_job(number, size, at_s, duration_s, kind))
    return Trace(jobs, f"{NAME} {packable:g} {seed}")


def _drawn(parts: dict[int, float], chance: float) -> int:
    """One of the keys, by their parts."""
    *below, total = accumulate(parts.values())
    return list(parts)[bisect(below, chance * total)]


def _job(number: int, size: int, at_s: float, duration_s: float, kind: Kind) -> JobSpec:
    return JobSpec(
        str(number),
        size,
        round(at_s, 3),
        round(duration_s, 3),
        model=kind.model,
        gpu_util=kind.utilisation,
        memory_gb=MEMORY_GB[kind.model],
    )
