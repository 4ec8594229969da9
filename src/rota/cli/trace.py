"""``rota trace``: look at job traces, convert them, cut windows out of them, generate them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.commandgroup import CommandGroup
from rota.cli.optiongroups import options
from rota.cli.outfile import require_writable, whole_file
from rota.cli.traceoptions import NUM_JOBS, PROFILE, READING, SPAN, Span
from rota.errors import InputError, TraceError
from rota.workload.readers import read_trace, remarks
from rota.workload.writer import WRITTEN, write_trace

if TYPE_CHECKING:
    from rota.workload.trace import Trace


@click.group(cls=CommandGroup)
def trace() -> None:
    """Look at job traces, convert them, cut windows out of them, generate them."""


TO = click.option(
    "--to",
    type=click.Choice(WRITTEN),
    help="Write CSV or Parquet.  [default: by OUT's name, else csv]",
)


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """The options that the commands share which read a trace."""
    return options(READING)(command)


@trace.command()
@click.argument("file", metavar="FILE")
@click.option("--cluster", metavar="NODESxGPUS", help="Tell the load on such a cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@reads
def show(file: str, cluster: str | None, as_json: bool, **how: Any) -> None:
    """Tell the shape of a trace: jobs, sizes, durations, arrivals, load."""
    from rota.model.cluster import parse_cluster
    from rota.report.trace_stats import shape_of

    num_gpus = sum(node.num_gpus for node in parse_cluster(cluster)) if cluster else None
    jobs = _read(file, quiet=as_json, **how)
    shape = shape_of(jobs, num_gpus)
    if as_json:
        rejected = [{"line": line, "reason": reason} for line, reason in jobs.rejected]
        click.echo(json.dumps(shape | {"rejected_rows": rejected}, indent=2))
    else:
        click.echo(describe(shape))


@trace.command()
@click.argument("file", metavar="FILE")
@click.argument("out", metavar="OUT")
@reads
@TO
def convert(file: str, out: str, to: str | None, **how: Any) -> None:
    """Write a trace with our own columns. OUT - is standard output."""
    _refuse_same(file, out)
    write(_told(_read(file, **how)), out, to)


@trace.command()
@click.argument("out", metavar="OUT")
@click.option(
    "--profile",
    type=PROFILE,
    default="philly",
    show_default=True,
    help="Whose load it looks like.",
)
@NUM_JOBS
@SPAN
@click.option("--gpus", type=int, required=True, metavar="N", help="The GPUs that --load is of.")
@click.option(
    "--load",
    type=float,
    default=1.0,
    show_default=True,
    help="GPU-time that is asked for over GPU-time that there is, while jobs arrive.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which of many such traces.")
@TO
def generate(
    out: str,
    profile: str,
    num_jobs: int | None,
    span: float | None,
    gpus: int,
    load: float,
    seed: int,
    to: str | None,
) -> None:
    """Write a synthetic trace with the bursts, sizes and durations of real load.

    Give either --num-jobs or --span. OUT - is standard output.
    """
    from rota.workload.synthetic import generate as synthesise

    if (num_jobs is None) == (span is None):
        raise InputError("give either --num-jobs or --span: with --load, one sets the other")
    jobs = synthesise(profile, num_jobs=num_jobs, span_s=span, num_gpus=gpus, load=load, seed=seed)
    _tell(jobs)
    write(jobs, out, to)


@trace.command()
@click.argument("file", metavar="FILE")
@click.argument("out", metavar="OUT")
@click.option("--start", type=Span(), metavar="SPAN", help="Leave out what arrives before.")
@click.option("--end", type=Span(), metavar="SPAN", help="Leave out what arrives then or later.")
@click.option("--first", type=click.IntRange(1), metavar="N", help="Keep the first N of the rest.")
@click.option("--rebase", is_flag=True, help="Count submission from the first job that is kept.")
@reads
@TO
def window(
    file: str,
    out: str,
    start: float | None,
    end: float | None,
    first: int | None,
    rebase: bool,
    to: str | None,
    **how: Any,
) -> None:
    """Write the part of a trace that arrives in a window. OUT - is standard output."""
    from rota.workload.trace import Trace

    if start is None and end is None and first is None:
        raise InputError("give --start, --end or --first: the window would be the whole trace")
    _refuse_same(file, out)
    whole = _told(_read(file, **how))
    low_s, high_s = start or 0.0, float("inf") if end is None else end
    kept = [spec for spec in whole if low_s <= spec.submit_s < high_s][:first]
    if not kept:
        raise TraceError(
            f"{whole.name}: no job arrives in the window; the trace goes from "
            f"{whole.jobs[0].submit_s:,.0f} to {whole.jobs[-1].submit_s:,.0f} s"
        )
    if rebase:
        zero_s = kept[0].submit_s
        kept = [spec._replace(submit_s=spec.submit_s - zero_s) for spec in kept]
    write(_without_others(Trace(kept, whole.name)), out, to)


def _told(jobs: Trace) -> Trace:
    """The jobs of a log, which say themselves that they can't be suspended; others as they are."""
    return jobs.suspended_as(None) if jobs.is_log else jobs


