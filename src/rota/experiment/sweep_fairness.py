"""A search of a hundred trials beside single jobs of other users: who waits for whom.

Four users have a job each, and a fifth a search over hyper-parameters, all at once, on four GPUs.
By order of arrival the search, which came first, keeps everybody waiting until its last trials
run. Under Gandiva it has one place in the fair share, whatever the number of its trials.

Judged is finish-time fairness (Themis, NSDI 2020): the time until a job, or the whole search, is
complete, over the time that a fifth of the cluster for itself would take. Nobody should be above 1
by more than turns and starts cost.
"""

from random import Random
from statistics import median
from typing import NamedTuple

from rota.experiment.base import Figure, Outcome, for_each_seed, information
from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
from rota.model.sweep import Sweep, SweepTrial
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.sim.simulation import simulate
from rota.workload.learning_curves import load
from rota.workload.trace import Trace

NAME = "sweep-fairness"
SEEDS = list(range(5))  # each another draw of configurations
CLUSTER = "1x4"
SEARCH = "digits-resnet"
TRIALS, TRIAL_S = 100, 40 * 60.0
USERS, JOB_S = 4, 2 * 3600.0
COSTS = Costs(suspend_s=0.125, resume_s=0.125, migrate_s=2.0, cold_start_s=10.0)
POLICIES = ("fifo", "gandiva")
# Fixed before the first run: jobs take turns of a minute, and a start is 10 s.
MOST_RHO = 1.1


class Rhos(NamedTuple):
    """Finish-time fairness: of the single job that is worst off, and of the search."""

    worst_job: float
    search: float


def run() -> Outcome:
    """Run both policies on every draw."""
    policies = {policy: policy for policy in POLICIES}
    found = for_each_seed(rhos, policies, SEEDS, num_jobs=TRIALS + USERS)
    figures = []
    for index, who in enumerate(("single job that is worst off", "search")):
        fifo, ours = ([each[index] for each in found[policy]] for policy in POLICIES)
        figures.append(
            Figure(
                f"finish-time fairness of the {who}",
                "rho",
                None,
                median(fifo),
                median(ours),
                0.0,
                MOST_RHO,
                least=min(ours),
                most=max(ours),
            )
        )
    settings = {
        "cluster": CLUSTER,
        "search": load(SEARCH).task,
        "trials": TRIALS,
        "trial_s": TRIAL_S,
        "users with a job": USERS,
        "job_s": JOB_S,
        "costs": COSTS._asdict(),
        "baseline": "fifo",
        "information": information(*POLICIES),
    }
    return Outcome(NAME, SEEDS, settings, figures)


def rhos(policy: str, seed: int) -> Rhos:
    """One draw under one policy."""
    runs = Random(seed).sample(load(SEARCH).runs, TRIALS)
    sweep = Sweep(SEARCH, "accuracy", reports=len(runs[0].accuracies))
    trials = [
        JobSpec(f"trial{n:03}", 1, 0.0, TRIAL_S, user="searcher", trial=SweepTrial(sweep, n))
        for n in range(TRIALS)
    ]
    jobs = [JobSpec(f"user{n}", 1, 0.0, JOB_S, user=f"user{n}") for n in range(USERS)]
    curves = {f"trial{n:03}": each.accuracies for n, each in enumerate(runs)}
    nodes = parse_cluster(CLUSTER)
    trace = Trace([*trials, *jobs], NAME)
    state, _ = simulate(trace, nodes, create(policy), COSTS, curves=curves)
    share_gpus = sum(node.num_gpus for node in nodes) / (USERS + 1)
    ends: dict[str, float] = {}
    for spec, finish_s in zip(state.spec, state.finish_s, strict=True):
        ends[spec.user] = max(finish_s, ends.get(spec.user, 0.0))
    alone_s = TRIALS * TRIAL_S / share_gpus
    job_alone_s = JOB_S / min(1.0, share_gpus)
    worst = max(ends[each.user] for each in jobs) / job_alone_s
    return Rhos(worst, ends["searcher"] / alone_s)
