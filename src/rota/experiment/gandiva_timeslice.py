"""Time-slicing more jobs than GPUs: equal shares at full throughput (Gandiva, OSDI 2018).

Six one-GPU jobs share a server of four GPUs, as in the paper's first time-slicing figure, which
shows equal shares and an unchanged total. And the reason for doing it: eight long jobs reach
their first 100 mini-batches within minutes, where first-in-first-out makes half of them wait for
hours. Both run in the simulator; the baseline is FIFO on the same jobs.

With ``live`` six trainings take turns on a real cluster as well, with a shorter quantum on fewer
slots, and are run under FIFO beside it. With ``hosts`` the cluster is of so many machines, each
with a slot for two trainings. A step takes its time by waiting, so that what is measured is turns,
and not how well this machine runs several processes at once.
"""

import tempfile
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rota.client.client import Client
from rota.experiment.base import Figure, Outcome, information
from rota.experiment.runs.course import Course
from rota.experiment.runs.live import cluster, wait_for_all
from rota.experiment.runs.several import check_hosts, cluster_of_hosts
from rota.model.cluster import parse_cluster
from rota.model.job import WARM, JobSpec
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.trace import Trace

NAME = "gandiva-timeslice"
SEEDS: list[int] = []  # nothing here is drawn by chance
CLUSTER = "1x4"
GPUS = sum(node.num_gpus for node in parse_cluster(CLUSTER))
QUANTUM_S = 60.0
# One change of turns keeps a GPU from working for 0.25 s: suspending and resuming, or starting.
COSTS = Costs(suspend_s=0.125, resume_s=0.125, migrate_s=0.0, cold_start_s=0.25)

SHARE_JOBS = 6
SHARE_JOB_S = 24 * 3600.0
ROUND_QUANTA = 3  # after so many quanta, 6 jobs on 4 GPUs have had 2 turns each
ROUNDS = 6
WINDOW_S = ROUNDS * ROUND_QUANTA * QUANTUM_S
EQUAL_SHARE = GPUS / SHARE_JOBS
SHARE_TOLERANCE = 0.01
LEAST_OF_FULL = 0.98

FIRST_JOBS = 8
FIRST_JOB_S = 8 * 3600.0
MINI_BATCHES = 100
MINI_BATCH_S = 0.6  # Gandiva's quantum of a minute is about 100 mini-batches
FIRST_S = MINI_BATCHES * MINI_BATCH_S
FIFO_FIRST_S = FIRST_JOB_S / 2 + FIRST_S
FIFO_TOLERANCE = 0.01
SLICED_FIRST_MOST_S = QUANTUM_S + 2 * FIRST_S
PUBLISHED_SPEED_UP = 4.5  # on the paper's cluster of 180 GPUs, under a mixed load


LIVE_SLOTS = 2
LIVE_QUANTUM_S = 1.0
LIVE_STEPS, LIVE_STEP_S = 900, 0.02
LIVE_DEADLINE_S = 400.0
HOST_SLOTS, HOST_JOBS = 1, 2  # on each of several hosts
# Turns of a second cost more of it than those of a minute: as bench/time_slicing.py asks for.
LIVE_SHARE_TOLERANCE = 0.1
LIVE_LEAST_OF_FULL = 0.97
LIVE_MOST_OF_FULL = 1.03  # no more than noise: 1 is the limit
SCRIPT = """
import sys, time
import torch
import rota.train
out, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
with rota.train.session() as s:
    model = torch.nn.Linear(16, 1)
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with open(out, "a") as file:
        for step in s.steps(steps):
            model(torch.ones(1, 16)).sum().backward()
            time.sleep(step_s)
            optimizer.step()
            optimizer.zero_grad()
            print(time.time(), file=file, flush=True)
"""


def run(*, live: bool = False, hosts: int | None = None) -> Outcome:
    """Run both parts in the simulator, and ``live`` on a real cluster, of ``hosts`` if any.

    Raises SimulationError, and InputError if so many hosts can't be had.
    """
    if hosts is not None:
        check_hosts()
    figures = [*_share_figures(), *_first_figures()]
    settings = _settings()
    if live:
        slots = LIVE_SLOTS if hosts is None else hosts * HOST_SLOTS
        figures += live_figures(_live("gandiva", hosts), _live("fifo", hosts), slots)
        settings["live"] = {
            "hosts": hosts or 1,
            "jobs": _live_jobs(hosts),
            "slots": slots,
            "quantum_s": LIVE_QUANTUM_S,
            "steps": LIVE_STEPS,
            "step_s": LIVE_STEP_S,
        }
    return Outcome(NAME, SEEDS, settings, figures)


def _settings() -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "quantum_s": QUANTUM_S,
        "costs": COSTS._asdict(),
        "baseline": "fifo",
        "information": information("gandiva", "fifo"),
        "shares": {
            "jobs": SHARE_JOBS,
            "gpus_per_job": 1,
            "submit_s": 0.0,
            "duration_s": SHARE_JOB_S,
            "window_s": WINDOW_S,
            "rounds": ROUNDS,
            "tolerance": SHARE_TOLERANCE,
        },
        "first_mini_batches": {
            "jobs": FIRST_JOBS,
            "gpus_per_job": 1,
            "submit_s": 0.0,
            "duration_s": FIRST_JOB_S,
            "mini_batches": MINI_BATCHES,
            "mini_batch_s": MINI_BATCH_S,
        },
    }


