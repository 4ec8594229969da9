"""Orders by time alone and by GPUs alone against Tiresias' order by both.

Smallest first (SF) orders jobs by their GPUs alone, SRTF by their remaining time alone, SRSF by the
product (NSDI 2019, section 3.1). On workloads of the shape of the paper's testbed, without any cost
of preemption, average JCT is held against SRSF's: above 1 is worse. The bounds say no more than
that leaving a dimension out does not help there, and does not cost more than strict first in, first
out was found to cost against SRSF (5 times, in a calculation made beforehand). In the paper's trio
of jobs SRTF beats SRSF, so the order by both is not the best on every instance.
"""

from typing import Any

from rota.experiment.base import Figure, Outcome, for_each_seed, information, over_seeds, ratios
from rota.experiment.tiresias_example import CLUSTER as EXAMPLE_CLUSTER
from rota.experiment.tiresias_example import JOBS as EXAMPLE_JOBS
from rota.experiment.tiresias_example import completions
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.report.metrics import summarise
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.workload.published import tiresias_480

NAME = "tiresias-dimensions"
SEEDS = list(range(12))
NUM_JOBS = 480
CLUSTER = "15x4"
BOTH = "srsf"
# Policy -> what it orders by, and its average JCT on the trio, worked out by hand.
POLICIES = {
    "smallest-first": ("GPUs alone", 34 / 3),
    "srtf": ("time alone", 26 / 3),
    "srsf": ("both", 28 / 3),
}
LOW, HIGH = 1.0, 5.0
TOLERANCE = 1e-9


def run() -> Outcome:
    """Simulate all orders on all seeds, and on the trio."""
    runs = for_each_seed(measure, {policy: policy for policy in POLICIES}, SEEDS, num_jobs=NUM_JOBS)
    return Outcome(NAME, SEEDS, _settings(), [*compared(runs), *_trio_figures()])


def compared(runs: dict[str, list[dict[str, Any]]]) -> list[Figure]:
    """Each order over the one by both, from the summaries of the runs by seed."""
    figures = []
    for key, statistic in (("avg_jct_s", "average"), ("median_jct_s", "median")):
        best = [run[key] for run in runs[BOTH]]
        figures.append(over_seeds(f"{statistic} JCT, {BOTH} (both)", "s", best))
        for policy, (by, _) in POLICIES.items():
            if policy == BOTH:
                continue
            theirs = [run[key] for run in runs[policy]]
            figures.append(
                over_seeds(
                    f"{statistic} JCT, {policy} ({by}) over {BOTH}",
                    "times",
                    ratios(theirs, best),
                    bounds=(LOW, HIGH) if statistic == "average" else None,
                )
            )
    return figures


def measure(policy: str, seed: int) -> dict[str, Any]:
    """The summary of one simulation."""
    trace, nodes = tiresias_480(seed, NUM_JOBS), parse_cluster(CLUSTER)
    state, decisions = simulate(trace, nodes, create(policy), FREE)
    return summarise(state, decisions=decisions, policy=policy)


def _trio_figures() -> list[Figure]:
    averages = {policy: sum(found) / len(found) for policy, found in _trio().items()}
    figures = [
        Figure(
            f"trio: average JCT, {policy} ({by})",
            "units",
            9.3 if policy == BOTH else None,
            None,
            averages[policy],
            expected - TOLERANCE,
            expected + TOLERANCE,
        )
        for policy, (by, expected) in POLICIES.items()
    ]
    ratio = averages["srtf"] / averages[BOTH]
    expected = POLICIES["srtf"][1] / POLICIES[BOTH][1]
    low, high = expected - TOLERANCE, expected + TOLERANCE
    return [*figures, Figure(f"trio: srtf over {BOTH}", "times", None, None, ratio, low, high)]


def _trio() -> dict[str, list[float]]:
    return {policy: completions(policy, {}) for policy in POLICIES}


def _settings() -> dict[str, Any]:
    return {
        "workload": "rota.workload.published.tiresias_480",
        "jobs": NUM_JOBS,
        "cluster": CLUSTER,
        "costs": "none",
        "information": information(*POLICIES),
        "trio": {
            "cluster": EXAMPLE_CLUSTER,
            "jobs": [{"gpus": gpus, "lasts": lasts} for _, gpus, lasts in EXAMPLE_JOBS],
        },
    }
