"""Small jobs, traces and simulations for tests, made in one line."""

import random
from collections.abc import Iterable
from typing import Any

from rota.model.cluster import parse_cluster
from rota.model.job import BACKGROUND, FOREGROUND, JobSpec, Share
from rota.sim.cores import CatalogCores
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Result, Simulation, simulate
from rota.workload.trace import Trace

CLUSTER = "2x4:cpus=9"


def job(
    job_id: int | str = 0, gpus: int = 1, *, at: float = 0.0, lasts: float = 60.0, **more: Any
) -> JobSpec:
    """A job of ``gpus`` GPUs that arrives ``at`` a time and ``lasts`` so many seconds."""
    return JobSpec(str(job_id), gpus, float(at), float(lasts), **more)


def trace(*jobs: JobSpec) -> Trace:
    """These jobs as a trace."""
    return Trace(jobs)


def toy_trio() -> Trace:
    """Three jobs for two GPUs, the worked example of Tiresias (NSDI 2019)."""
    return trace(job(1, 2, lasts=2), job(2, 1, lasts=8), job(3, 2, lasts=6))


def twenty_jobs() -> Trace:
    """Twenty jobs for eight GPUs with results that two simulators agree on."""
    gangs = (1, 2, 4, 8, 1)
    return trace(
        *(job(i, gangs[i % 5], at=30 * i, lasts=120 + 60 * (7 * i % 11)) for i in range(20))
    )


def random_trace(seed: int, *, num_jobs: int = 25, max_gpus: int = 8) -> Trace:
    """A mixed load from a seed: gangs of 1 to ``max_gpus`` GPUs, short and long, some at once."""
    chance = random.Random(seed)
    gangs = [1, 1, 1, 2, 2, 3, 4, 8]
    at = 0.0
    jobs = []
    for i in range(num_jobs):
        at += chance.choice([0.0, 0.0, 5.0, 20.0, 60.0])
        gpus = min(chance.choice(gangs), max_gpus)
        lasts = chance.choice([1.0, 30.0, 60.0, 90.0, 200.0, 777.5])
        who = {"user": "ab"[i % 2], "vc": "xyz"[i % 3]}
        priority = chance.choice([25, 50, 50, 100])
        jobs.append(job(i, gpus, at=at, lasts=lasts, priority=priority, **who))
    return trace(*jobs)


def with_background(jobs: Trace, seed: int, *, num_jobs: int = 8) -> Trace:
    """The jobs, and background jobs of 1 and 2 GPUs from a seed that arrive among them."""
    chance = random.Random(seed)
    last_s = max(spec.submit_s for spec in jobs)
    more = [
        job(
            100_000 + i,
            1 + i % 3 // 2,
            at=chance.uniform(0.0, last_s),
            lasts=chance.choice([20.0, 90.0, 300.0]),
        )
        for i in range(num_jobs)
    ]
    return Trace([*jobs, *(spec._replace(share=Share(BACKGROUND)) for spec in more)])


def with_flow(jobs: Trace, seed: int) -> Trace:
    """The jobs, of which about half are flow jobs that leave much of their GPUs idle."""
    chance = random.Random(seed)
    flow = Share(FOREGROUND, weight=1.0)
    return Trace(
        spec._replace(share=flow, gpu_util=0.3) if chance.random() < 0.5 else spec for spec in jobs
    )


def simulation(
    jobs: Trace | Iterable[JobSpec],
    policy: Any,
    cluster: str = CLUSTER,
    costs: Costs = FREE,
    **more: Any,
) -> Simulation:
    """A simulation that has not begun; free of costs unless ``costs`` says otherwise.

    Where the policy's stage apportions CPU cores, jobs tell of them as the catalogue has it.
    """
    jobs = jobs if isinstance(jobs, Trace) else Trace(jobs)
    more.setdefault("cpus", CatalogCores())
    return Simulation(jobs, parse_cluster(cluster), policy, costs, **more)


def run(
    jobs: Trace | Iterable[JobSpec], policy: Any, cluster: str = CLUSTER, costs: Costs = FREE
) -> Result:
    """The result of a whole simulation; free of costs unless ``costs`` says otherwise."""
    jobs = jobs if isinstance(jobs, Trace) else Trace(jobs)
    return simulate(jobs, parse_cluster(cluster), policy, costs)
