"""The page about simulated runs: a table of all figures, and figures that can be zoomed."""

from __future__ import annotations

from collections.abc import Sequence

from rota.report.charts import (
    bins_jct_chart,
    completion_chart,
    course_chart,
    slowdown_chart,
    sweep_chart,
)
from rota.report.comparison import ORACLE_NOTE, Entry, spread_table
from rota.report.curves import BIN_TEXT, OVER_AXIS, few_runs
from rota.report.fairness import UNFAIR
from rota.report.gpuchart import gpus_chart
from rota.report.page import Section, Table, page
from rota.report.statistic import FEWEST_DRAWN

MEANINGS = (
    ("JCT", "job completion time: from submission to the end"),
    ("queue", "JCT less the time of service and the costs charged to the job"),
    ("first 100", "time from submission to the end of a job's first 100 mini-batches"),
    ("slowdown", "JCT over run time without any wait, or over 10 s where that is longer"),
    ("rho", "JCT over the JCT on an equal share of the cluster; above 1, sharing was unfair"),
    ("unfair jobs", f"jobs with a rho above {UNFAIR:g}"),
    ("Jain index", "how equal the jobs' rates of progress (run time over JCT) are; 1: all equal"),
    ("fragmentation", "free GPUs that no waiting job could use because they lie apart"),
    ("ETAs kept", "starts and ends within the range that the run's past foretold; 80 % should be"),
    ("lost attempts", "starts of jobs that a fault ended before the job did"),
    ("lost GPU s", "work that faults destroyed, in GPU-seconds"),
)


def report(title: str, facts: str, entries: Sequence[Entry], axes: Sequence[str] = ()) -> str:
    """The page about ``entries``: the text of one HTML file that needs no other file.

    ``facts`` is a sentence about the runs; ``axes`` are the points to draw figures over. Figures
    for which the entries have no sketches are not drawn.
    """
    return page(title, _sections(facts, entries, axes))


def _sections(facts: str, entries: Sequence[Entry], axes: Sequence[str]) -> list[Section]:
    many = any(len(entry.summaries) > 1 for entry in entries)
    notes = [facts]
    if many:
        notes.append("Means over the seeds, ± half the width of the 95 % confidence interval.")
    if few_runs(entries):
        notes.append(
            f"The intervals of fewer than {FEWEST_DRAWN} seeds are too wide to say much, and are "
            "not drawn."
        )
    if any(entry.is_oracle for entry in entries):
        notes.append(f"{ORACLE_NOTE}.")
    sections = [Section("Figures", " ".join(notes), Table(*spread_table(entries)))]
    for axis in axes:
        sections += [
            Section(
                f"{heading[0].upper()}{heading[1:]} over {axis}",
                "",
                sweep_chart(entries, axis, key),
            )
            for key, heading in OVER_AXIS.items()
        ]
    if any(entry.sketches for entry in entries):
        sections += _pictures(entries, many)
    sections.append(Section("What the words mean", "", Table(["", ""], MEANINGS, prose=True)))
    return sections


def _pictures(entries: Sequence[Entry], many: bool) -> list[Section]:
    seed = " Of the first seed." if many else ""
    bars = "Click a name to hide it, twice to see it alone."
    sections = [
        Section(
            "Job completion times",
            f"How many of the jobs had completed within a time of their submission. {bars}",
            completion_chart(entries),
        ),
        Section(
            "Waiting jobs",
            f"Jobs that hold no GPU, averaged over short spans.{seed}",
            course_chart(entries, "waiting_jobs", "waiting jobs", False),
        ),
        Section(
            "GPUs in use",
            f"The share of all GPUs on which jobs advance, averaged over short spans.{seed}",
            course_chart(entries, "used", "GPUs in use", True),
        ),
        Section(
            "Slowdown by job size",
            f"{BIN_TEXT}. Averages of each bin; 1 is a job that never waits.",
            slowdown_chart(entries),
        ),
        Section(
            "Completion time by job size",
            f"{BIN_TEXT}. Averages of each bin.",
            bins_jct_chart(entries),
        ),
    ]
    if any(sketch.pieces for entry in entries for sketch in entry.sketches):
        sections.append(
            Section(
                "Who held which GPU",
                "Drag to zoom, double-click to see everything again; the menu chooses the policy. "
                f"Colours repeat; grey are several short turns in a row.{seed}",
                gpus_chart(entries),
            )
        )
    return sections
