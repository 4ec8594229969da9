"""The options that the simulator's commands share, and how their texts become values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.costoptions import COST_OPTIONS, MOST_COST_S, check_cost, parse_costs
from rota.cli.faultoptions import FAULT_OPTIONS, RANDOM_FAULTS, parse_faults
from rota.cli.optiongroups import options
from rota.cli.outfile import require_folder, require_writable
from rota.cli.traceoptions import NUM_JOBS, PROFILE, READING, SPAN
from rota.errors import InputError, pip_install
from rota.model.cluster import parse_cluster
from rota.scenario.case import Case, Workload
from rota.sim.machine import Costs

if TYPE_CHECKING:
    from rota.sim.faults import Faults

BASELINE = "fifo-backfill"  # the policy that others are compared with
MOST_RUNS = 10_000
LEAST_INTERVAL_S = 0.001
MOST_LOAD = 1e6

WORKLOAD_OPTIONS = [
    click.option("--trace", "trace_file", metavar="FILE", help="The jobs: a trace file."),
    *READING,
    click.option(
        "--generate",
        "profile",
        type=PROFILE,
        help="Draw the jobs at random instead, in the shape of a public log.",
    ),
    NUM_JOBS,
    SPAN,
]

CLUSTER_HELP = (
    "For example 15x4: 15 nodes of 4 GPUs; 16x4:t4,4x8:a100:rack=4:cpus=24 adds up kinds."
)

WORLD_OPTIONS = [
    click.option(
        "--speeds",
        type=click.Choice(["auto", "catalog", "none"]),
        default="auto",
        show_default=True,
        help="Whether GPU types and placement change how fast jobs run, by the catalog of models; "
        "auto: if the cluster names GPU types and the trace names models.",
    ),
    click.option(
        "--oversubscription",
        type=float,
        default=1.0,
        show_default=True,
        metavar="FACTOR",
        help="By how much links between racks are slower than those of nodes.",
    ),
    click.option(
        "--profiles",
        metavar="DIR",
        help="Have the jobs train as was measured of their applications: a folder for each, with "
        "placements.csv, scalability.csv and validation-B.csv.",
    ),
    click.option(
        "--interval",
        "interval_s",
        type=float,
        metavar="SECONDS",
        help="Decide at multiples of so many seconds alone.  [default: whenever something happens]",
    ),
    click.option(
        "--node-start-s",
        type=float,
        metavar="SECONDS",
        help="Rent as many of the cluster's nodes as the policy asks for; one takes so long to "
        "start.  [default: all are there]",
    ),
    click.option(
        "--interference",
        type=float,
        default=0.0,
        show_default=True,
        metavar="PART",
        help="What part of its speed a job on several nodes loses while another such job is on one "
        "of them.",
    ),
]

PICTURE_OPTIONS = [
    click.option(
        "--html", "html_file", metavar="FILE", help="Write a page: verdict, figures, all numbers."
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

TURN_OPTION = click.option(
    "--turn/--no-turn",
    default=None,
    help="Whether to look for the cost of a restart at which another policy becomes the best. It "
    "takes a few more runs.  [default: if they take less than a minute]",
)


def world_options_of(
    *, cluster: bool, several: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options of every command that simulates: the jobs, the cluster, its costs and faults.

    ``cluster`` is True if the cluster is required, ``several`` if several may be given.
    """
    more = " Given several times, the clusters are compared." if several else ""
    option = click.option(
        "--cluster",
        required=cluster,
        multiple=several,
        metavar="NODESxGPUS",
        help=CLUSTER_HELP + more,
    )
    return options(WORKLOAD_OPTIONS, [option], WORLD_OPTIONS, COST_OPTIONS, FAULT_OPTIONS)


def parse_case(
    *,
    trace_file: str | None,
    format_: str,
    strict: bool,
    unit: str,
    tz: str,
    profile: str | None,
    num_jobs: int | None,
    span: float | None,
    cluster: str | None,
    speeds: str,
    oversubscription: float,
    no_costs: bool,
    profiles: str | None,
    interval_s: float | None,
    node_start_s: float | None,
    restart_s: float | None,
    cost_set: str | None,
    interference: float,
    **rest: Any,
) -> Case:
    """The case that the shared options describe, without a policy. Raises InputError.

    ``rest`` are the costs and the options of faults.
    """
    costs = {name: rest.pop(name) for name in Costs._fields}
    if cluster is None:
        raise InputError(
            "give the cluster by --cluster 15x4, or sweep it by --over cluster=2x4|4x4"
        )
    check_links(oversubscription, cluster, speeds)
    check_profiles(profiles, speeds, oversubscription)
    if interval_s is not None and not LEAST_INTERVAL_S <= interval_s <= MOST_COST_S:
        raise InputError(
            f"--interval: {interval_s:g} is not a number of seconds from {LEAST_INTERVAL_S:g} to "
            "1e10"
        )
    faults = parse_faults(**rest)
    check_rented(node_start_s, faults)
    if not 0 <= interference < 1:
        raise InputError(f"--interference: {interference:g} is not a part of 1, such as 0.25")
    charges = parse_costs(no_costs, restart_s, cost_set, **costs)
    workload = Workload(trace_file, format_, strict, profile, num_jobs, span, unit, tz)
    check_workload(workload)
    return Case(
        policy="",
        given={},
        workload=workload,
        cluster=cluster,
        costs=charges.costs,
        cost_set=charges.cost_set,
        costs_given=charges.given,
        suspension=charges.suspension,
        speeds=speeds,
        oversubscription=oversubscription,
        faults=faults,
        faults_given={key: value for key, value in rest.items() if value is not None},
        profiles=profiles,
        interval_s=interval_s,
        node_start_s=node_start_s,
        interference=interference,
    )


