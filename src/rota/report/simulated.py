"""The page about simulated runs: the verdict first, then figures, and all of them folded."""

from __future__ import annotations

from collections.abc import Sequence

from rota.report.comparison import ORACLE_NOTE, Entry, narrow_table, spread_table
from rota.report.curves import BIN_TEXT, OVER_AXIS, few_runs
from rota.report.fairness import UNFAIR
from rota.report.images import MOST_PANELS, drawings
from rota.report.page import Drawing, Section, Table, page
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


def report(
    title: str,
    facts: str,
    entries: Sequence[Entry],
    axes: Sequence[str] = (),
    notes: Sequence[str] = (),
    logged: Entry | None = None,
) -> str:
    """The page about ``entries``: the text of one HTML file that needs no other file.

    ``facts`` is a sentence about the runs; ``axes`` are the points to draw figures over. Figures
    for which the entries have no sketches are not drawn. ``notes`` are what the command prints
    below its table, and ``logged`` is the log's own line, if it has one.
    """
    return page(title, _sections(facts, entries, axes, notes, logged))


def _sections(
    facts: str,
    entries: Sequence[Entry],
    axes: Sequence[str],
    notes: Sequence[str],
    logged: Entry | None,
) -> list[Section]:
    many = any(len(entry.summaries) > 1 for entry in entries)
    more = []
    if many:
        more.append("Means over the seeds, ± half the width of the 95 % confidence interval.")
    if few_runs(entries):
        more.append(
            f"The intervals of fewer than {FEWEST_DRAWN} seeds are too wide to say much, and are "
            "not drawn."
        )
    if any(entry.is_oracle for entry in entries):
        more.append(f"{ORACLE_NOTE}.")
    told = [*entries, *([] if logged is None else [logged])]
    header, rows, _ = narrow_table(told)
    texts = range(1, 1 + any(entry.information for entry in entries) + len(entries[0].point))
    sections = []
    if notes:
        sections.append(Section("Verdict", facts, Table(["", ""], _parted(notes), prose=True)))
    sections.append(
        Section(
            "Policies",
            " ".join([*([] if notes else [facts]), *more]),
            Table(header, rows, text_columns=texts),
        )
    )
    sections += _drawn(entries, axes, " Of the first seed." if many else "")
    sections.append(Section("All figures", "", Table(*spread_table(told)), folded=True))
    words = Table(["", ""], MEANINGS, prose=True)
    sections.append(Section("What the words mean", "", words, folded=True))
    return sections


def _parted(notes: Sequence[str]) -> list[list[str]]:
    """The notes as rows, verdicts first: what each is about, and what it says."""
    rows = [list(note.partition(": ")[::2]) for note in notes]
    return sorted(rows, key=lambda row: not row[0].startswith(("verdict", "if it were")))


def _drawn(entries: Sequence[Entry], axes: Sequence[str], seed: str) -> list[Section]:
    """A section for each figure; all but the first are folded."""
    held = sum(1 for entry in entries if entry.sketches and entry.sketches[0].pieces)
    some = f" Of the first {MOST_PANELS} policies." if held > MOST_PANELS else ""
    texts = {
        "completion": (
            "Job completion times",
            "How many of the jobs had completed within a time of their submission.",
        ),
        "queue": (
            "Waiting jobs",
            f"Jobs that hold no GPU, averaged over short spans.{seed}",
        ),
        "utilisation": (
            "GPUs in use",
            f"The share of all GPUs on which jobs advance, averaged over short spans.{seed}",
        ),
        "slowdown": (
            "Slowdown by job size",
            f"{BIN_TEXT}. Averages of each bin; 1 is a job that never waits.",
        ),
        "gpus": (
            "Who held which GPU",
            f"Colours repeat; grey are several short turns in a row.{seed}{some}",
        ),
    }
    for axis in axes:
        for key, heading in OVER_AXIS.items():
            texts[f"{key}-over-{axis}"] = (f"{heading[0].upper()}{heading[1:]} over {axis}", "")
    return [
        Section(*texts[name], Drawing(svg), folded=index > 0)
        for index, (name, svg) in enumerate(drawings(entries, axes))
    ]
