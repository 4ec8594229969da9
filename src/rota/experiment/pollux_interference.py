"""Jobs that share the links of a node slow down: with avoidance and without (Pollux, OSDI 2021).

*Pollux* (section 5.3) lets jobs on several nodes lose a quarter or half of their speed while
another such job is on one of their nodes, and never places them so. Published, as means of eight
workloads: an average completion time of 2751 s with this avoidance, and 2758, 3177 and 3903 s
without it where they lose nothing, a quarter and half. Here four of these workloads are played, of
160 jobs each, under the published objective. Seed 0 is the workloads as they are; with others jobs
come up to 30 s sooner or later.

With ``interference=avoid`` a job gets whole nodes beyond one; with ``ignore`` any number of GPUs,
wherever they are free, as the published search gives them. Judged are that the first never places
two such jobs on a node, so that it loses nothing; that without it jobs take about as long where
they don't slow each other down; and that they take longer where they do. How much longer depends
on how often they meet, and is shown beside the published figures. Each holds for every seed.
"""

from pathlib import Path
from statistics import fmean

from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.pollux import (
    AS_PUBLISHED,
    Runs,
    Subject,
    average_jct_s,
    run_all,
    settings_of,
)
from rota.experiment.runs.pollux_jobs import WORKLOADS, require, workloads

NAME = "pollux-interference"
SEEDS = [0, 1, 2]
PUBLISHED_AVOIDING_S = 2751.0
PUBLISHED_S = {0.0: 2758.0, 0.25: 3177.0, 0.5: 3903.0}  # without avoidance, by what is lost
# Of the average completion time without avoidance over that with it.
BOUNDS = {0.0: (0.95, 1.1), 0.25: (1.02, 1.3), 0.5: (1.1, 1.6)}
Case = tuple[str, float]  # setting, part that jobs lose beside each other


def run(data: Path | None = None) -> Outcome:
    """Play the workloads of ``data``. Raises DataMissingError."""
    data = require(data)
    cases: list[Case] = [("avoid", max(BOUNDS)), *(("ignore", lost) for lost in BOUNDS)]
    runs = run_all({case: _subjects(data, *case) for case in cases}, SEEDS)
    settings = settings_of(data) | {"variant": AS_PUBLISHED.as_list()}
    return Outcome(NAME, SEEDS, settings, figures(runs))


def _subjects(data: Path, interference: str, lost: float) -> list[Subject]:
    """The workloads with avoidance or without, where jobs beside each other lose so much."""
    settings = AS_PUBLISHED.settings | {"interference": interference}
    variant = AS_PUBLISHED._replace(settings=settings)
    return [Subject(data, variant, jobs, links=lost) for jobs in workloads(data, WORKLOADS)]


def figures(found: dict[Case, list[Runs]]) -> list[Figure]:
    """Figures of the runs; ``found`` has, for each case and seed, a run of each workload."""
    [avoiding] = [found[case] for case in found if case[0] == "avoid"]
    ours_s = [average_jct_s(runs) for runs in avoiding]
    met = [max(run.beside for run in runs) for runs in avoiding]
    never, beside = (0.0, 0.0), "time beside another job on a node"
    made = [
        over_seeds("avoided: average JCT", "s", ours_s, published=PUBLISHED_AVOIDING_S),
        over_seeds(f"avoided: {beside}", "", met, bounds=never, every=True),
    ]
    for (interference, lost), each in found.items():
        if interference == "avoid":
            continue
        name, averages_s = f"not avoided, {lost:.0%} lost", [average_jct_s(runs) for runs in each]
        over = ratios(averages_s, ours_s)
        there, ratio = PUBLISHED_S[lost], PUBLISHED_S[lost] / PUBLISHED_AVOIDING_S
        often = [fmean(run.beside for run in runs) for runs in each]
        made += [
            over_seeds(f"{name}: average JCT", "s", averages_s, published=there, baseline=ours_s),
            over_seeds(
                f"{name}: over avoided", "", over, published=ratio, bounds=BOUNDS[lost], every=True
            ),
            over_seeds(f"{name}: {beside}", "", often, baseline=met),
        ]
    return made
