"""What the simulator's commands print and write."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.outfile import whole_file
from rota.cli.simcases import Case, load, uses_catalog
from rota.errors import InputError
from rota.model.cluster import parse_cluster
from rota.model.state import ClusterState
from rota.workload.readers import remarks

if TYPE_CHECKING:
    from rota.report.comparison import Entry
    from rota.report.sketch import Sketch


def print_json(value: Any) -> None:
    """Print ``value`` as JSON; a setting of a policy that JSON does not know becomes text."""
    click.echo(json.dumps(value, indent=2, default=str))


def tell_jobs(case: Case) -> int:
    """The number of jobs of a case, having said on stderr what is to be known of them.

    That is which rows of the trace could not be read, what else differs from the file, and of how
    many jobs nobody knows the speeds where placement changes them. Raises TraceError.
    """
    nodes = parse_cluster(case.cluster)
    trace, _ = load(case.workload, case.seed, case.load, sum(node.num_gpus for node in nodes))
    for text in remarks(trace):
        click.echo(text, err=True)
    if uses_catalog(case, trace, nodes):
        from rota.sim.speeds import coverage

        known, unknown, unnamed = coverage(trace)
        if unknown or unnamed:
            click.echo(
                f"{trace.name}: how fast {known} jobs run hangs on where they are placed; of "
                f"{unknown + unnamed} neither the catalog nor the trace has speeds: they run at 1",
                err=True,
            )
    return len(trace)


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


def label_of(summary: dict[str, Any], point: dict[str, str] | None = None) -> str:
    """The policy's name, starred if it is an oracle, with the settings that are not defaults.

    Settings that the ``point`` of a table names are left out.
    """
    from rota.policy.registry import settings

    known = settings(summary["policy"])
    changed = [
        f"{key}={_plain(value)}"
        for key, value in summary["settings"].items()
        if key not in (point or {}) and value != known[key].default
    ]
    return ":".join([summary["policy"] + ("*" if summary["needs_duration"] else ""), *changed])


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe(summary: dict[str, Any]) -> str:
    """One run's figures, one a line."""
    from rota.report.comparison import ORACLE_NOTE, known_figures

    entry = entry_of([summary], {}, [])
    rows = [(figure.heading, figure.cell(entry)) for figure in known_figures([entry])]
    width = max(len(heading) for heading, _ in rows)
    title = f"{entry.policy} on {summary['cluster']}, {summary['trace']}"
    lines = [title, *(f"  {heading.ljust(width)}  {text:>14}" for heading, text in rows)]
    return "\n".join([*lines, ORACLE_NOTE] if entry.is_oracle else lines)


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
) -> None:
    """Write the page and the images that were asked for, and say so on stderr.

    Raises InputError if that can't be done.
    """
    try:
        if html_file is not None:
            from rota.report.simulated import write_report

            title = f"{_which(entries, 'trace')} on {_which(entries, 'cluster')}"
            write_report(Path(html_file), title, facts(entries), entries, axes)
            click.echo(f"wrote {html_file}", err=True)
        if png_folder is not None:
            from rota.report.images import write_images

            files = write_images(Path(png_folder), entries, axes)
            click.echo(f"wrote {', '.join(str(file) for file in files)}", err=True)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror or error}") from None


def facts(entries: Sequence[Entry]) -> str:
    """What was run, in a sentence."""
    summaries = [summary for entry in entries for summary in entry.summaries]
    first, seeds = summaries[0], sorted({summary["seed"] for summary in summaries})
    charged = [f"{key} {value:g}" for key, value in first["overheads"].items() if value]
    parts = [
        f"{first['jobs']:,} jobs of {_which(entries, 'trace')} on {_which(entries, 'cluster')}",
        f"overheads: {', '.join(charged) or 'none'}",
        f"speeds: {first['speeds']}",
        f"seeds: {', '.join(map(str, seeds))}",
    ]
    if first["faults"]:
        given = ", ".join(f"{key} {value}" for key, value in first["faults"].items())
        parts.append(f"faults: {given}")
    return "; ".join(parts) + "."


def _which(entries: Sequence[Entry], key: str) -> str:
    """What the runs' summaries have there; the first and how many others if they differ."""
    found = list(dict.fromkeys(s[key] for entry in entries for s in entry.summaries))
    return found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} more"
