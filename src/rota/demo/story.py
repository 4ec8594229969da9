"""The demo's outcome, as a table in the terminal and as a page."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as TerminalTable

from rota.demo.cluster import Run
from rota.demo.figures import Comparison
from rota.demo.workload import TRAININGS
from rota.report.charts import bars_chart, curves_chart, slots_chart
from rota.report.page import Section, Table, write_page


def print_story(console: Console, compared: Comparison) -> None:
    """The tables, and what they say in a sentence each."""
    _print(console, "Trainings", training_table(compared))
    _print(console, "Turns (gandiva), and time to the first 100 mini-batches", turn_table(compared))
    _print(console, "Averages over the jobs, in seconds", average_table(compared))
    console.print()
    for sentence in sentences(compared):
        console.print(f"- {sentence}")


def training_table(compared: Comparison) -> Table:
    """What each job reached, and with which part of the device time."""
    rows = []
    for job in compared.jobs:
        value = "-" if job.value is None else f"{job.value:.3f}"
        rows.append(
            (
                job.name,
                f"{job.share:.1%}",
                str(job.steps),
                f"{1e3 * job.step_time_s:.1f}",
                f"{job.metric} {value}",
                job.target,
                "yes" if job.reached else "no",
            )
        )
    return Table(("job", "share", "steps", "ms/step", "final metric", "target", "reached"), rows)


def turn_table(compared: Comparison) -> Table:
    """What switching cost each job, and how soon it had done 100 mini-batches."""
    rows = [
        (
            job.name,
            str(job.suspensions),
            f"{1e3 * job.suspend_median_s:.1f} / {1e3 * job.suspend_max_s:.1f}",
            f"{1e3 * job.resume_median_s:.1f} / {1e3 * job.resume_max_s:.1f}",
            _seconds(job.first_100_s["gandiva measured"]),
            _seconds(job.first_100_s["fifo measured"]),
        )
        for job in compared.jobs
    ]
    header = ("job", "suspended", "suspend ms", "resume ms", "100th: gandiva", "fifo")
    return Table(header, rows)


def average_table(compared: Comparison) -> Table:
    """Both averages, measured and predicted, under both policies."""
    rows = [
        (name, *(_seconds(values[column]) for column in compared.columns))
        for name, values in (
            ("first 100 mini-batches", compared.first_100_s),
            ("completion", compared.completion_s),
        )
    ]
    short = [c.replace(" measured", "").replace("predicted", "sim") for c in compared.columns]
    return Table(("time to", *short), rows)


def sentences(compared: Comparison) -> list[str]:
    """What the figures say."""
    turns, order = (compared.first_100_s[f"{policy} measured"] for policy in ("gandiva", "fifo"))
    sooner = (
        f"First 100 mini-batches: after {turns:.1f} s on average with turns, after {order:.1f} s "
        f"one after the other ({order / turns:.1f} times as long)."
        if turns is not None and order is not None
        else "Not every job did 100 mini-batches."
    )
    return [
        f"Device time over the window in which all jobs are active: within "
        f"{compared.share_spread:.1%} of an equal share.",
        sooner,
        "sim: the simulator's prediction, from the step times and switch costs measured in the run "
        "with turns.",
    ]


def write_report(path: Path, compared: Comparison) -> None:
    """The page: tables, who held which slot, and how training went."""
    names = [job.name for job in compared.jobs]
    first_100 = {
        column: [job.first_100_s[column] or 0.0 for job in compared.jobs]
        for column in compared.columns
    }
    turns, order = compared.slicing, compared.fifo
    sections = [
        Section("Trainings", "As they ended while they took turns.", training_table(compared)),
        Section(
            "Turns",
            "Suspensions and resumptions as median / maximum: from the step boundary to the freed "
            "slot, and from the command to the running job. Then the time to the first 100 "
            "mini-batches under both policies.",
            turn_table(compared),
        ),
        Section("Averages", " ".join(sentences(compared)), average_table(compared)),
        Section(
            "Who held which slot",
            f"With turns of {compared.quantum_s:g} s (gandiva). Drag to zoom.",
            slots_chart(turns.timeline, names, turns.zero_s, "gandiva, measured"),
        ),
        Section(
            "",
            "The same jobs one after the other (fifo).",
            slots_chart(order.timeline, names, order.zero_s, "fifo, measured"),
        ),
        Section(
            "How far each job had come",
            "Progress towards all the steps that it needed.",
            curves_chart(_progress(turns, names), "gandiva, measured", "part of its steps"),
        ),
        Section(
            "", "", curves_chart(_progress(order, names), "fifo, measured", "part of its steps")
        ),
        Section(
            "Time to the first 100 mini-batches",
            "What decides how soon one sees whether a training is worth going on with.",
            bars_chart(first_100, names, "by job", "seconds since submission"),
        ),
        *(
            Section(
                "Training" if index == 0 else "",
                "",
                curves_chart(_metric(turns, index), training.name, training.metric),
            )
            for index, training in enumerate(TRAININGS)
        ),
    ]
    write_page(path, "Rota: trainings that take turns", sections)


def _progress(run: Run, names: list[str]) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [
            (report["at_s"] - run.zero_s, report["step"] / job.progress["step"])
            for report in job.reports
        ]
        for name, job in zip(names, run.jobs, strict=True)
    }


def _metric(run: Run, row: int) -> dict[str, list[tuple[float, float]]]:
    metric = TRAININGS[row].metric
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
