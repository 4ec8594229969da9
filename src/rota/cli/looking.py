"""Verbs that look at jobs, nodes and profiles, and change nothing. They talk to the controller."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rota.cli import present
from rota.cli.connection import JOB_HELP, connected, json_option, output_option
from rota.cli.profiles import PROFILE_COLUMNS, kind_text, profile_rows, profiles_text
from rota.cli.table import width_of_terminal
from rota.cli.text import clock
from rota.cli.verdict import why_text
from rota.cli.watching import Watch
from rota.errors import NotFoundError, RotaError, did_you_mean
from rota.model.fallback import sentence
from rota.model.naming import few
from rota.model.reason import Reason
from rota.report.text import printable

if TYPE_CHECKING:
    from rota.client.client import Client

WATCH_S = 1.0  # between two lists
FEW_ENDED = 5  # jobs that have ended, in a list of jobs
LAST_LINES, MOST_CHARACTERS = 10, 400  # of a failed job's output, and of each line
FILTERS = (
    *("id", "name", "sweep", "state", "reason"),
    *("user", "queue", "priority", "gpus", "node", "attempt", "tag"),
)


@click.command()
@output_option
@click.option("-a", "--all", "everything", is_flag=True, help="Also all jobs that have ended.")
@click.option("--mine", is_flag=True, help="Only your own jobs.")
@click.option("--user", metavar="USER", help="Only the jobs of this user.")
@click.option("--trials", is_flag=True, help="Also trials of searches that wait or have ended.")
@click.option(
    "--watch", is_flag=True, help="Print again when something has happened, until Ctrl-C."
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only jobs whose " + ", ".join(FILTERS) + " is that; all of several must hold.",
)
def ps(
    output: str,
    everything: bool,
    mine: bool,
    user: str | None,
    trials: bool,
    watch: bool,
    filters: tuple[str, ...],
) -> int:
    """List jobs, active ones first, and the last few that ended within the hour.

    Above them stand the GPUs in use, how many jobs wait, how many flow jobs are idle, the policy,
    and where jobs take turns when the first turn ends. EXIT is the exit code of a job that has
    ended.

    NODE names the GPUs that a job has now, and the jobs that it shares them with. SHARE is the part
    of its life, from its submission on, in which it has run; AGE how long that is, RUN how long it
    ran. PROGRESS is the steps done of all and their part; where batches vary, the steps done and
    the part of the samples. ETA is the time to go if it runs alone from now on, and if it keeps its
    SHARE.

    Where there are background jobs, FILL tells beside whom one is, or which one is in a job's gaps,
    HARVEST the part of its own speed that it has there, SLOWDOWN by what factor it lengthens steps,
    with the interval in which that lies with 95 % confidence.

    Of the trials of a search those are listed that have GPUs, and below how many others wait or
    have ended; with --trials, --filter, or as json, yaml or csv all are listed.

    On a narrow terminal some columns are left out; -o wide prints all.
    """
    wanted = [_filter(text) for text in filters]
    with connected() as client:
        if mine and user not in (None, client.user):
            raise click.UsageError(f"--mine are the jobs of {client.user}; drop --user {user}")
        owner = client.user if mine else user
        watching = None
        while True:
            every = client.jobs(everything=everything)
            cursor = client.cursor
            jobs = [job for job in every if _matches(job, wanted) and owner in (None, job["user"])]
            folds = output in ("table", "wide") and not (trials or wanted)
            listed, searches = _folded(jobs) if folds else (jobs, [])
            lines = [present.jobs_text(listed, output), *searches]
            if output == "table":
                if not (everything or wanted or trials):
                    listed, ended = _active_first(listed)
                    lines = [present.jobs_text(listed, output), *searches, *ended]
                lines.insert(0, _heading(client, every))
            text = "\n".join(lines)
            if watch and sys.stdout.isatty():
                click.clear()
                text = cut_to(text, shutil.get_terminal_size().lines - 1)
            click.echo(text)
            if not watch:
                return 0
            watching = watching or Watch(client, cursor, WATCH_S)
            while (why := watching.wait()) is not None:
                click.echo(f"no controller answers ({printable(why)}); waiting for one", err=True)


def _active_first(jobs: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The active jobs and the last few that have ended, and a line about the others of these."""
    active = [job for job in jobs if not present.is_final(job)]
    ended = [job for job in jobs if present.is_final(job)]
    more = len(ended) - FEW_ENDED
    note = [f"{more} more ended within the hour; -a lists all"] if more > 0 else []
    return active + ended[-FEW_ENDED:], note


