"""``rota node``: take nodes out of service for a while, with or without their jobs."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click

from rota.cli.commandgroup import CommandGroup
from rota.cli.connection import connected
from rota.cli.present import closed_text
from rota.errors import InputError, NotFoundError
from rota.report.text import printable
from rota.request.values import refuse, seconds_of

_EXAMPLES = "write for example 30m, 2h, 14:00 or 2031-05-20T14:00"


@click.group(cls=CommandGroup)
def node() -> None:
    """Take nodes out of service for a while, with or without their jobs.

    NODE is a name as `rota nodes` prints it. What is asked for stays in force when the controller
    or the node's agent is restarted, until `rota node enable`.
    """


@node.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
def cordon(nodes: Sequence[str]) -> int:
    """Have nodes take no new job; jobs that run there go on to their end.

    A suspended job whose state can't go to another node goes on where it is. Of a node that is
    drained, no more jobs leave. The exit code is 1 if there is no such node.
    """
    with connected() as client:
        return _steer(nodes, client.cordon, "it takes no new job")


@node.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option(
    "--by",
    "by",
    metavar="TIME",
    help="Stop then what is left; a duration such as 2h, or a local time such as 14:00.",
)
def drain(nodes: Sequence[str], by: str | None) -> int:
    """Have nodes take no new job, and have their jobs leave them.

    A job whose state can go to another node is suspended, and goes on elsewhere when the policy
    gives it GPUs. Any other stays until it ends, or until TIME: then it is stopped, and starts
    anew elsewhere, from its own last checkpoint if it writes some. `rota nodes` says `drained`
    once no job is left. The exit code is 1 if there is no such node.
    """
    within_s = None if by is None else seconds_until(by, time.time())
    with connected() as client:
        becomes = "it takes no new job, and its jobs leave it"
        return _steer(nodes, lambda name: client.drain(name, within_s=within_s), becomes)


@node.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
def enable(nodes: Sequence[str]) -> int:
    """Have nodes that were cordoned or drained take jobs again.

    The exit code is 1 if there is no such node.
    """
    with connected() as client:
        return _steer(nodes, client.enable, "it takes jobs again")


def seconds_until(text: str, now_s: float) -> float:
    """Seconds until TIME: a duration, a time of today, or a date and time. Raises InputError."""
    moment = _moment(text, now_s)
    if moment is None:
        try:
            return seconds_of("--by", text)
        except InputError:
            refuse("--by", text, _EXAMPLES)
    left_s = moment.timestamp() - now_s
    if left_s <= 0:
        refuse("--by", text, f"that is past; {_EXAMPLES}")
    return left_s


def _moment(text: str, now_s: float) -> datetime | None:
    """The local time that ``text`` names; None if it names none."""
    today = datetime.fromtimestamp(now_s).date().isoformat()
    for candidate in (text.strip(), f"{today}T{text.strip()}"):
        try:
            moment = datetime.fromisoformat(candidate)
        except ValueError:
            continue
        if ":" in candidate:
            return moment
    return None


def _steer(names: Sequence[str], call: Callable[[str], dict[str, Any]], becomes: str) -> int:
    """Ask for something about each node, and say what came of it; 1 if there is no such node."""
    code = 0
    for name in names:
        try:
            told = call(name)
        except NotFoundError as error:
            click.echo(f"error: {printable(error)}", err=True)
            code = 1
            continue
        state = closed_text(told) or "enabled"
        click.echo(
            f"node {printable(told['name'])}: {state}"
            + (f"; {becomes}" if told["changed"] else "; it was so before")
        )
    return code
