"""``rota plan``: where and when a job would start, and whom it would displace."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from rota.cli import present
from rota.cli.connection import connected, json_option
from rota.cli.jobsource import is_job_file, only_path, read_job_file
from rota.cli.live import NEVER_PLACED, command_request, in_own_environment, run
from rota.cli.table import width_of_terminal
from rota.cli.text import folded
from rota.cli.verdict import blocker_lines
from rota.errors import NeverFitsError
from rota.model.naming import jobs_text
from rota.report.text import printable
from rota.request.jobfile import JobRequest
from rota.request.values import refuse

# The options of `run`, but for those about what comes after the submission.
OPTIONS = [
    option
    for option in run.params
    if isinstance(option, click.Option)
    and option.name not in ("wait", "follow", "dry_run", "as_json")
]


class _PlanCommand(click.Command):
    """A command whose options may follow a job file; what follows a command is the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, those after a job file too."""
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        words = given.get("words")
        # Without words click gives a mark of its own in their place, or nothing, by its version.
        ctx.allow_interspersed_args = isinstance(words, tuple) and is_job_file((*words, "")[0])
        return super().parse_args(ctx, args)


@click.command(cls=_PlanCommand)
@click.argument(
    "words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="JOB.YAML|COMMAND..."
)
@json_option
@click.pass_context
def plan(ctx: click.Context, words: tuple[str, ...], as_json: bool, **asked: Any) -> int:
    """Say where and when a job would start, and whom it would displace; nothing is submitted.

    The job is a job file (a word that ends in .yaml or .yml, or - for standard input), or a
    command with the options of `rota run`: rota plan --gpus 2 -- python train.py

    The policy in force decides once, on a copy of the cluster's state as it is now with the job
    added. What comes later, such as other jobs, or ends before their time, it can't know. The exit
    code is 3 if the job never fits.
    """
    is_file = is_job_file(words[0])
    request = _of_file(ctx, only_path(words)) if is_file else command_request(words, **asked)
    if not isinstance(request, JobRequest):
        refuse("array", request.job.name, "an array has many jobs: plan one without it")
    with connected() as client:
        try:
            told = client.plan(request)
        except NeverFitsError as error:
            click.echo(f"error: {error}", err=True)
            return NEVER_PLACED
    click.echo(present.structure_text(told) if as_json else plan_text(told))
    return NEVER_PLACED if told["start"] == "never" else 0


plan.params[1:1] = OPTIONS


def _of_file(ctx: click.Context, path: str) -> JobRequest:
    given = click.core.ParameterSource.COMMANDLINE
    for option in OPTIONS:
        if ctx.get_parameter_source(option.name or "") == given:
            raise click.UsageError(f"{option.opts[0]} is for a command; write it into {path}")
    request = read_job_file(path)
    if not isinstance(request, JobRequest):
        refuse("sweep", request.job.name, "a search has many jobs: plan one without this block")
    return in_own_environment(request)


def plan_text(told: Mapping[str, Any]) -> str:
    """A plan for people."""
    width = width_of_terminal()
    verdict, start = told["verdict"], told["start"]
    where = f"on {present.places(told)}"
    if told["shares_with"]:
        where += f", which it would share with {jobs_text(told['shares_with'])}"
    if told.get("beside"):
        where += f", beside {jobs_text(told['beside'])}"
    whom = jobs_text(told["after"])
    have = "has" if len(told["after"]) == 1 else "have"
    what = {
        "now": f"would start now, {where}",
        "after": f"would start as soon as {whom} {have} given GPUs up, {where}",
        "waits": f"would wait: {printable(verdict['sentence'])}",
        "never": f"NEVER_FITS: {printable(verdict['sentence'])}",
    }[start]
    head = f"{printable(told['job']['name'])}: {what}; policy {printable(told['policy'])}"
    lines = [folded(head, width, indent=2)]
    lines += [folded(f"  {_displaced_text(each)}", width, indent=4) for each in told["displaces"]]
    if start in ("waits", "never") and verdict["blockers"]:
        lines += ["", *blocker_lines(verdict["blockers"], width), ""]
        if verdict["would_start_if"]:
            condition = f"would start if  {printable(verdict['would_start_if'])}"
            lines.append(folded(condition, width, indent=16))
    return "\n".join(lines)


def _displaced_text(each: Mapping[str, Any]) -> str:
    """``job 3 (long) of alice would be suspended; it has here:0,1``."""
    who = f"job {each['id']} ({printable(each['name'])})"
    who += f" of {printable(each['user'])}" if each["user"] else ""
    to = f" to {_places(each['then'])}" if each["then"] else ""
    return f"{who} would be {each['how']}{to}; it has {_places(each['gpus'])}"


def _places(gpus: Sequence[Mapping[str, Any]]) -> str:
    return present.places({"gpus": gpus})
