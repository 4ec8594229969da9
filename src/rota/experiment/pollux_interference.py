"""Jobs that share the links of a node slow down: with avoidance and without (Pollux, OSDI 2021).

*Pollux* (section 5.3) lets jobs on several nodes lose a quarter or half of their speed while
another such job is on one of their nodes, and never places them so. Published, as means of eight
workloads: an average completion time of 2751 s with this avoidance, and 2758, 3177 and 3903 s
without it where they lose nothing, a quarter and half. Here four of these workloads are played, of
160 jobs each, under the published objective.

With ``interference=avoid`` a job gets whole nodes beyond one; with ``ignore`` any number of GPUs,
wherever they are free, as the published search gives them. Judged are that the first never places
two such jobs on a node, so that it loses nothing; that without it jobs take about as long where
they don't slow each other down; and that they take longer where they do. How much longer depends
on how often they meet, and is shown beside the published figures.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

from rota.experiment.base import Figure, Outcome
from rota.experiment.runs.pollux_workloads import (
    CLUSTER,
    INTERVAL_S,
    RESTART_S,
    WORKLOADS,
    WORTH_JOBS,
    Run,
    play,
    require,
)
from rota.experiment.runs.pool import over_cores
from rota.policy.information import information_of
from rota.policy.registry import create

NAME = "pollux-interference"
SETTINGS = {"objective": "pollux", "fits": "job"}
PUBLISHED_AVOIDING_S = 2751.0
PUBLISHED_S = {0.0: 2758.0, 0.25: 3177.0, 0.5: 3903.0}  # without avoidance, by what is lost
# Of the average completion time without avoidance over that with it.
BOUNDS = {0.0: (0.95, 1.1), 0.25: (1.02, 1.3), 0.5: (1.1, 1.6)}
Runs = dict[tuple[str, float], list[Run]]


def run(data: Path | None = None) -> Outcome:
    """Play the workloads of ``data``. Raises DataMissingError."""
    folder = require(data)
    cases = [("avoid", max(BOUNDS)), *(("ignore", lost) for lost in BOUNDS)]
    calls = [(folder, number, *case) for case in cases for number in WORKLOADS]
    found = iter(over_cores(measure, calls, num_jobs=WORTH_JOBS))
    outcome: Runs = {case: [next(found) for _ in WORKLOADS] for case in cases}
    settings: dict[str, Any] = {"cluster": CLUSTER, "workloads": WORKLOADS, **SETTINGS}
    settings |= {"interval_s": INTERVAL_S, "restart_s": RESTART_S}
    settings["information"] = information_of(create("pollux", SETTINGS))
    return Outcome(NAME, [], settings, figures(outcome))


def measure(data: Path, number: int, interference: str, lost: float) -> Run:
    """One workload with avoidance or without, where jobs beside each other lose so much."""
    return play(data, number, SETTINGS | {"interference": interference}, links=lost)


def figures(runs: Runs) -> list[Figure]:
    """What came out of the runs by (interference, part that is lost), a list of workloads each."""
    [avoiding] = [runs[case] for case in runs if case[0] == "avoid"]
    ours_s = fmean(run.avg_jct_s for run in avoiding)
    met = max(run.beside for run in avoiding)
    found = [
        Figure("avoided: average JCT", "s", PUBLISHED_AVOIDING_S, None, ours_s),
        Figure("avoided: time beside another job on a node", "", None, None, met, 0.0, 0.0),
    ]
    for (interference, lost), each in runs.items():
        if interference == "avoid":
            continue
        name, average_s = f"not avoided, {lost:.0%} lost", fmean(run.avg_jct_s for run in each)
        beside = fmean(run.beside for run in each)
        published = PUBLISHED_S[lost] / PUBLISHED_AVOIDING_S
        found += [
            Figure(f"{name}: average JCT", "s", PUBLISHED_S[lost], ours_s, average_s),
            Figure(f"{name}: over avoided", "", published, 1.0, average_s / ours_s, *BOUNDS[lost]),
            Figure(f"{name}: time beside another job on a node", "", None, met, beside),
        ]
    return found
