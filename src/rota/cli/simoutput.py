"""Output of the simulator's commands, on the terminal and in files."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.outfile import whole_file
from rota.errors import InputError, SimulationError
from rota.model.cluster import parse_cluster
from rota.model.naming import jobs_text
from rota.model.setting import setting_text
from rota.model.state.state import ClusterState
from rota.report.text import printable
from rota.scenario.case import Case, load, uses_catalog
from rota.sim.costsets import costs_text
from rota.sim.machine import Costs
from rota.workload.readers import remarks

if TYPE_CHECKING:
    from rota.report.comparison import Entry
    from rota.report.sketch import Sketch

Policies = Sequence[tuple[str, dict[str, str]]]  # names, and settings that are given

# What these policies choose by is measured by simulated jobs that play profiles alone.
BY_PROFILES = ("optimus", "optimus-oracle", "pollux")
BY_LIMITS = "easy-backfill"  # goes by the time limits of jobs
AS_IT_WAS = "as it was"
LEAST_TOLD = 0.5  # part of the jobs of a log whose waits it tells, for a line of its own
MOST_LISTED = 3
MOST_WARNINGS, MOST_NAMED = 5, 5  # sentences, and jobs of each


def print_json(value: Any) -> None:
    """Print ``value`` as JSON; a setting of a policy that JSON does not know becomes text.

    Raises SimulationError if a number in it is not finite, which JSON has no word for.
    """
    import json

    try:
        text = json.dumps(value, indent=2, default=str, allow_nan=False)
    except ValueError:
        raise SimulationError(
            "a figure of the run is not a finite number; give smaller times, speeds or loads"
        ) from None
    click.echo(text)


def tell_jobs(case: Case) -> int:
    """The number of jobs of a case, having said on stderr what is to be known of them.

    That is which rows of the trace could not be read, what else differs from the file, and whose
    speeds nobody knows where placement or GPU types change them. Raises TraceError.
    """
    nodes = parse_cluster(case.cluster)
    trace, _ = load(case.workload, case.seed, case.load, sum(node.num_gpus for node in nodes))
    for text in remarks(trace):
        if case.profiles is None or text not in trace.notes:  # notes tell the source of durations
            click.echo(text, err=True)
    unknown: list[str] = []
    if uses_catalog(case, trace, nodes):
        from rota.sim.speeds import describe_unknown

        unknown = describe_unknown(trace, nodes)
    elif case.profiles is not None:
        from rota.sim.measured import describe_alike

        unknown = describe_alike(trace, nodes)
    for text in unknown:
        click.echo(text, err=True)
    return len(trace)


def tell_missing_profiles(policies: Iterable[str], profiles: str | None) -> None:
    """Say on stderr which of the policies can't show here what they are for."""
    blind = [name for name in BY_PROFILES if name in policies]
    if blind and profiles is None:
        click.echo(
            f"{', '.join(blind)}: nothing is known of what GPUs and batches bring to jobs "
            "that play no measured profiles; give --profiles DIR",
            err=True,
        )


def without_limits(policies: Policies, case: Case, *, drop: bool) -> Policies:
    """The policies, having said on stderr which can't show here what they are for.

    That is one that goes by time limits, of which the jobs have none. ``drop`` leaves it out,
    unless it has settings. Raises TraceError.
    """
    blind = [each for each in policies if each[0] == BY_LIMITS and "default_limit_s" not in each[1]]
    if not blind or has_limits(case):
        return policies
    fix = "give the trace a column time_limit_s (sacct: Timelimit), or --policy "
    fix += f"{BY_LIMITS}:default_limit_s=86400"
    if drop:
        click.echo(f"left out, as no job has a time limit: {BY_LIMITS}; {fix}", err=True)
        return [each for each in policies if each not in blind]
    click.echo(
        f"{BY_LIMITS}: no job has a time limit, so that few pass the head of the line; {fix}",
        err=True,
    )
    return policies