def _heading(client: Client, jobs: Sequence[dict[str, Any]]) -> str:
    """The cluster's load, the policy, and the end of the first turn."""
    there = sum(node["num_gpus"] for node in client.nodes() if node["alive"])
    used = {(p["node"], gpu) for job in jobs for p in job["gpus"] for gpu in p["gpus"]}
    without = [job for job in jobs if not (present.is_final(job) or job["gpus"])]
    idle = sum(job["reason"] == Reason.IDLE.name for job in without)
    told = [f"{len(used)} of {there} GPUs in use", f"{len(without) - idle} waiting"]
    told += [f"{idle} idle"] * (idle > 0)
    for policy in client.policies():
        told.append(f"policy {policy['name']}")
        if policy["error"] is not None:
            by = policy.get("fallback")
            how = sentence(by) if by else "its last plan stays"
            told[-1] += f" fails: {how} ({printable(policy['error'])})"
    running = next((job for job in jobs if job["gpus"] and not present.is_final(job)), None)
    if running is not None and (turns := client.explain(running["id"]).get("turns")):
        told.append(f"a turn ends at {clock(turns['ends_s'])}")
    return ", ".join(told)


def cut_to(text: str, height: int) -> str:
    """The first lines of a text, as many as there is room for, and how many more there are."""
    lines = text.split("\n")
    if len(lines) <= height:
        return text
    kept = max(1, height - 1)
    return "\n".join([*lines[:kept], f"... {len(lines) - kept} more lines"])


def last_lines(client: Client, job: Mapping[str, Any]) -> list[str]:
    """A failed job's last output, and the way to see the rest; nothing for other jobs."""
    if job["state"] != "FAILED":
        return []
    try:
        text = "".join(client.logs(job["id"], tail=LAST_LINES))
    except RotaError:  # its output is gone, or its node
        return []
    lines = [line[:MOST_CHARACTERS] for line in text.splitlines()[-LAST_LINES:]]
    lines = [f"  {printable(line)[:MOST_CHARACTERS]}" for line in lines]
    where = f"`rota logs {job['id']}`"
    return ["", f"the last it printed ({where} prints all):", *lines] if lines else []


