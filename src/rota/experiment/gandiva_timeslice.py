"""Time-slicing more jobs than GPUs: equal shares at full throughput (Gandiva, OSDI 2018).

Six one-GPU jobs share a server of four GPUs, as in the paper's first time-slicing figure, which
shows equal shares and an unchanged total. And the reason for doing it: eight long jobs reach
their first 100 mini-batches within minutes, where first-in-first-out makes half of them wait for
hours. Both run in the simulator; the baseline is FIFO on the same jobs.
"""

from statistics import fmean
from typing import Any

from rota.experiment.base import Figure, Outcome
from rota.experiment.runs.course import Course
from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
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


def run() -> Outcome:
    """Run both parts in the simulator."""
    return Outcome(NAME, SEEDS, _settings(), [*_share_figures(), *_first_figures()])


def _settings() -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "quantum_s": QUANTUM_S,
        "costs": COSTS._asdict(),
        "baseline": "fifo",
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


def shares(policy: str) -> list[float]:
    """Each job's run time over the length of the window, during which all jobs are active."""
    course = Course(_simulation(policy, SHARE_JOBS, SHARE_JOB_S))
    course.until(WINDOW_S)
    return [course.state.service(row, WINDOW_S) / WINDOW_S for row in range(SHARE_JOBS)]


def first_mini_batches(policy: str) -> list[float]:
    """When each job has run its first mini-batches, in seconds after its arrival."""
    course = Course(_simulation(policy, FIRST_JOBS, FIRST_JOB_S), FIRST_S)
    course.until_all_have()
    return [course.first_s[row] for row in range(FIRST_JOBS)]


def _simulation(policy: str, num_jobs: int, duration_s: float) -> Simulation:
    jobs = [JobSpec(f"job{i}", 1, 0.0, duration_s) for i in range(num_jobs)]
    settings = {"quantum_s": str(QUANTUM_S)} if policy == "gandiva" else {}
    return Simulation(Trace(jobs, NAME), parse_cluster(CLUSTER), create(policy, settings), COSTS)