def _share_figures() -> list[Figure]:
    fifo, ours = shares("fifo"), shares("gandiva")
    low, high = EQUAL_SHARE * (1 - SHARE_TOLERANCE), EQUAL_SHARE * (1 + SHARE_TOLERANCE)
    return [
        Figure("smallest share", "GPUs per job", EQUAL_SHARE, min(fifo), min(ours), low, high),
        Figure("largest share", "GPUs per job", EQUAL_SHARE, max(fifo), max(ours), low, high),
        Figure(
            "total throughput",
            "GPUs at work",
            float(GPUS),
            sum(fifo),
            sum(ours),
            LEAST_OF_FULL * GPUS,
            float(GPUS),
        ),
    ]


def _first_figures() -> list[Figure]:
    fifo, ours = fmean(first_mini_batches("fifo")), fmean(first_mini_batches("gandiva"))
    name = f"average time to the first {MINI_BATCHES} mini-batches"
    fifo_low, fifo_high = FIFO_FIRST_S * (1 - FIFO_TOLERANCE), FIFO_FIRST_S * (1 + FIFO_TOLERANCE)
    return [
        Figure(f"{name}, FIFO", "s", None, fifo, fifo, fifo_low, fifo_high),
        Figure(f"{name}, sliced", "s", None, fifo, ours, FIRST_S, SLICED_FIRST_MOST_S),
        Figure(
            "FIFO over sliced",
            "times",
            PUBLISHED_SPEED_UP,
            1.0,
            fifo / ours,
            PUBLISHED_SPEED_UP,
            fifo_high / FIRST_S,
        ),
    ]


def live_figures(
    ours: list[list[float]], fifo: list[list[float]], slots: int = LIVE_SLOTS
) -> list[Figure]:
    """The figures of two live runs, from when each job had done each of its steps.

    Counted is from when all jobs have done a step until the first is complete. How many slots are
    at work is told by the steps done, each at the median time that a step takes under FIFO.
    """
    begin_s, end_s = max(times[0] for times in ours), min(times[-1] for times in ours)
    steps = [sum(begin_s < at_s <= end_s for at_s in times) for times in ours]
    step_s = median(after - before for times in fifo for before, after in pairwise(times))
    mean = sum(steps) / len(steps)
    full = sum(steps) * step_s / (end_s - begin_s)
    low, high = 1 - LIVE_SHARE_TOLERANCE, 1 + LIVE_SHARE_TOLERANCE
    least, most = LIVE_LEAST_OF_FULL * slots, LIVE_MOST_OF_FULL * slots
    return [
        Figure("live: smallest share", "of an equal one", 1.0, 0.0, min(steps) / mean, low, high),
        Figure("live: largest share", "of an equal one", 1.0, None, max(steps) / mean, low, high),
        Figure("live: total throughput", "slots at work", None, float(slots), full, least, most),
    ]


def _live_jobs(hosts: int | None) -> int:
    return SHARE_JOBS if hosts is None else hosts * HOST_JOBS


def _live(policy: str, hosts: int | None) -> list[list[float]]:
    """Times at which each job, on a live cluster, completed each of its steps."""
    with tempfile.TemporaryDirectory(prefix="rota-timeslice-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        outs = [folder / f"steps{number}" for number in range(_live_jobs(hosts))]
        with _cluster(folder / "home", hosts, policy) as client:
            jobs = [
                client.submit(
                    {
                        "name": out.name,
                        "run": f"python train.py {out} {LIVE_STEPS} {LIVE_STEP_S}",
                        "workdir": str(folder),
                        "start": WARM,
                    }
                )["id"]
                for out in outs
            ]
            wait_for_all(client, jobs, LIVE_DEADLINE_S)
        return [[float(line) for line in out.read_text().split()] for out in outs]


def _cluster(home: Path, hosts: int | None, policy: str) -> AbstractContextManager[Client]:
    settings = _settings_of(policy, LIVE_QUANTUM_S)
    if hosts is None:
        return cluster(home, gpus=LIVE_SLOTS, policy=policy, settings=settings)
    return cluster_of_hosts(home, hosts, gpus=HOST_SLOTS, policy=policy, settings=settings)


def shares(policy: str) -> list[float]:
    """Each job's run time over the length of the window, during which all jobs are active."""
    course = Course(_simulation(policy, SHARE_JOBS, SHARE_JOB_S))
    course.until(WINDOW_S)
    return [course.state.service(row, WINDOW_S) / WINDOW_S for row in range(SHARE_JOBS)]


def first_mini_batches(policy: str) -> list[float]:
    """Seconds from each job's arrival until it has run its first mini-batches."""
    course = Course(_simulation(policy, FIRST_JOBS, FIRST_JOB_S), FIRST_S)
    course.until_all_have()
    return [course.first_s[row] for row in range(FIRST_JOBS)]


def _simulation(policy: str, num_jobs: int, duration_s: float) -> Simulation:
    jobs = [JobSpec(f"job{i}", 1, 0.0, duration_s) for i in range(num_jobs)]
    settings = _settings_of(policy, QUANTUM_S)
    return Simulation(Trace(jobs, NAME), parse_cluster(CLUSTER), create(policy, settings), COSTS)


def _settings_of(policy: str, quantum_s: float) -> dict[str, str]:
    """Settings of a policy; under gandiva jobs take turns and are never packed on one GPU."""
    return {"quantum_s": str(quantum_s), "pack": "off"} if policy == "gandiva" else {}
