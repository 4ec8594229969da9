"""The demo's result, as lines and tables in the terminal and as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as TerminalTable

from rota.demo.cluster import Run
from rota.demo.figures import BASELINE, Comparison
from rota.demo.workload import Training
from rota.report.charts import bars_chart, curves_chart, slots_chart
from rota.report.page import Section, Table, write_page

GOOD = 0.1  # error of a prediction, as a part, up to which the others are worth believing


def print_story(console: Console, compared: Comparison, complaint: str | None) -> None:
    """Print the result in three lines, then the tables, and a sentence about each.

    A ``complaint`` about the machine comes first. Where one policy ran, one table says it all.
    """
    console.print()
    if complaint:
        console.print(complaint, style="yellow", soft_wrap=True, highlight=False)
    for line in verdict(compared):
        console.print(line, style="bold", soft_wrap=True, highlight=False)
    if len(compared.runs) > 1:
        _print(console, "Trainings", training_table(compared))
        _print(console, f"Turns ({compared.policies[0]})", turn_table(compared))
        _print(console, "Seconds from submission to the end", completion_table(compared))
    _print(console, "Averages over the jobs, in seconds", average_table(compared))
    if len(compared.runs) > 1:
        console.print()
        for sentence in sentences(compared):
            console.print(f"- {sentence}", soft_wrap=True)


def verdict(compared: Comparison) -> list[str]:
    """Three lines: what ran, what the baseline would do, and how true predictions are."""
    policy, base = compared.policies[0], compared.column(BASELINE)
    ran = compared.column(policy)
    cut_off = len(compared.runs[policy].cut_off)
    mean_s, base_s = compared.completion_s[ran], compared.completion_s[base]
    first = compared.jobs[0]
    ends_s, otherwise_s = first.completion_s[ran], first.completion_s[base]
    pays = f" {first.training.name} pays: {ends_s:.0f} s, not {otherwise_s:.0f} s."
    second = f"{BASELINE}, {_how(compared, BASELINE)}: {base_s:.1f} s, {_ratio(base_s, mean_s)}."
    if ends_s > otherwise_s:
        second += pays
    if cut_off:
        return [
            f"{policy}, the default, was cut off when {len(compared.jobs) - cut_off} of "
            f"{len(compared.jobs)} jobs were done: {mean_s:.1f} s on average, foretold.",
            second,
            "How true that is can't be told; try again when the machine has more time.",
        ]
    error, early = compared.errors(policy)
    words = f"{error:.0%} off" + ("" if early is None else f", the first 100 steps {early:.0%}")
    worth = "" if max(error, early or 0.0) <= GOOD else ": take what it foretells as rough"
    return [
        f"{policy}, the default, ran: the average job was done after {mean_s:.1f} s.",
        second,
        f"The simulator foretold {compared.completion_s[f'{policy} predicted']:.1f} s for "
        f"{policy}, {words}{worth}.",
    ]


def _how(compared: Comparison, policy: str) -> str:
    return "as it ran" if compared.column(policy).endswith(" measured") else "foretold"


def _ratio(other_s: float, mine_s: float) -> str:
    if 0.98 < other_s / mine_s < 1.02:
        return "as long"
    return f"{other_s / mine_s:.2f} times as long"


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
    header = [f"{policy}, {_how(compared, policy)}" for policy in compared.policies]
    rows = [
        (
            job.training.name,
            *(f"{job.completion_s[compared.column(p)]:.1f}" for p in compared.policies),
        )
        for job in compared.jobs
    ]
    return Table(("job", *header), rows)


def average_table(compared: Comparison) -> Table:
    """The averages, measured and predicted, under each policy, and the end of the first job."""
    first = compared.jobs[0]
    rows = []
    for policy in compared.policies:
        for kind, how in (("measured", "as it ran"), ("predicted", "foretold")):
            if (column := f"{policy} {kind}") in compared.columns:
                figures = [
                    compared.first_100_s[column],
                    compared.completion_s[column],
                    first.completion_s[column],
                    compared.all_done_s[column],
                ]
                rows.append((f"{policy}, {how}", *map(_seconds, figures)))
    name = first.training.name
    return Table(("policy", "first 100 steps", "job done", f"{name} done", "all done"), rows)


def sentences(compared: Comparison) -> list[str]:
    """Sentences that compare the policies with the baseline."""
    figures: list[tuple[str, Mapping[str, float | None]]] = [
        ("first 100 mini-batches", compared.first_100_s),
        ("completion", compared.completion_s),
        ("all done", compared.all_done_s),
    ]
    told = []
    for policy in compared.policies:
        if policy == BASELINE:
            continue
        both_ran = {
            f"{each} measured" for each in (policy, BASELINE)
        } <= compared.completion_s.keys()
        kind = "measured" if both_ran else "predicted"
        changes = [
            f"{name} {_times(values[f'{BASELINE} {kind}'], values[f'{policy} {kind}'])}"
            for name, values in figures
        ]
        where = "" if both_ran else ", both in the simulator"
        told.append(f"{policy} against {BASELINE}{where}: {', '.join(changes)}.")
    first = compared.jobs[0]
    ends = ", ".join(
        f"{first.completion_s[compared.column(p)]:.0f} s ({p})" for p in compared.policies
    )
    return [
        *told,
        f"Who pays: {first.training.name}, which came first, takes {ends}.",
        "Foretold: by the simulator, from the step times, launches and switch costs measured under "
        f"{compared.policies[0]}.",
    ]


def _times(slow_s: float | None, fast_s: float | None) -> str:
    if slow_s is None or fast_s is None:
        return "not reached by every job"
    if 0.98 < slow_s / fast_s < 1.02:
        return "alike"
    sooner = slow_s > fast_s
    return f"{max(slow_s / fast_s, fast_s / slow_s):.2f} times {'as soon' if sooner else 'as late'}"


def write_report(path: Path, compared: Comparison, complaint: str | None) -> None:
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
    timelines = {
        (column := compared.column(policy)): (
            compared.runs[policy].timeline if column.endswith(" measured") else timeline
        )
        for policy, timeline in compared.foretold.items()
    }
    opening = [complaint] if complaint else []
    result = " ".join([*opening, *verdict(compared), *sentences(compared)])
    sections = [
        Section("Averages", result, average_table(compared)),
        Section("Completion", "Seconds from submission to the end.", completion_table(compared)),
        Section("", "", bars_chart(completion, names, "by job", "seconds since submission")),
        *(
            Section(
                "" if index else "Who held which slot",
                "" if index else "Drag to zoom.",
                slots_chart(timeline, names, min(timeline.submit_s), column),
            )
            for index, (column, timeline) in enumerate(timelines.items())
        ),
        *(
            Section(
                "How far each job had come" if policy == first else "",
                "Progress towards all the steps that it needed." if policy == first else "",
                curves_chart(
                    _progress(run, [job.training for job in compared.jobs]),
                    f"{policy} measured",
                    "part of its steps",
                ),
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


def _progress(run: Run, trainings: list[Training]) -> dict[str, list[tuple[float, float]]]:
    curves = {}
    for row, (training, job) in enumerate(zip(trainings, run.jobs, strict=True)):
        steps = training.steps if row in run.cut_off else job.progress.get("step", 0)
        curves[training.name] = [
            (report["at_s"] - run.zero_s, report["step"] / max(1, steps)) for report in job.reports
        ]
    return curves


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