def refuse_share_of_one(given: Mapping[str, str], case: Case) -> None:
    """Raise InputError for shares between owners if a file's jobs have but one."""
    owner = given.get("fair_share", "no")
    if owner in ("no", "auto") or case.workload.file is None:
        return
    trace, _ = load(case.workload, case.seed, case.load, 0)
    names = {getattr(spec, owner) for spec in trace}
    if len(names) == 1:
        name = names.pop()
        who = f"are all of {name!r}" if name else f"have no {owner}"
        raise InputError(
            f"fair_share={owner} has no effect: the jobs of {trace.name} {who}; give the trace a "
            f"column {owner} with more than one, or drop it"
        )


def has_limits(case: Case) -> bool:
    """True if a job of the case's file has a time limit. Raises TraceError."""
    if case.workload.file is None:
        return False
    trace, _ = load(case.workload, case.seed, case.load, 0)
    return any(spec.time_limit_s is not None for spec in trace)


def cpu_s() -> float:
    """User and system time of this process and its children so far, in seconds."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in usage)


def entry_of(
    summaries: list[dict[str, Any]], point: dict[str, str], sketches: list[Sketch]
) -> Entry:
    """The line of a table that is about these runs of one policy."""
    from rota.report.comparison import Entry

    return Entry(label_of(summaries[0], point), point, summaries, sketches)


def entry_of_log(case: Case, keys: Sequence[str]) -> Entry | None:
    """The log's own record of a case's jobs; None if it tells of too few jobs.

    ``keys`` are those of the points of the other lines.
    """
    from rota.report.comparison import Entry
    from rota.report.metrics import of_log

    if case.workload.file is None or case.load != 1 or case.profiles is not None:
        return None
    trace, _ = load(case.workload, case.seed, case.load, 0)
    if len(trace.waited_s) < LEAST_TOLD * len(trace):
        return None
    summary = {"policy": AS_IT_WAS, "settings": {}, "needs_duration": False, "seed": case.seed}
    figures = of_log(trace, trace.waited_s)
    told = summary | {"jobs": len(trace), "trace": trace.name, "cluster": case.cluster} | figures
    return Entry(AS_IT_WAS, dict.fromkeys(keys, "-"), [told], [], is_log=True)


def label_of(summary: dict[str, Any], point: dict[str, str] | None = None) -> str:
    """The policy's name, starred if it is an oracle, with the settings that are not defaults.

    Settings that the ``point`` of a table names are left out.
    """
    from rota.policy.registry import settings

    known = settings(summary["policy"])
    changed = [
        f"{key}={setting_text(value)}"
        for key, value in summary["settings"].items()
        if key not in (point or {}) and value != known[key].default
    ]
    return ":".join([summary["policy"] + ("*" if summary["needs_duration"] else ""), *changed])


def tell_warnings(state: ClusterState) -> None:
    """Print the first warnings of a run's policy, with their jobs, on stderr."""
    told: dict[str, list[int]] = {}
    for row, warnings in state.notes.warned.items():
        for _, warning in warnings.values():
            told.setdefault(warning, []).append(row)
    for warning, rows in list(told.items())[:MOST_WARNINGS]:
        more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        jobs = jobs_text(state.ids(rows[:MOST_NAMED])) + more
        click.echo(f"warning: {printable(jobs)}: {printable(warning)}", err=True)
    if len(told) > MOST_WARNINGS:
        click.echo(f"warning: and {len(told) - MOST_WARNINGS} more", err=True)


def describe(summary: dict[str, Any]) -> str:
    """One run's figures, one a line."""
    from rota.report.comparison import ORACLE_NOTE, known_metrics

    entry = entry_of([summary], {}, [])
    rows = [("information", entry.information)]
    rows += [(metric.heading, metric.cell(entry)) for metric in known_metrics([entry])]
    width = max(len(heading) for heading, _ in rows)
    title = f"{entry.policy} on {summary['cluster']}, {summary['trace']}"
    lines = [title, *(f"  {heading.ljust(width)}  {text:>14}" for heading, text in rows)]
    lines.append(costs_note(summary))
    return "\n".join([*lines, ORACLE_NOTE] if entry.is_oracle else lines)