def _without_others(jobs: Trace) -> Trace:
    """The jobs without dependencies on jobs outside of the trace; prints how many were dropped."""
    ids = {spec.job_id for spec in jobs}
    found, dropped = [], 0
    for spec in jobs:
        inside = tuple(each for each in spec.depends_on if each.job_id in ids)
        dropped += len(spec.depends_on) - len(inside)
        found.append(spec._replace(depends_on=inside))
    if dropped:
        click.echo(f"dependencies left out, on jobs outside of the window: {dropped:,}", err=True)
    return jobs.with_jobs(found)


def _read(
    file: str, *, format_: str, strict: bool, unit: str, tz: str, quiet: bool = False
) -> Trace:
    jobs = read_trace(file, format_, strict, unit, tz)
    if not quiet:
        _tell(jobs)
    return jobs


def _tell(jobs: Trace) -> None:
    """Say on stderr what could not be read, and what differs from the file."""
    for text in remarks(jobs):
        click.echo(text, err=True)


def _refuse_same(file: str, out: str) -> None:
    """Raise InputError if the trace would be written over the file that it is read from."""
    try:
        same = os.path.samefile(file, out)
    except (OSError, ValueError):
        return  # one of them is not there
    if same:
        raise InputError(
            f"OUT {out}: it is the trace that is read, and would be replaced; name another"
        )


def write(jobs: Trace, out: str, to: str | None) -> None:
    """Write the trace, to standard output for ``-``: the whole file or nothing.

    Says on stderr which file was written. Raises InputError.
    """
    if to is None:
        to = "parquet" if out.endswith((".parquet", ".pq")) else "csv"
    if out == "-":
        if to == "parquet" and sys.stdout.isatty():
            raise InputError("Parquet is not for a terminal; name a file, or give --to csv")
        write_trace(jobs, sys.stdout.buffer, to)
        sys.stdout.buffer.flush()
        return
    path = Path(out)
    require_writable(path, "OUT")
    there = path.exists()
    with whole_file(path, "OUT") as file:
        if to == "csv" and path.suffix == ".gz":
            import gzip

            # Without a name and a time in it, the same jobs are the same bytes.
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped:
                write_trace(jobs, zipped, to)  # type: ignore[arg-type]
        else:
            write_trace(jobs, file, to)
    number = "1 job" if len(jobs) == 1 else f"{len(jobs):,} jobs"
    click.echo(f"wrote {out}: {number}{', in place of what was there' if there else ''}", err=True)


def describe(shape: dict[str, Any]) -> str:
    """The figures of `rota.report.trace_stats` for people."""
    from rota.cli.table import render

    load, bursts = shape["load"], shape["dispersion"]
    durations = "  ".join(f"{name} {_number(value)}" for name, value in shape["duration_s"].items())
    facts = [
        ("jobs", f"{shape['jobs']:,}"),
        ("rejected rows", f"{shape['rejected']:,}"),
        ("span", f"{_number(shape['span_s'])} s ({shape['span_s'] / 86_400:.2f} days)"),
        ("GPU-hours", _number(shape["gpu_hours"])),
        ("GPUs per job", f"mean {shape['mean_gpus']:.2f}  max {shape['max_gpus']:,}"),
        ("duration s", f"mean {_number(shape['mean_duration_s'])}  {durations}"),
        *([] if load is None else [("load", f"{load:.2f}")]),
        *([] if bursts is None else [("dispersion", f"{bursts:.1f} (1 if Poisson)")]),
    ]
    lines = [shape["trace"], *(f"  {name.ljust(14)}{text}" for name, text in facts)]
    sizes = [
        (
            f"{row['num_gpus']:,}",
            f"{row['jobs']:,}",
            f"{row['job_share']:.2%}",
            f"{row['gpu_time_share']:.2%}",
        )
        for row in shape["sizes"]
    ]
    lines += ["", render(("GPUs", "jobs", "of jobs", "of GPU-time"), sizes, text_columns=0)]
    for title, key in (("vc", "vcs"), ("user", "users"), ("model", "models")):
        if shape[key]:
            rows = [
                (row["name"] or "-", f"{row['jobs']:,}", f"{row['gpu_time_share']:.2%}")
                for row in shape[key]
            ]
            lines += ["", render((title, "jobs", "of GPU-time"), rows)]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