def check_rented(node_start_s: float | None, faults: Faults | None) -> None:
    """Raise InputError unless nodes can take so long to start, beside these faults."""
    if node_start_s is None:
        return
    check_cost(node_start_s, "--node-start-s")
    if faults is not None:
        raise InputError(
            "--node-start-s: nodes that are rented don't fail; drop it, or the options of faults"
        )


def check_links(oversubscription: float, cluster: str, speeds: str) -> None:
    """Raise InputError unless links between racks can be so slow, and that has an effect."""
    racks = {node.rack for node in parse_cluster(cluster)}
    if not 1 <= oversubscription < float("inf"):
        raise InputError(f"--oversubscription: {oversubscription:g} is not a number from 1")
    if oversubscription == 1:
        return
    if len(racks) < 2:
        raise InputError(
            "--oversubscription has no effect on a cluster without racks; name them, for example "
            "--cluster 16x8:a100:rack=4, or drop it"
        )
    if speeds == "none":
        raise InputError("--oversubscription has no effect with --speeds none; drop one")


def check_profiles(profiles: str | None, speeds: str, oversubscription: float) -> None:
    """Raise InputError if something else than the measured profiles is to give the speeds."""
    if profiles is None:
        return
    if speeds != "auto":
        raise InputError(f"--profiles gives the speeds, and so does --speeds {speeds}; drop one")
    if oversubscription != 1:
        raise InputError("--oversubscription has no effect with --profiles; drop one")


def check_workload(workload: Workload) -> None:
    """Raise InputError unless the options name one source of jobs, and only what belongs to it."""
    if workload.file is not None and workload.profile is not None:
        raise InputError("give the jobs by --trace FILE or by --generate PROFILE, not by both")
    if workload.file is None and workload.profile is None:
        raise InputError("give the jobs by --trace FILE, or have them drawn by --generate PROFILE")
    if workload.profile is None:
        for option, value in (("--num-jobs", workload.num_jobs), ("--span", workload.span_s)):
            if value is not None:
                raise InputError(f"{option} has no effect on a trace file; drop it")
        return
    if (workload.num_jobs is None) == (workload.span_s is None):
        raise InputError("--generate: give either --num-jobs or --span; one sets the other")
    if workload.strict or workload.format != "auto" or workload.unit != "s":
        raise InputError("--strict, --format and --unit have no effect on drawn jobs; drop them")


def drawn_by_chance(case: Case) -> bool:
    """True if anything in a run depends on its seed."""
    faults = any(key in case.faults_given for key in RANDOM_FAULTS)
    return case.workload.profile is not None or faults


def check_seeds(case: Case, seeds: Sequence[int]) -> None:
    """Raise InputError if several seeds would all give the same run."""
    if len(seeds) > 1 and not drawn_by_chance(case):
        raise InputError(
            "--seeds: nothing here is drawn by chance, so that every seed gives the same; give one "
            "seed, or --generate the jobs, or add random faults"
        )


def parse_load(text: str | float, option: str) -> float:
    """A load: a number above zero, of a size that can be. Raises InputError."""
    try:
        load = float(text)
    except ValueError:
        load = -1.0
    if not 1 / MOST_LOAD <= load <= MOST_LOAD:
        raise InputError(
            f"{option}: {text!r} is not a number above zero (from 1e-6 to 1e6); "
            "write for example 0.8"
        )
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


def require_drawing(html: str | None, png: str | None, draws_html: str = "plotly") -> None:
    """Raise InputError if a library that draws the pictures asked for is not installed."""
    from importlib.util import find_spec

    for option, asked, library in (("--html", html, draws_html), ("--png", png, "matplotlib")):
        if asked is not None and find_spec(library) is None:
            raise InputError(
                f"{option} needs {library}, which is not installed; install it with: "
                f"{pip_install('report')}"
            )


def check_files(outputs: Mapping[str, str | None], world: Mapping[str, Any]) -> None:
    """Raise InputError, before anything runs, if an output that was asked for can't be written.

    ``outputs`` are paths by option; a file to read, of the options in ``world``, is not written to.
    """
    html, png = outputs.get("--html"), outputs.get("--png")
    require_drawing(html, png, "matplotlib")
    named = {"--trace": world.get("trace_file"), "--faults": world.get("faults_file"), **outputs}
    seen: dict[str, str] = {}
    for option, file in named.items():
        if file is None:
            continue
        if not file:
            raise InputError(f"{option} names nothing; give a path")
        other = seen.setdefault(os.path.realpath(file), option)
        if other != option:
            raise InputError(f"{option} {file}: that is what {other} names; give another path")
        if option in outputs and option != "--png":
            require_writable(Path(file), option)
    if png is not None:
        require_folder(Path(png), "--png")
