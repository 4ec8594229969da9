"""The simulator against figures that are known to the digit.

    python bench/exactness.py --data DIR

DIR holds ``tiresias/``: the public 60-job trace of the Tiresias simulator, a 480-job stand-in for
its unpublished one, and the reference simulator's results per job. Printed are each fact, the
expected figure, ours, and whether they agree; the exit code is 1 if one does not. Without
``--data`` only the facts on loads that are made here are checked.

Overheads are nil throughout, as in the reference. The 95th percentile is by nearest rank, the mean
queue is JCT less service less charges. Gittins indexes are checked by ``bench/gittins.py``.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rota.model.cluster import parse_cluster
from rota.model.state import ClusterState
from rota.policy.registry import create
from rota.report.metrics import summarise
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import simulate
from rota.testing.builders import toy_trio, twenty_jobs
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

# Completion of jobs 1, 2, 3. Published averages: SRSF 9.3, Gittins 10, LAS 11.7 (Tiresias, NSDI
# 2019); the thresholds of the discretised queues are given by the tasks' sizes 4, 8 and 12.
TRIO: list[tuple[str, str, Settings, tuple[float, float, float]]] = [
    ("SRSF", "srsf", {}, (2, 10, 16)),
    ("LAS, quantum 1", "las", {"quantum_s": "1"}, (5, 14, 16)),
    ("SRTF", "srtf", {}, (2, 16, 8)),
    ("SF", "smallest-first", {}, (10, 8, 16)),
    ("2D-LAS at 4", "tiresias", {"thresholds": "4"} | NO_KNOB, (2, 12, 16)),
    ("2D-LAS at 8", "tiresias", {"thresholds": "8"} | NO_KNOB, (2, 10, 16)),
    ("2D-LAS, one queue", "tiresias", {"thresholds": ""} | NO_KNOB, (2, 10, 16)),
]
TWENTY: list[tuple[str, str, Settings, Costs, tuple[float, ...]]] = [
    ("FIFO", "fifo", {}, FREE, (2082.0, 2055, 3630, 4350, 1668.0, 0)),
    ("FIFO with backfill", "fifo-backfill", {}, FREE, (1074.0, 660, 2850, 3660, 660.0, 0)),
    ("SF", "smallest-first", {}, FREE, (1150.5, 660, 3030, 3840, 736.5, 2)),
    ("SRTF", "srtf", {}, FREE, (1033.5, 690, 2670, 3900, 619.5, 13)),
    ("SRSF", "srsf", {}, FREE, (985.5, 630, 2370, 3630, 571.5, 5)),
    (
        "2D-LAS at 600",
        "tiresias",
        {"thresholds": "600"} | NO_KNOB,
        FREE,
        (1254.0, 1080, 2925, 3660, 840.0, 13),
    ),
    (
        "2D-LAS at 600 and 1800",
        "tiresias",
        {"thresholds": "600,1800"} | NO_KNOB,
        FREE,
        (1302.0, 1080, 3120, 3660, 888.0, 18),
    ),
    (
        "2D-LAS at 600, 60 s a resume",
        "tiresias",
        {"thresholds": "600"} | NO_KNOB,
        FREE._replace(resume_s=60.0),
        (1408.5, 1455, 3345, 4140, 949.5, 15),
    ),
]
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
    parser.add_argument("--data", type=Path, metavar="DIR")
    data = parser.parse_args().data
    if data is not None and not (data / "tiresias").is_dir():
        sys.exit(f"there is no {data / 'tiresias'}; --data names the folder with the public data")
    facts = [*toy_trio_facts(), *twenty_jobs_facts()]
    if data is None:
        print("no --data: the facts on the public traces are left out\n")
    else:
        facts += [*sixty_jobs_facts(data / "tiresias"), *stand_in_facts(data / "tiresias")]
    print(f"{'fact':58} {'expected':>16} {'ours':>16}  ok")
    wrong = 0
    for what, expected, ours, tolerance in facts:
        ok = close(expected, ours, tolerance)
        wrong += not ok
        print(f"{what:58} {shown(expected):>16} {shown(ours):>16}  {'yes' if ok else 'NO'}")
    print(f"\n{len(facts)} facts, {len(facts) - wrong} agree")
    return 1 if wrong else 0


def toy_trio_facts() -> Iterator[Fact]:
    """Three jobs for two GPUs: when each completes."""
    for what, name, settings, expected in TRIO:
        state, _ = run(toy_trio(), "1x2", name, settings)
        yield f"toy trio, {what}: completions", expected, tuple(state.finish_s), 1e-9


def twenty_jobs_facts() -> Iterator[Fact]:
    """Twenty jobs for eight GPUs, every column."""
    for what, name, settings, costs, expected in TWENTY:
        _, figures = run(twenty_jobs(), "1x8", name, settings, costs)
        for (column, key), value in zip(COLUMNS.items(), expected, strict=True):
            yield f"20 jobs, {what}: {column}", value, figures[key], 1e-6


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
    trace: Trace, cluster: str, name: str, settings: Settings, costs: Costs = FREE
) -> tuple[ClusterState, dict[str, Any]]:
    """The final state of a simulation, and its figures."""
    state, decisions = simulate(trace, parse_cluster(cluster), create(name, settings), costs)
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