def costs_note(summary: dict[str, Any]) -> str:
    """What a run's jobs were charged, and how they gave their GPUs up."""
    return f"costs: {costs_text(summary['costs'], Costs(**summary['overheads']))}"


def write_per_job(state: ClusterState, path: Path) -> None:
    """Write one row per job as CSV: the whole file or nothing. Raises InputError."""
    from rota.report.metrics import PER_JOB_COLUMNS, per_job

    write_csv(path, PER_JOB_COLUMNS, per_job(state), "--per-job")


def write_csv(
    path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], option: str
) -> None:
    """Write a CSV file: the whole of it or nothing. Raises InputError."""
    import csv

    with whole_file(path, option, text=True) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_pictures(
    entries: Sequence[Entry],
    html_file: str | None,
    png_folder: str | None,
    axes: Sequence[str] = (),
    *,
    drawn_by_chance: bool,
    notes: Sequence[str] = (),
    logged: Entry | None = None,
) -> None:
    """Write the page and the images that were asked for, each whole, and say so on stderr.

    ``drawn_by_chance`` is whether the seeds of the runs tell anything. The page opens with the
    ``notes``, and has the line of the log, if there is one. Raises InputError if a file
    can't be written.
    """
    if html_file is not None:
        from rota.report.simulated import report

        told = facts(entries, drawn_by_chance)
        text = report(title_of(entries), told, entries, axes, notes, logged)
        with whole_file(Path(html_file), "--html", text=True) as file:
            file.write(text)
        click.echo(f"wrote {html_file}", err=True)
    if png_folder is not None:
        from rota.report.images import images

        paths = []
        for name, image in images(entries, axes):
            path = Path(png_folder) / f"{name}.png"
            with whole_file(path, "--png") as file:
                file.write(image)
            paths.append(str(path))
        click.echo(f"wrote {', '.join(paths)}", err=True)


def title_of(entries: Sequence[Entry]) -> str:
    """The jobs and the cluster; several of either are listed."""
    return f"{_jobs(entries)} on {_which(entries, 'cluster')}"


def facts(entries: Sequence[Entry], drawn_by_chance: bool) -> str:
    """Sentence about the runs: jobs, speeds, seeds, faults."""
    summaries = [summary for entry in entries for summary in entry.summaries]
    first, seeds = summaries[0], sorted({summary["seed"] for summary in summaries})
    swept = entries[0].point
    faults = [f"{k} {value}" for k, value in first["faults"].items() if k not in swept]
    parts = [
        f"{first['jobs']:,} jobs of {title_of(entries)}",
        f"speeds: {first['speeds']}",
    ]
    if drawn_by_chance:
        parts.append(f"{'seeds' if len(seeds) > 1 else 'seed'}: {', '.join(map(str, seeds))}")
    if faults:
        parts.append(f"faults: {', '.join(faults)}")
    return "; ".join(parts) + "."


def _jobs(entries: Sequence[Entry]) -> str:
    """The name of the trace, less the seed where jobs of several seeds were drawn."""
    names = dict.fromkeys(s["trace"] for entry in entries for s in entry.summaries)
    if len(names) > 1:
        ends = {s["trace"]: f"-seed{s['seed']}" for e in entries for s in e.summaries}
        names = dict.fromkeys(name.removesuffix(ends[name]) for name in names)
    return _listed(list(names))


def _which(entries: Sequence[Entry], key: str) -> str:
    """The distinct values of ``key`` in the runs' summaries."""
    return _listed(list(dict.fromkeys(s[key] for entry in entries for s in entry.summaries)))


def _listed(texts: Sequence[str]) -> str:
    """The texts one after the other; of many the first two, and how many others."""
    if len(texts) <= MOST_LISTED:
        return ", ".join(texts)
    return f"{', '.join(texts[:2])} and {len(texts) - 2} more"
