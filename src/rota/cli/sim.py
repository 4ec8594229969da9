"""``rota sim``: run a trace under one policy, or under several side by side."""

import csv
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rota.cli.table import render
from rota.errors import InputError
from rota.model.cluster import Node, parse_cluster
from rota.model.state import ClusterState
from rota.policy.registry import create, settings
from rota.report.metrics import PER_JOB_COLUMNS, per_job, summarise
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import simulate
from rota.workload.readers.csv import FORMATS, read_trace
from rota.workload.trace import Trace

COST_HELP = {
    "suspend_s": "Seconds that suspending a job takes.",
    "resume_s": "Seconds that resuming a job takes.",
    "migrate_s": "Seconds that moving a job to other nodes takes besides resuming it.",
    "cold_start_s": "Seconds that starting a job takes.",
}
ORACLE_NOTE = "* an oracle: it reads durations that a live scheduler does not know"


@click.group()
def sim() -> None:
    """Run job traces in the simulator."""


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that ``run`` and ``compare`` share: the trace, the cluster, the costs, --json."""
    options = [
        click.option("--trace", "trace_file", required=True, metavar="FILE", help="Jobs, as CSV."),
        click.option(
            "--format",
            "trace_format",
            type=click.Choice(["auto", *FORMATS]),
            default="auto",
            show_default=True,
            help="Whose columns the trace has; auto tells by the header.",
        ),
        click.option(
            "--cluster",
            required=True,
            metavar="NODESxGPUS",
            help="For example 15x4: 15 nodes of 4 GPUs; 2x4,1x8 adds up.",
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
        click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@sim.command()
@click.option("--policy", "policy_text", required=True, metavar="NAME", help="Who runs when.")
@click.option(
    "--set", "set_texts", multiple=True, metavar="KEY=VALUE", help="A setting of the policy."
)
@click.option("--per-job", metavar="OUT.csv", help="Write one row per job to this file.")
@common_options
def run(
    policy_text: str,
    set_texts: tuple[str, ...],
    per_job: str | None,
    trace_file: str,
    trace_format: str,
    cluster: str,
    as_json: bool,
    **costs: Any,
) -> None:
    """Run a trace under one policy."""
    name, given = parse_policy(policy_text, set_texts)
    create(name, given)
    charged = parse_costs(**costs)
    nodes = parse_cluster(cluster)
    if per_job is not None:
        require_writable(Path(per_job))
    trace = read_trace(trace_file, trace_format)
    summary, state = run_one(trace, nodes, name, given, charged)
    summary["cpu_s"] = cpu_s()
    if per_job is not None:
        write_per_job(state, Path(per_job))
    summary |= {"trace": trace.name, "cluster": cluster, "overheads": charged._asdict()}
    click.echo(as_json_text(summary) if as_json else describe(summary))


@sim.command()
@click.option(
    "--policy",
    "policy_texts",
    required=True,
    multiple=True,
    metavar="NAME[:KEY=VALUE...]",
    help="A policy, given once for each; tiresias:thresholds=600:within=entry sets its settings.",
)
@common_options
def compare(
    policy_texts: tuple[str, ...],
    trace_file: str,
    trace_format: str,
    cluster: str,
    as_json: bool,
    **costs: Any,
) -> None:
    """Run a trace under several policies.

    cpu_s counts, for each policy, what `rota sim run` would have used: the common start and the
    reading of the trace, and this policy's own run.
    """
    policies = [parse_policy(text) for text in policy_texts]
    seen: set[str] = set()
    for text, (name, given) in zip(policy_texts, policies, strict=True):
        identity = create(name, given).identity  # type: ignore[attr-defined]
        if identity in seen:
            raise InputError(
                f"--policy {text}: the same policy with the same settings stands there twice; "
                "drop one, or give it other settings"
            )
        seen.add(identity)
    charged = parse_costs(**costs)
    nodes = parse_cluster(cluster)
    trace = read_trace(trace_file, trace_format)
    common_cpu_s = cpu_s()
    summaries = []
    for name, given in policies:
        began_cpu_s = cpu_s()
        summary, _ = run_one(trace, nodes, name, given, charged)
        summary["cpu_s"] = common_cpu_s + cpu_s() - began_cpu_s
        summary |= {"trace": trace.name, "cluster": cluster, "overheads": charged._asdict()}
        summaries.append(summary)
    click.echo(as_json_text(summaries) if as_json else side_by_side(summaries))


def run_one(
    trace: Trace, nodes: list[Node], name: str, given: dict[str, str], costs: Costs
) -> tuple[dict[str, Any], ClusterState]:
    """The summary of one simulation, and its final state."""
    policy: Any = create(name, given)
    state, decisions = simulate(trace, nodes, policy, costs)
    summary = summarise(
        state,
        decisions=decisions,
        policy=name,
        needs_duration=getattr(policy, "needs_duration", False),
    )
    summary["settings"] = {key: getattr(policy, key, given.get(key)) for key in settings(name)}
    return summary, state


def parse_policy(text: str, set_texts: tuple[str, ...] = ()) -> tuple[str, dict[str, str]]:
    """``name:key=value:...`` and further ``key=value`` texts as (name, settings). InputError."""
    name, *parts = text.split(":")
    given: dict[str, str] = {}
    for part in (*parts, *set_texts):
        key, equals, value = part.partition("=")
        if not (equals and key.strip()):
            raise InputError(
                f"policy {name}: the setting {part!r} is not of the form KEY=VALUE; "
                "write for example thresholds=600,1800"
            )
        if key.strip() in given:
            raise InputError(f"policy {name}: the setting {key.strip()!r} is given twice; drop one")
        given[key.strip()] = value.strip()
    return name, given


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


def cpu_s() -> float:
    """User and system time of this process and its children so far, in seconds."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in usage)


