"""The simulator against figures that are known to the digit.

    python bench/exactness.py --data DIR

DIR holds ``tiresias/``: the public 60-job trace of the Tiresias simulator, a 480-job stand-in for
its unpublished one, and the reference simulator's results per job. Printed are each fact, the
expected figure, ours, and whether they agree; the exit code is 1 if one does not. Loads that need
no data are among the tests.

Overheads are nil throughout, as in the reference. The 95th percentile is by nearest rank, the mean
queue is JCT less service less charges. Gittins indexes are checked by ``bench/gittins.py``.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _data import add_data, is_there

from rota.model.cluster import parse_cluster
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.report.metrics import summarise
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.workload.readers import read_trace
from rota.workload.trace import Trace

Fact = tuple[str, Any, Any, float]  # what, expected, ours, tolerance
Settings = dict[str, str]
NO_KNOB = {"promote_knob": "0"}
COLUMNS = {
    "average JCT": "avg_jct_s",
    "median": "median_jct_s",
    "p95": "p95_jct_s",
    "makespan": "makespan_s",
    "average queue": "avg_queue_s",
    "preemptions": "preemptions",
}

AT_3250 = {"thresholds": "3250"} | NO_KNOB
AT_500 = {"thresholds": "500", "within": "first-start"} | NO_KNOB
SIXTY: list[tuple[str, str, Settings, tuple[float, ...]]] = [
    ("FIFO", "fifo", {}, (200.82, 149.5, 366, 3335, 0)),
    ("FIFO with backfill", "fifo-backfill", {}, (190.68, 130, 366, 3271, 0)),
    ("SF", "smallest-first", {}, (198.20, 126.5, 462, 3271, 8)),
    ("SRTF", "srtf", {}, (192.12, 126.5, 383, 3271, 4)),
    ("SRSF", "srsf", {}, (194.98, 126.5, 460, 3315, 7)),
    ("2D-LAS at 3250", "tiresias", AT_3250, (190.68, 130, 366, 3271, 0)),
    ("2D-LAS at 500, by first start", "tiresias", AT_500, (211.13, 130.5, 536, 3271, 18)),
    ("YARN's blocks", "yarn-cs", {}, (219.18, 178.5, 368, 3341, 0)),
]
AT_3250_7200 = {"thresholds": "3250,7200"} | NO_KNOB
# Average JCT, and the file with the reference's results per job if there is one.
STAND_IN: list[tuple[str, str, Settings, float, str]] = [
    ("FIFO", "fifo", {}, 14419.473, "count_fifo"),
    ("FIFO with backfill", "fifo-backfill", {}, 7191.658, "count_fjf"),
    ("SF", "smallest-first", {}, 4520.806, "count_sjf"),
    ("SRTF", "srtf", {}, 3157.144, "count_shortest"),
    ("SRSF", "srsf", {}, 2667.835, ""),
    ("YARN's blocks", "yarn-cs", {}, 16376.729, "yarn_fifo"),
    ("YARN's blocks with backfill", "yarn-cs", {"backfill": "yes"}, 6878.358, ""),
    ("2D-LAS", "tiresias", AT_3250_7200, 3968.335, ""),
    ("2D-LAS by first start", "tiresias", AT_3250_7200 | {"within": "first-start"}, 5231.790, ""),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    data = parser.parse_args().data
    if not is_there(data, "tiresias"):
        return 0
    facts = [*sixty_jobs_facts(data / "tiresias"), *stand_in_facts(data / "tiresias")]
    print(f"{'fact':58} {'expected':>16} {'ours':>16}  ok")
    wrong = 0
    for what, expected, ours, tolerance in facts:
        ok = close(expected, ours, tolerance)
        wrong += not ok
        print(f"{what:58} {shown(expected):>16} {shown(ours):>16}  {'yes' if ok else 'NO'}")
    print(f"\n{len(facts)} facts, {len(facts) - wrong} agree")
    return 1 if wrong else 0


def sixty_jobs_facts(folder: Path) -> Iterator[Fact]:
    """The public trace on 16 GPUs, and on 60, where nobody ever waits for long."""
    trace = read_trace(str(folder / "60_job.csv"))
    for what, name, settings, expected in SIXTY:
        _, figures = run(trace, "4x4", name, settings)
        columns = {key: COLUMNS[key] for key in COLUMNS if key != "average queue"}
        for (column, key), value in zip(columns.items(), expected, strict=True):
            yield f"60 jobs on 4x4, {what}: {column}", value, figures[key], 0.01
    for what, name, settings, _ in SIXTY:
        _, figures = run(trace, "15x4", name, settings)
        ours = tuple(figures[key] for key in ("avg_jct_s", "median_jct_s", "makespan_s"))
        yield f"60 jobs on 15x4, {what}: average, median, makespan", (178.42, 125, 3271), ours, 0.01
    finishes = [
        list(run(trace, "4x4", name, settings)[0].finish_s)
        for name, settings in (("tiresias", AT_3250), ("fifo-backfill", {}))
    ]
    same = finishes[0] == finishes[1]
    yield "60 jobs on 4x4: 2D-LAS at 3250 is FIFO with backfill, by job", "same", same, 0


def stand_in_facts(folder: Path) -> Iterator[Fact]:
    """The 480-job stand-in on 60 GPUs: averages, and each job's completion."""
    trace = read_trace(str(folder / "480_job_synth.csv"))
    for what, name, settings, expected, file in STAND_IN:
        state, figures = run(trace, "15x4", name, settings)
        yield f"480 jobs, {what}: average JCT", expected, figures["avg_jct_s"], 0.005
        if file:
            path = folder / "expected" / f"480_job_synth_n15g4_{file}.csv"
            with path.open(encoding="utf-8", newline="") as rows:
                ends = {row["job_id"]: float(row["end_time"]) for row in csv.DictReader(rows)}
            equal = sum(ends[s.job_id] == state.finish_s[i] for i, s in enumerate(state.spec))
            yield f"480 jobs, {what}: jobs that end when they should", len(ends), equal, 0


def run(
    trace: Trace, cluster: str, name: str, settings: Settings
) -> tuple[ClusterState, dict[str, Any]]:
    """The final state of a simulation, and its figures."""
    state, decisions = simulate(trace, parse_cluster(cluster), create(name, settings), FREE)
    return state, summarise(state, decisions=decisions, policy=name)


def close(expected: Any, ours: Any, tolerance: float) -> bool:
    if isinstance(expected, tuple):
        return all(abs(e - o) <= tolerance for e, o in zip(expected, ours, strict=True))
    if expected == "same":
        return ours is True
    return bool(abs(expected - ours) <= tolerance)


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{part:g}" for part in value)
    if isinstance(value, bool):
        return "same" if value else "different"
    return value if isinstance(value, str) else f"{value:.3f}".rstrip("0").rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
