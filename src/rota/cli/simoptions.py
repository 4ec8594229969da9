"""The options that the simulator's commands share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rota.cli.faultoptions import fault_options, parse_faults
from rota.cli.outfile import require_folder, require_writable
from rota.cli.simcases import Case, Workload
from rota.errors import InputError
from rota.model.cluster import parse_cluster
from rota.sim.machine import FREE, Costs
from rota.workload.readers import FORMATS

COST_HELP = {
    "suspend_s": "Seconds that suspending a job takes.",
    "resume_s": "Seconds that resuming a job takes.",
    "migrate_s": "Seconds that moving a job to other nodes takes besides resuming it.",
    "cold_start_s": "Seconds that starting a job takes.",
}
RANDOM_FAULTS = ("mtbf_s", "worker_mtbf_s", "straggler_every_s")
MOST_RUNS = 10_000

WORKLOAD_OPTIONS = [
    click.option("--trace", "trace_file", metavar="FILE", help="The jobs: a trace file."),
    click.option(
        "--format",
        "trace_format",
        type=click.Choice(["auto", *FORMATS]),
        default="auto",
        show_default=True,
        help="Whose format the trace has; auto tells by its content.",
    ),
    click.option("--strict", is_flag=True, help="Refuse a trace with a row that can't be read."),
    click.option(
        "--generate",
        "profile",
        metavar="PROFILE",
        help="Draw the jobs at random instead, in the shape of philly or another public log.",
    ),
    click.option("--num-jobs", type=click.IntRange(1), metavar="N", help="Draw so many jobs."),
    click.option(
        "--span-s", type=float, metavar="SECONDS", help="Draw the jobs of so many seconds instead."
    ),
]

WORLD_OPTIONS = [
    click.option(
        "--cluster",
        required=True,
        metavar="NODESxGPUS",
        help="For example 15x4: 15 nodes of 4 GPUs; 16x4:t4,4x8:a100:rack=4 adds up kinds.",
    ),
    click.option(
        "--speeds",
        type=click.Choice(["auto", "catalog", "none"]),
        default="auto",
        show_default=True,
        help="Whether GPU types and placement change how fast jobs run, by the catalog of models; "
        "auto: if the cluster names GPU types and the trace names models.",
    ),
    click.option("--no-overheads", is_flag=True, help="Charge nothing for any command."),
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=float,
            metavar="SECONDS",
            help=f"{COST_HELP[name]}  [default: {default:g}]",
        )
        for name, default in Costs()._asdict().items()
    ),
]

PICTURE_OPTIONS = [
    click.option(
        "--html", "html_file", metavar="FILE", help="Write a page with interactive figures."
    ),
    click.option("--png", "png_folder", metavar="DIR", help="Write the figures as images."),
]

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")

RUN_OPTIONS = [
    click.option(
        "--load",
        type=float,
        default=1.0,
        show_default=True,
        metavar="X",
        help="Of drawn jobs: the share of the cluster that they ask for. A file's jobs arrive so "
        "many times as fast.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="What is drawn depends on it."
    ),
]

MANY_OPTIONS = [
    click.option(
        "--loads",
        default="1",
        show_default=True,
        metavar="X,Y...",
        help="Of drawn jobs: the share of the cluster that they ask for. A file's jobs arrive so "
        "many times as fast.",
    ),
    click.option(
        "--seeds",
        default="0",
        show_default=True,
        metavar="A,B-C...",
        help="What is drawn depends on it; 0-9 are ten seeds. The table shows means with 95 % "
        "confidence intervals.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 1024),
        metavar="N",
        help="Processes to run in; by default, one for each core where there is much to do.",
    ),
    click.option("--wide", is_flag=True, help="Print all figures."),
    click.option(
        "--no-history",
        is_flag=True,
        help="Leave out what needs the course of the runs, which takes memory.",
    ),
    click.option("--csv", "csv_file", metavar="FILE", help="Write the table as CSV too."),
]


def options(*groups: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command the options of all ``groups``, in that order."""

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        for group in reversed(groups):
            for option in reversed(group):
                command = option(command)
        return command

    return give


