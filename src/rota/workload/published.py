"""Workloads of the shape that papers describe, where their own job lists are not public."""

from math import exp, log
from random import Random

from rota.model.job import JobSpec
from rota.workload.trace import Trace

# Tiresias (NSDI 2019), testbed: small jobs have at most 4 GPUs, short ones run less than 800 s.
MEAN_GAP_S = 30.0
SHORTEST_S, SHORT_S, LONGEST_S = 120.0, 800.0, 7200.0
SMALL_GANGS = (1, 1, 1, 2, 4)
LARGE_GANGS = (8,)
BINS = {  # share of the jobs, gangs, run time from and to
    "small and short": (0.635, SMALL_GANGS, SHORTEST_S, SHORT_S),
    "small and long": (0.125, SMALL_GANGS, SHORT_S, LONGEST_S),
    "large and short": (0.165, LARGE_GANGS, SHORTEST_S, SHORT_S),
    "large and long": (0.075, LARGE_GANGS, SHORT_S, LONGEST_S),
}


def tiresias_480(seed: int, num_jobs: int = 480, mean_gap_s: float = MEAN_GAP_S) -> Trace:
    """A workload of the shape of Tiresias' testbed experiment (NSDI 2019, section 5).

    Poisson arrivals, 30 s apart on average; the published shares of small and large, short and long
    jobs, exactly but for rounding, in random order. What is not published is chosen: run times
    log-uniform within their bin, and the gangs of the public 60-job sample (1, 2 and 4 GPUs in the
    ratio 3 to 1 to 1, and 8). On 60 GPUs that is 1.8 times what they can do while jobs arrive.
    """
    chance = Random(f"tiresias {seed}")
    kinds: list[str] = []
    due = 0.0
    for kind, (share, _, _, _) in BINS.items():
        due += share * num_jobs
        kinds += [kind] * (round(due) - len(kinds))
    chance.shuffle(kinds)
    at_s = 0.0
    jobs = []
    for number, kind in enumerate(kinds):
        _, gangs, from_s, to_s = BINS[kind]
        at_s += chance.expovariate(1 / mean_gap_s)
        lasts_s = exp(chance.uniform(log(from_s), log(to_s)))
        jobs.append(JobSpec(str(number), chance.choice(gangs), round(at_s, 3), round(lasts_s, 3)))
    return Trace(jobs, f"tiresias-480 seed {seed}")