def require_writable(path: Path) -> None:
    """Raise InputError if a file at ``path`` can't be written, before a long run is wasted."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"--per-job {path}: there is no folder {folder}; make it first")
    try:
        special = path.exists() and not path.is_file()
    except OSError as error:
        raise InputError(f"--per-job {path}: {error.strerror}") from None
    if path.is_dir():
        raise InputError(f"--per-job {path}: it is a folder; name a file")
    if special or path.is_symlink():
        raise InputError(f"--per-job {path}: it is no plain file, and would be replaced; name one")
    if not os.access(folder, os.W_OK):
        raise InputError(f"--per-job {path}: the folder {folder} can't be written to")


def write_per_job(state: ClusterState, path: Path) -> None:
    """Write one row per job as CSV: the whole file or nothing. Raises InputError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("x", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(PER_JOB_COLUMNS)
            writer.writerows(per_job(state))
        part.replace(path)
    except OSError as error:
        raise InputError(f"--per-job {path}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def as_json_text(value: Any) -> str:
    """``value`` as JSON; a setting of a policy that JSON does not know becomes text."""
    return json.dumps(value, indent=2, default=str)


def describe(summary: dict[str, Any]) -> str:
    """One run's figures, one a line."""
    rows = [
        (label, text)
        for label, text in zip(HEADER, cells(summary), strict=True)
        if label != "policy"
    ]
    width = max(len(label) for label, _ in rows)
    title = f"{label_of(summary)} on {summary['cluster']}, {summary['trace']}"
    lines = [title, *(f"  {label.ljust(width)}  {text:>12}" for label, text in rows)]
    return "\n".join([*lines, ORACLE_NOTE] if summary["needs_duration"] else lines)


def side_by_side(summaries: list[dict[str, Any]]) -> str:
    """Several runs' figures, one run a line."""
    table = render(HEADER, [cells(summary) for summary in summaries])
    oracle = any(summary["needs_duration"] for summary in summaries)
    return f"{table}\n{ORACLE_NOTE}" if oracle else table


HEADER = (
    "policy",
    "jobs",
    "avg JCT s",
    "median s",
    "p95 s",
    "p99 s",
    "makespan s",
    "avg queue s",
    "preempted",
    "migrated",
    "GPU use",
    "decisions",
    "CPU s",
)


def cells(summary: dict[str, Any]) -> tuple[str, ...]:
    """The fields of ``HEADER`` as text."""
    times = ("avg_jct_s", "median_jct_s", "p95_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s")
    use = summary["gpu_utilisation"]
    return (
        label_of(summary),
        f"{summary['finished']:,}",
        *("-" if summary[key] is None else f"{summary[key]:,.1f}" for key in times),
        f"{summary['preemptions']:,}",
        f"{summary['migrations']:,}",
        "-" if use is None else f"{use:.1%}",
        f"{summary['decisions']:,}",
        f"{summary['cpu_s']:.2f}",
    )


def label_of(summary: dict[str, Any]) -> str:
    """The policy's name, starred if it is an oracle, with the settings that are not defaults."""
    known = settings(summary["policy"])
    changed = [
        f"{key}={_plain(value)}"
        for key, value in summary["settings"].items()
        if value != known[key].default
    ]
    return ":".join([summary["policy"] + ("*" if summary["needs_duration"] else ""), *changed])


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
