"""The demo's result, as tables in the terminal and as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as TerminalTable

from rota.demo.cluster import Run
from rota.demo.figures import BASELINE, Comparison
from rota.report.charts import bars_chart, curves_chart, slots_chart
from rota.report.page import Section, Table, write_page


def print_story(console: Console, compared: Comparison) -> None:
    """Print the tables, and a sentence about each."""
    _print(console, "Trainings", training_table(compared))
    _print(console, "Turns (gandiva)", turn_table(compared))
    _print(console, "Seconds from submission to the end", completion_table(compared))
    _print(console, "Averages over the jobs, in seconds", average_table(compared))
    console.print()
    for sentence in sentences(compared):
        console.print(f"- {sentence}")


def training_table(compared: Comparison) -> Table:
    """Table: what each job asked for, and what it reached."""
    rows = []
    for job in compared.jobs:
        value = "-" if job.value is None else f"{job.value:.3f}"
        rows.append(
            (
                job.training.name,
                str(job.training.gpus),
                f"{job.training.at_s:g} s",
                str(job.steps),
                f"{1e3 * job.step_time_s:.1f}",
                f"{job.training.metric} {value}",
                job.target,
                "yes" if job.reached else "no",
            )
        )
    header = ("job", "slots", "comes at", "steps", "ms/step", "final metric", "target", "reached")
    return Table(header, rows)


def turn_table(compared: Comparison) -> Table:
    """Table: what switching cost each job."""
    rows = [
        (
            job.training.name,
            str(job.suspensions),
            f"{1e3 * job.suspend_median_s:.1f} / {1e3 * job.suspend_max_s:.1f}",
            f"{1e3 * job.resume_median_s:.1f} / {1e3 * job.resume_max_s:.1f}",
        )
        for job in compared.jobs
    ]
    return Table(("job", "suspended", "suspend ms", "resume ms"), rows)


def completion_table(compared: Comparison) -> Table:
    """Table: completion time of each job since its submission, under each policy."""
    rows = [
        (job.training.name, *(f"{job.completion_s[_measured(p)]:.1f}" for p in compared.policies))
        for job in compared.jobs
    ]
    return Table(("job", *compared.policies), rows)


def average_table(compared: Comparison) -> Table:
    """The averages, measured and predicted, under each policy."""
    figures: list[tuple[str, Mapping[str, float | None]]] = [
        ("first 100 mini-batches", compared.first_100_s),
        ("completion", compared.completion_s),
        ("all are done", compared.all_done_s),
    ]
    rows = [
        (name, *(_seconds(values[column]) for column in compared.columns))
        for name, values in figures
    ]
    short = [c.replace(" measured", "").replace("predicted", "sim") for c in compared.columns]
    return Table(("time to", *short), rows)


def sentences(compared: Comparison) -> list[str]:
    """Sentences that compare the policies with the last one."""
    *others, last = compared.policies
    figures: list[tuple[str, Mapping[str, float | None]]] = [
        ("first 100 mini-batches", compared.first_100_s),
        ("completion", compared.completion_s),
        ("all done", compared.all_done_s),
    ]
    told = []
    for policy in others:
        changes = [
            f"{name} {_times(values[_measured(last)], values[_measured(policy)])}"
            for name, values in figures
        ]
        told.append(f"{policy} against {last}: {', '.join(changes)}.")
    baseline = _times(compared.completion_s[f"{last} predicted"], compared.baseline_s)
    first = compared.jobs[0]
    ends = ", ".join(f"{first.completion_s[_measured(p)]:.0f} s ({p})" for p in compared.policies)
    return [
        *told,
        f"Who pays: {first.training.name}, which came first, takes {ends}.",
        f"{BASELINE} against {last}, both in the simulator: completion {baseline}.",
        "sim: the simulator's prediction, from the step times and switch costs measured under "
        f"{compared.policies[0]}.",
    ]


def _times(slow_s: float | None, fast_s: float | None) -> str:
    if slow_s is None or fast_s is None:
        return "not reached by every job"
    if 0.98 < slow_s / fast_s < 1.02:
        return "alike"
    sooner = slow_s > fast_s
    return f"{max(slow_s / fast_s, fast_s / slow_s):.2f} times {'as soon' if sooner else 'as late'}"


def _measured(policy: str) -> str:
    return f"{policy} measured"


def write_report(path: Path, compared: Comparison) -> None:
    """The page: tables, who held which slot, and how training went."""
    names = [job.training.name for job in compared.jobs]
    first_100 = {
        column: [job.first_100_s[column] or 0.0 for job in compared.jobs]
        for column in compared.columns
    }
    completion = {
        column: [job.completion_s[column] for job in compared.jobs] for column in compared.columns
    }
    first = compared.policies[0]
    sections = [
        Section("Averages", " ".join(sentences(compared)), average_table(compared)),
        Section("Completion", "Seconds from submission to the end.", completion_table(compared)),
        Section("", "", bars_chart(completion, names, "by job", "seconds since submission")),
        *(
            Section(
                "Who held which slot" if policy == first else "",
                "Drag to zoom." if policy == first else "",
                slots_chart(run.timeline, names, run.zero_s, _measured(policy)),
            )
            for policy, run in compared.runs.items()
        ),
        *(
            Section(
                "How far each job had come" if policy == first else "",
                "Progress towards all the steps that it needed." if policy == first else "",
                curves_chart(_progress(run, names), _measured(policy), "part of its steps"),
            )
            for policy, run in compared.runs.items()
        ),
        Section(
            "Time to the first 100 mini-batches",
            "What decides how soon one sees whether a training is worth going on with.",
            bars_chart(first_100, names, "by job", "seconds since submission"),
        ),
        Section("Trainings", f"As they ended under {first}.", training_table(compared)),
        Section(
            "Turns",
            "Suspensions and resumptions as median / maximum: from the step boundary to the freed "
            "slot, and from the command to the running job.",
            turn_table(compared),
        ),
        *(
            Section(
                "Training" if index == 0 else "",
                "",
                curves_chart(
                    _metric(compared.runs[first], index, job.training.metric),
                    job.training.name,
                    job.training.metric,
                ),
            )
            for index, job in enumerate(compared.jobs)
        ),
    ]
    write_page(path, "Rota: a long training ahead of short ones", sections)


def _progress(run: Run, names: list[str]) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [
            (report["at_s"] - run.zero_s, report["step"] / job.progress["step"])
            for report in job.reports
        ]
        for name, job in zip(names, run.jobs, strict=True)
    }


def _metric(run: Run, row: int, metric: str) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {metric: [], "loss": []}
    for report in run.jobs[row].reports:
        values: dict[str, Any] = {metric: report["metrics"].get(metric), "loss": report["loss"]}
        for name, value in values.items():
            if value is not None:
                points[name].append((report["at_s"] - run.zero_s, value))
    return points


def _print(console: Console, title: str, table: Table) -> None:
    shown = TerminalTable(title=title, title_justify="left", header_style="dim", box=None)
    for index, column in enumerate(table.header):
        shown.add_column(column, justify="right" if index else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print()
    console.print(shown)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
