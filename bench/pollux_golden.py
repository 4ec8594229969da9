"""Average completion times on Pollux' workloads, beside those of the published simulator.

    python bench/pollux_golden.py --data DIR

``DIR`` names a folder with ``pollux/workloads/workload-1.csv`` to ``-4.csv`` and
``pollux/profiles``. Each workload is 160 jobs on 16 nodes of 4 GPUs, with the GPUs and the batch
that their users tuned; decisions every 60 s, and 30 s for each restart. The published averages are
those of AdaptDL's branch osdi21-artifact (Tiresias, and Optimus with an oracle). Ours must be
within 1 % of them. What differs: an epoch lasts as long as it lasts, where the published simulator
rounds to whole seconds; a restart is no attained service; a preempted job goes back to its GPUs if
they are free; GPUs are a ring in the order of the nodes.

Then the CPU time of whole simulations under ``pollux``, the mean over workloads for each variant
of experiment ``pollux-jct``, which must be below 3 s. The published simulator took 2,000 to 3,000.
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

from _data import add_data, is_there

from rota.experiment.pollux_jct import BASELINE, PUBLISHED, VARIANTS
from rota.experiment.runs.pollux import Run, Subject, Variant, average_jct_s, measure
from rota.experiment.runs.pollux_jobs import WORKLOADS, workloads

LIMIT, MOST_CPU_S = 0.01, 3.0
GOLDEN = ("Tiresias", "Optimus+Oracle")


def main() -> int:
    """Print a line for each workload and policy; 1 if one is outside its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    data = parser.parse_args().data
    files = [f"pollux/workloads/workload-{number}.csv" for number in WORKLOADS]
    if not is_there(data, "pollux/profiles", *files):
        return 0
    worst = print_golden(data)
    print(f"furthest off: {worst:.2%} (limit {LIMIT:.0%})")
    slowest_s = print_cpu_times(data)
    print(f"slowest: {slowest_s:.2f} s (limit {MOST_CPU_S:g} s)")
    return int(worst > LIMIT or slowest_s > MOST_CPU_S)


def print_golden(data: Path) -> float:
    """How far the furthest average is from the published one, as a part of that."""
    row("policy", "workload", "published", "ours", "ratio", "CPU s")
    worst = 0.0
    for label in GOLDEN:
        published = PUBLISHED[label].average_jct_s
        runs = simulated(data, VARIANTS[label])
        for number, there_s, run in zip(WORKLOADS, published, runs, strict=True):
            ratio = run.average_jct_s / there_s
            worst = max(worst, abs(ratio - 1))
            cells = (f"{there_s:.2f}", f"{run.average_jct_s:.2f}", f"{ratio:.4f}")
            row(label, number, *cells, f"{run.cpu_s:.2f}")
    return worst


def print_cpu_times(data: Path) -> float:
    """The longest CPU time of a simulation, each the mean over the workloads, in seconds."""
    row("pollux", "", "published", "ours", "ratio", "CPU s")
    slowest_s, there_s = 0.0, fmean(PUBLISHED[BASELINE].average_jct_s)
    for label, variant in VARIANTS.items():
        if variant.policy != "pollux":
            continue
        runs = simulated(data, variant)
        cpu_s, ours_s = fmean(run.cpu_s for run in runs), average_jct_s(runs)
        slowest_s = max(slowest_s, cpu_s)
        cells = (f"{there_s:.2f}", f"{ours_s:.2f}", f"{ours_s / there_s:.4f}")
        row(label, "mean", *cells, f"{cpu_s:.2f}")
    return slowest_s


def simulated(data: Path, variant: Variant) -> list[Run]:
    """The four workloads under a variant."""
    return [measure(Subject(data, variant, jobs), 0) for jobs in workloads(data)]


def row(*cells: Any) -> None:
    widths = (24, 9, 10, 10, 7, 6)
    print("  ".join(str(cell).ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip())


if __name__ == "__main__":
    raise SystemExit(main())
