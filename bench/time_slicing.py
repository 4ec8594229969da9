"""Time-slicing against running to completion: six equal trainings, alternating, several times.

    python bench/time_slicing.py [--repeats 5] [--slots 2] [--quantum 1]

Each repeat runs all trainings under gandiva and then under fifo, on a private cluster. Printed for
each repeat, and as median with minimum and maximum:

- share: largest deviation of a job's device time from an equal share, over the window in which all
  jobs are active (target: at most 10 %);
- throughput: steps done in that window, each at the time that it takes in the fifo run, over the
  device time of the window (target: at least 97 %); the window begins when every job has done its
  first step, because start-up is not what is compared;
- suspend: from the step boundary until the slot is free, median over all suspensions (target: below
  50 ms); resume: from the command until the job runs;
- first 100: average time from submission to 100 mini-batches, fifo over gandiva.
"""

import argparse
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rota.demo.cluster import JobRecord, Run, run_workload
from rota.demo.figures import compare, settings_of
from rota.demo.workload import EQUALS, examples_folder, fields
from rota.report.timeline import Timeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--quantum", type=float, default=1.0)
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    for repeat in range(options.repeats):
        home = Path(tempfile.mkdtemp(prefix="rota-bench-"))
        try:
            slicing = measure(home / "a", "gandiva", options)
            fifo = measure(home / "b", "fifo", options)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        rows.append(figures(slicing, fifo))
        print(
            f"repeat {repeat + 1}: " + ", ".join(f"{k} {v:.3g}" for k, v in rows[-1].items()),
            flush=True,
        )
    print(f"\n{'figure':<24}{'median':>10}{'min':>10}{'max':>10}")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:<24}{median(values):>10.3f}{min(values):>10.3f}{max(values):>10.3f}")


def measure(home: Path, policy: str, options: argparse.Namespace) -> Run:
    jobs = [(0.0, fields(training, examples_folder())) for training in EQUALS]
    return run_workload(
        home,
        jobs,
        policy=policy,
        settings=settings_of(policy, options.quantum),
        gpus=options.slots,
        watch=lambda _: None,
    )


def figures(slicing: Run, fifo: Run) -> dict[str, float]:
    runs = {"gandiva": slicing, "fifo": fifo}
    compared = compare(runs, EQUALS, {policy: {} for policy in runs})
    parts = shares(slicing.timeline, range(len(EQUALS))).values()
    switches = slicing.timeline.switches.values()
    suspend_s = [seconds for each in switches for seconds in each.suspend_s]
    resume_s = [seconds for each in switches for seconds in each.resume_s]
    first = {column: value or math.nan for column, value in compared.first_100_s.items()}
    return {
        "share deviation %": 100 * max(abs(part * len(EQUALS) - 1) for part in parts),
        "throughput %": 100 * throughput(slicing, fifo),
        "suspend ms": 1e3 * median(suspend_s),
        "suspend ms, worst": 1e3 * max(suspend_s),
        "resume ms": 1e3 * median(resume_s),
        "resume ms, worst": 1e3 * max(resume_s),
        "suspensions": float(len(suspend_s)),
        "first 100 s, gandiva": first["gandiva measured"],
        "first 100 s, fifo": first["fifo measured"],
        "first 100, ratio": first["fifo measured"] / first["gandiva measured"],
        "completion s, gandiva": compared.completion_s["gandiva measured"],
        "completion s, fifo": compared.completion_s["fifo measured"],
    }


def shares(timeline: Timeline, rows: Sequence[int]) -> dict[int, float]:
    """Each job's part of the device time of all, while all of them are active.

    The window begins when the last of them was submitted and ends when the first one finishes.
    """
    start_s = max(timeline.submit_s[row] for row in rows)
    end_s = min(timeline.finish_s[row] for row in rows)
    ran_s = {row: timeline.device_s(row, start_s, end_s) for row in rows}
    total_s = sum(ran_s.values())
    return {row: seconds / total_s if total_s else 0.0 for row, seconds in ran_s.items()}


def throughput(slicing: Run, fifo: Run) -> float:
    """Useful device time, at the fifo run's speed, over the device time there was."""
    start_s = max(next(r["at_s"] for r in job.reports if r["step"] > 0) for job in slicing.jobs)
    end_s = min(slicing.timeline.finish_s.values())
    useful_s = sum(
        (step_at(job, end_s) - step_at(job, start_s)) * seconds_per_step(alone)
        for job, alone in zip(slicing.jobs, fifo.jobs, strict=True)
    )
    return useful_s / (slicing.timeline.num_gpus * (end_s - start_s))


def step_at(job: JobRecord, at_s: float) -> float:
    """The steps done by then, in proportion between two reports. Jobs report at each suspension."""
    before_s, before = 0.0, 0
    for report in job.reports:
        if report["at_s"] > at_s:
            part = (at_s - before_s) / (report["at_s"] - before_s) if before else 0.0
            return before + part * (report["step"] - before)
        before_s, before = report["at_s"], report["step"]
    return before


def seconds_per_step(job: JobRecord) -> float:
    """Wall time per step of an undisturbed run, with all that goes on between steps."""
    first = next(report for report in job.reports if report["step"] > 0)
    last = job.reports[-1]
    return (last["at_s"] - first["at_s"]) / (last["step"] - first["step"])


if __name__ == "__main__":
    main()