def world_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command that simulates takes: the jobs, the cluster, its costs and faults."""
    return options(WORKLOAD_OPTIONS, WORLD_OPTIONS)(fault_options(command))


def parse_case(
    *,
    trace_file: str | None,
    trace_format: str,
    strict: bool,
    profile: str | None,
    num_jobs: int | None,
    span_s: float | None,
    cluster: str,
    speeds: str,
    no_overheads: bool,
    **rest: Any,
) -> Case:
    """The case that the shared options describe, without a policy. Raises InputError.

    ``rest`` are the costs and the options of faults.
    """
    costs = {name: rest.pop(name) for name in Costs._fields}
    parse_cluster(cluster)
    parse_faults(0, **rest)
    workload = Workload(trace_file, trace_format, strict, profile, num_jobs, span_s)
    check_workload(workload)
    return Case(
        policy="",
        given={},
        workload=workload,
        cluster=cluster,
        costs=parse_costs(no_overheads, **costs),
        speeds=speeds,
        faults={key: value for key, value in rest.items() if value is not None},
    )


def check_workload(workload: Workload) -> None:
    """Raise InputError unless the options name one source of jobs, and only what belongs to it."""
    if (workload.file is None) == (workload.profile is None):
        raise InputError("give the jobs by --trace FILE, or have them drawn by --generate PROFILE")
    if workload.profile is None:
        for option, value in (("--num-jobs", workload.num_jobs), ("--span-s", workload.span_s)):
            if value is not None:
                raise InputError(f"{option} has no effect on a trace file; drop it")
        return
    if (workload.num_jobs is None) == (workload.span_s is None):
        raise InputError("--generate: give either --num-jobs or --span-s; one sets the other")
    if workload.strict or workload.format != "auto":
        raise InputError("--strict and --format have no effect on drawn jobs; drop them")


def check_seeds(case: Case, seeds: Sequence[int]) -> None:
    """Raise InputError if several seeds would all give the same run."""
    drawn = case.workload.profile is not None or any(key in case.faults for key in RANDOM_FAULTS)
    if len(seeds) > 1 and not drawn:
        raise InputError(
            "--seeds: nothing here is drawn by chance, so that every seed gives the same; give one "
            "seed, or --generate the jobs, or add random faults"
        )


def parse_costs(no_overheads: bool, **given: float | None) -> Costs:
    """The charged costs: the defaults with what is given in their place. Raises InputError."""
    chosen = {key: value for key, value in given.items() if value is not None}
    for key, value in chosen.items():
        option = f"--{key.replace('_', '-')}"
        if not 0 <= value < float("inf"):
            raise InputError(f"{option}: {value} is not zero or a number of seconds above it")
        if no_overheads:
            raise InputError(f"{option} and --no-overheads contradict each other; drop one")
    return FREE if no_overheads else Costs()._replace(**chosen)


def parse_load(text: str | float, option: str) -> float:
    """A load: a number above zero. Raises InputError."""
    try:
        load = float(text)
    except ValueError:
        load = -1.0
    if not 0 < load < float("inf"):
        raise InputError(f"{option}: {text!r} is not a number above zero; write for example 0.8")
    return load


def parse_loads(text: str) -> list[float]:
    """``0.5,1,1.5`` as numbers, none of them twice. Raises InputError."""
    return _distinct([parse_load(part, "--loads") for part in text.split(",")], "--loads")


def parse_seeds(text: str) -> list[int]:
    """``0,3,5-9`` as whole numbers, none of them twice. Raises InputError."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = (side.strip() for side in part.partition("-"))
        ends = (low, high) if dash else (low, low)
        if not all(end.isascii() and end.isdigit() and len(end) <= 18 for end in ends):
            raise InputError(f"--seeds: {part!r} is no seed; write for example 0,1,2 or 0-9")
        first, last = map(int, ends)
        if not first <= last < first + MOST_RUNS:
            raise InputError(f"--seeds: {part!r} is no range of at most {MOST_RUNS} rising seeds")
        seeds += range(first, last + 1)
    return _distinct(seeds, "--seeds")


def _distinct(values: list[Any], option: str) -> list[Any]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InputError(f"{option}: {value:g} stands there twice; drop one")
    return values


def require_drawing(html: str | None, png: str | None) -> None:
    """Raise InputError if a library that draws the pictures asked for is not installed."""
    from importlib.util import find_spec

    for option, asked, library in (("--html", html, "plotly"), ("--png", png, "matplotlib")):
        if asked is not None and find_spec(library) is None:
            raise InputError(
                f"{option} needs {library}, which is not installed; pip install 'rota[report]'"
            )


def check_files(html: str | None, png: str | None, csv: str | None = None) -> None:
    """Raise InputError, before anything runs, if an output that was asked for can't be written."""
    require_drawing(html, png)
    for option, file in (("--html", html), ("--csv", csv)):
        if file is not None:
            require_writable(Path(file), option)
    if png is not None:
        require_folder(Path(png), "--png")
