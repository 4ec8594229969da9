"""``rota node``: take nodes out of service for a while, have machines join, and remove them."""

import json
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click

from rota.cli.commandgroup import CommandGroup
from rota.cli.connection import connected, json_option
from rota.cli.present import closed_text
from rota.client.trust import fingerprint_of
from rota.errors import InputError, NotFoundError, TransitionError
from rota.report.text import printable
from rota.request.values import refuse, seconds_of

_EXAMPLES = "write for example 30m, 2h, 14:00 or 2031-05-20T14:00"


@click.group(cls=CommandGroup)
def node() -> None:
    """Have machines join and leave, and take nodes out of service for a while.

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
    gives it GPUs; until then it waits on another node. Any other stays until it ends, or until
    TIME: then it is stopped, and starts anew elsewhere, from its own last checkpoint if it writes
    some. `rota nodes` says `drained` once no job and no state of one is left. The exit code is 1
    if there is no such node.
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


@node.command()
@json_option
def invite(as_json: bool) -> None:
    """Print the command by which a machine joins: good once, for an hour.

    It is for a cluster that was started with `rota up --listen`.
    """
    with connected() as client:
        told = client.invite()
    fingerprint = fingerprint_of(told["certificate"])
    if as_json:
        click.echo(json.dumps(told | {"ca": fingerprint}))
        return
    click.echo(f"rota agent --join {told['url']} --token {told['token']} --ca {fingerprint}")


@node.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option(
    "--force",
    is_flag=True,
    help="Also a node with jobs: they are ended, and start anew elsewhere; where the machine does "
    "not answer, once its lease is over.",
)
def remove(nodes: Sequence[str], force: bool) -> int:
    """Have machines that have joined be none of the cluster's any more: their tokens are revoked.

    A node that has jobs stays: drain it first. The agent of a removed node ends. The exit code is 1
    if a node is none that has joined, or stays.
    """
    code = 0
    with connected() as client:
        for name in nodes:
            try:
                told = client.remove_node(name, force=force)
            except (NotFoundError, TransitionError) as error:
                click.echo(f"error: {printable(error)}", err=True)
                code = 1
            else:
                click.echo(f"node {printable(name)}: {_removal(told['removed_in_s'])}")
    return code


def _removal(left_s: float) -> str:
    if not left_s:
        return "removed; its token is revoked"
    return (
        "its token is revoked; its jobs start anew elsewhere, and it is removed, once they have "
        f"ended there, or in {math.ceil(left_s)} s, when its lease is over"
    )


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
