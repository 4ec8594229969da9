"""``rota clean``: frees the disk of what jobs that have ended have left."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rota.cli import present
from rota.cli.connection import JOB_HELP, connected
from rota.cli.live import ids_of
from rota.cli.text import clock, size_text
from rota.errors import AgentError, AuthError, ServerError, TransitionError, UnreachableError
from rota.report.text import printable
from rota.request.values import seconds_of

if TYPE_CHECKING:
    from rota.client.client import Client


@click.command(epilog=JOB_HELP)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@click.option("--older-than", metavar="T", help="Only jobs that ended so long ago: 30d, 12h.")
@click.option("--all-users", is_flag=True, help="With --older-than: also jobs of others.")
@click.option("--keep-checkpoints", is_flag=True, help="Remove the output alone.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(
    jobs: Sequence[str],
    older_than: str | None,
    all_users: bool,
    keep_checkpoints: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove the output and checkpoints of jobs that have ended, to free the disk.

    The jobs are named, or with --older-than all of yours that ended so long ago. 12[3-7] means the
    jobs 123 to 127; the name of an array or a sweep all of its jobs. They stay in `rota ps -a` and
    `rota show`. Only whoever runs `rota up` can clean up after others, with --all-users after all.

    Jobs stay as they are that have not ended, and those that an active job names in resume_from or
    depends_on, unless checkpoints are kept; named ones then make the exit code 1. A second call
    finishes what was interrupted.
    """
    if not jobs and older_than is None:
        raise click.UsageError("name jobs, or say which: --older-than 30d")
    if all_users and older_than is None:
        raise click.UsageError("--all-users goes with --older-than 30d")
    if not (dry_run or yes or sys.stdin.isatty()):
        raise click.UsageError("nobody can be asked here; add --yes, or --dry-run to look")
    age_s = None if older_than is None else seconds_of("--older-than", older_than)
    with connected() as client:
        if jobs:
            names = _named(client, jobs)
        else:
            ended = _ended(client, None if all_users else client.user, keep_checkpoints)
            names = [job["id"] for job in ended if _is_older(client, job, age_s)]
        ask = partial(_ask, client, keep_checkpoints=keep_checkpoints)
        found, refusals = ask(names, dry_run=True)
        found = [job for job in found if _is_older(client, job, age_s)]
        full = [job for job in found if job["num_bytes"]]
        code = 1 if jobs and refusals else 0
        told = found if jobs else full
        for job in told:
            click.echo(_line(job))
        for refusal in refusals:
            click.echo(f"{'error' if jobs else 'kept'}: {refusal}", err=True)
        if not told:
            click.echo("there is nothing to remove")
        if dry_run:
            if full:
                click.echo(_sum(full))
            return code
        what = "output" if keep_checkpoints else "output and checkpoints"
        if full and not yes and not click.confirm(f"remove the {what} of {_sum(full)}?"):
            click.echo("nothing was removed")
            return 1
        # Also jobs of which nothing is left: a call that was cut off has yet to write that down.
        removed, failures = ask([job["id"] for job in found], dry_run=False)
        for failure in failures:
            click.echo(f"error: {failure}", err=True)
        if full:
            # The size as it was told before: a call that is repeated finds what the first one left.
            done = {job["id"] for job in removed}
            gone = _sum([job for job in full if job["id"] in done])
            click.echo(f"removed the {what} of {gone}")
    return 1 if failures else code


def _ask(
    client: "Client", names: Sequence[str], *, keep_checkpoints: bool, dry_run: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """The jobs with what was removed of them, or would be, and why others keep everything."""
    jobs, refusals = [], []
    for name in names:
        try:
            jobs.append(client.clean(name, keep_checkpoints=keep_checkpoints, dry_run=dry_run))
        except (AuthError, UnreachableError):
            raise
        except (AgentError, ServerError, TransitionError) as error:
            refusals.append(printable(error))
    return jobs, refusals


def _named(client: "Client", texts: Sequence[str]) -> list[str]:
    """The jobs that are meant: each as it is named, and of arrays and sweeps all jobs."""
    names = [name for text in texts for name in ids_of(text)]
    if all(name.isdigit() for name in names):
        return names
    by_sweep: dict[str, list[str]] = {}
    for job in client.jobs(everything=True):
        if job["sweep"] is not None:
            by_sweep.setdefault(job["sweep"]["name"], []).append(job["id"])
    return [job_id for name in names for job_id in by_sweep.get(name, [name])]


def _is_older(client: "Client", job: dict[str, Any], age_s: float | None) -> bool:
    return age_s is None or job["finish_s"] < client.now_s() - age_s


def _ended(client: "Client", user: str | None, keep_checkpoints: bool) -> list[dict[str, Any]]:
    """The jobs that have ended and were not cleaned up: of a user, or of all."""
    done = ("all", "output") if keep_checkpoints else ("all",)
    return [
        job
        for job in client.jobs(everything=True)
        if present.is_final(job) and job["cleaned"] not in done and user in (None, job["user"])
    ]


def _sum(jobs: Sequence[dict[str, Any]]) -> str:
    number = f"{len(jobs)} job{'s'[: len(jobs) != 1]}"
    return f"{number}: {size_text(sum(job['num_bytes'] for job in jobs))}"


def _line(job: dict[str, Any]) -> str:
    who = f"job {job['id']} ({printable(job['name'])}) of {printable(job['user'])}"
    size = size_text(job["num_bytes"]) if job["num_bytes"] else "nothing is left to remove"
    return f"{who}, ended {clock(job['finish_s'])}: {size}"