def _folded(jobs: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The jobs less the trials that have no GPUs, and a line about these for each search."""
    listed = []
    idle: dict[tuple[str, bool], Counter[str]] = {}
    for job in jobs:
        if job["sweep"] is None or job["gpus"]:
            listed.append(job)
        else:
            name, is_array = job["sweep"]["name"], bool(job["sweep"].get("array"))
            counts = idle.setdefault((name, is_array), Counter())
            counts["ended" if present.is_final(job) else "waiting"] += 1
    return listed, [
        f"{'array' if is_array else 'search'} {printable(name)}: "
        + ", ".join(f"{counts[what]} {what}" for what in ("waiting", "ended") if counts[what])
        + f"; --trials lists its {'tasks' if is_array else 'trials'}"
        for (name, is_array), counts in idle.items()
    ]


@click.command(epilog=JOB_HELP)
@click.argument("job")
@json_option
def show(job: str, as_json: bool) -> None:
    """Everything about a job: standing, how it is suspended, progress, and its story.

    Of a job whose batches the scheduler chooses also its goodput by number of GPUs, with the batch
    that is best there, and how the steps there are known.
    """
    with connected() as client:
        found = client.job(job)
        if as_json:
            click.echo(present.structure_text(found))
            return
        if job == found["name"] and found["same_name"]:
            others = few(found["same_name"], " ")
            click.echo(f"the newest job of that name; others: {others}", err=True)
        last = last_lines(client, found)
        click.echo("\n".join([present.job_text(found, client.explain(found["id"])), *last]))


@click.command(epilog=JOB_HELP)
@click.argument("job")
@json_option
def why(job: str, as_json: bool) -> None:
    """Explain why a job does not run: what is in its way, who holds it, what would start it.

    For a job with a range of GPUs, also why it has its present number, or what keeps that from
    changing; for jobs that share GPUs or take turns on a node, with whom, and what the policy has
    tried. For a job whose CPU cores the cluster chooses, what one core more would be worth.
    """
    with connected() as client:
        verdict = client.explain(job)
        if as_json:
            click.echo(present.structure_text(verdict))
            return
        ended = {"id": verdict["job_id"], "state": verdict["state"]}
        click.echo("\n".join([why_text(verdict), *last_lines(client, ended)]))


@click.command()
@output_option
@click.option("--all", "everything", is_flag=True, help="Also nodes that were lost for good.")
def nodes(output: str, everything: bool) -> None:
    """List nodes, and which jobs hold which GPU.

    The controller's own nodes come first, then the others by name. Nodes that were lost come last,
    for an hour, and as long as a job asks for more GPUs than the others have. 0:1+4 says that jobs
    1 and 4 share GPU 0; GPU:FILL has background jobs, each with its harvest, and the slowdown
    beside it with its interval; ENGINE is what the engine that gives a node calls it. A node that
    was asked for and is not there yet, a policy that asks for a number of nodes, and a node whose
    connection has ended, with the reason, have a line of their own.
    """
    with connected() as client:
        found = client.nodes(everything=everything)
        policies = client.policies() if output == "table" else []
        awaited = client.awaited_nodes() if output == "table" else []
    more = [*present.awaited_lines(awaited), *present.desired_nodes_lines(policies)]
    more += present.disconnected_lines(found) if output == "table" else []
    click.echo("\n".join([present.nodes_text(found, output), *more]))


@click.command()
@click.argument("kind", required=False)
@output_option
@json_option
def profiles(kind: str | None, output: str, as_json: bool) -> None:
    """List what was measured of each kind of jobs: speed by placement, and what they use.

    Jobs are of a kind if they run the same command, but for its numbers, in the same folder, on a
    model and in batches of the same size. SPEED is relative to having the GPUs alone, BUSY the part
    of the time in which the GPU computes, MEM that of a GPU over a step. On a terminal too narrow
    for the table there is a paragraph for each kind. With KIND, all that is known of that one.
    """
    with connected() as client:
        found = client.profiles()
    if kind is not None:
        names = [known["kind"] for known in found]
        found = [known for known in found if known["kind"] == kind]
        if not found:
            hint = did_you_mean(kind, names) or "; `rota profiles` lists them"
            raise NotFoundError(f"there is no kind {kind!r}{hint}")
    output = "json" if as_json else output
    if output != "table":
        click.echo(present.listing_text(found, output, PROFILE_COLUMNS, profile_rows(found)))
    elif kind is not None:
        command = f"  command: {printable(found[0]['command'])}"
        click.echo(f"{kind_text(found[0], width_of_terminal())}\n{command}")
    else:
        click.echo(profiles_text(found))


def _filter(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    takes = f"it takes: {', '.join(FILTERS)}; write for example --filter state=RUNNING"
    if not equals:
        raise click.UsageError(f"--filter: {text!r} is not of the form KEY=VALUE; {takes}")
    if key not in FILTERS:
        hint = did_you_mean(key, FILTERS)
        raise click.UsageError(f"--filter {text}: there is no key {key!r}{hint}; {takes}")
    return key, value.lower()


def _matches(job: dict[str, Any], wanted: Sequence[tuple[str, str]]) -> bool:
    values = {**job, "gpus": job["num_gpus"], "sweep": (job["sweep"] or {}).get("name")}
    for key, value in wanted:
        if key == "node":
            found = value in [part["node"].lower() for part in job["gpus"]]
        elif key == "tag":
            found = value in [tag.lower() for tag in job["tags"]]
        else:
            found = str(values[key]).lower() == value
        if not found:
            return False
    return True
