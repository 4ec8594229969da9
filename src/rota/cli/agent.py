"""``rota agent``: this machine as a node of a cluster that runs on another one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from rota.cli.keyvalue import parse_size
from rota.errors import InputError
from rota.folder import MEMBERSHIP, REMOVED, Folder, is_locked, keep_membership, membership
from rota.live.wire.clock import boot_id
from rota.model.naming import few, jobs_text

OPTIONS = "options"  # in the membership's file: those of the agent's last start
OF_DEVICES = ("--gpus", "--gpu-type")  # an agent that offers others ends the jobs of its node


@click.command()
@click.option("--join", "url", metavar="URL", help="The controller, as https://HOST:PORT.")
@click.option("--token", metavar="TOKEN", help="A join token; `rota node invite` makes one.")
@click.option("--ca", metavar="sha256:...", help="The fingerprint of the cluster's CA.")
@click.option("--node", metavar="NAME", help="The node's name: as before, or this machine's.")
@click.option(
    "--gpus",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Offer so many GPUs, or device slots where there is no GPU; as before, or all.",
)
@click.option("--gpu-type", metavar="TYPE", help="What to call the GPUs.")
@click.option(
    "--host-memory",
    metavar="SIZE",
    help="What suspended jobs may hold of the machine's memory, such as 8GiB; half of it by "
    "default.",
)
@click.option(
    "--log-limit", metavar="SIZE", help="What the logs of a job may hold; 1GiB by default."
)
@click.option(
    "--data-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where machines that jobs move to fetch their state; any free port by default, 0: "
    "nowhere, it goes through the controller.",
)
@click.option(
    "--ends",
    is_flag=True,
    help="End when the cluster ends, or gives the node up; by default the agent waits for the next "
    "controller.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines of text, or a JSON object a line; they go to standard error.",
)
@click.option(
    "--home",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The state folder; $ROTA_HOME, or one under the XDG data folder, by default.",
)
def agent(
    url: str | None,
    token: str | None,
    ca: str | None,
    node: str | None,
    gpus: int | None,
    gpu_type: str | None,
    host_memory: str | None,
    log_limit: str | None,
    data_port: int | None,
    ends: bool,
    log_format: str,
    home: str | None,
) -> None:
    """Have this machine be a node of a cluster that runs on another machine.

    `rota node invite` prints the line to join with. The machine stays a member until `rota node
    remove`: afterwards `rota agent` alone is enough, with the name and the options of before, and
    the whole line does no harm. It runs until Ctrl-C and never gives up by itself; jobs go on
    without it, and the next one takes them over. The exit code is 5 if the token or the CA is
    wrong, or the node was removed.
    """
    folder = Folder(home)
    name = node or _name_of(folder, token, ca)
    place = folder.node(name)
    if (place / "agent.lock").exists() and is_locked(place / "agent.lock"):
        raise InputError(f"--node: an agent of node {name} runs on {folder.path} already")
    memory = None if host_memory is None else parse_size("--host-memory", host_memory)
    limit = None if log_limit is None else parse_size("--log-limit", log_limit)
    given = {"--join": url, "--token": token, "--ca": ca}
    if any(value is not None for value in given.values()):
        for option, value in given.items():
            if value is None:
                raise InputError(f"{option}: it is missing; copy the line of `rota node invite`")
        assert url is not None and token is not None and ca is not None
        if not _has_used(place, token):
            _join(folder, name, url, token, ca)
    elif not (place / MEMBERSHIP).exists():
        others = f" (as {few(found)} it has)" if (found := _members(folder)) else ""
        raise InputError(
            f"--join: node {name} has not joined a cluster yet{others}; run the line that `rota "
            "node invite` prints on the controller's machine"
        )
    _follow_clock(place)
    options = {"--gpus": gpus, "--gpu-type": gpu_type, "--host-memory": memory}
    options |= {"--log-limit": limit, "--data-port": data_port}
    command = [sys.executable, "-m", "rota.live.agent", "--home", str(folder.path)]
    command += ["--node", name, "--joined", "--log-format", log_format]
    command += [f"{option}={value}" for option, value in _settled(name, place, options).items()]
    command += ["--ends"] if ends else []
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - no shell: the agent takes this one's place


def _own_name() -> str:
    name = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).lstrip("-.")[:63]
    return name or "node"


def _members(folder: Folder) -> list[str]:
    """The nodes as which this machine has joined a cluster: those not removed, if there are any."""
    places = sorted(path.parent for path in folder.path.glob(f"nodes/*/{MEMBERSHIP}"))
    stay = [place for place in places if not membership(place).get(REMOVED)]
    return [place.name for place in stay or places]


def _name_of(folder: Folder, token: str | None, ca: str | None) -> str:
    """The node that is meant where none is named: as which this machine has joined, or its name.

    With a join token it is the one that has joined by this token, or else the cluster of this CA.
    Raises InputError if the machine has joined as several, and as none of its own name.
    """
    own, members = _own_name(), _members(folder)
    if token is not None:
        if used := [name for name in members if _has_used(folder.node(name), token)]:
            return used[0]
        members = [name for name in members if _is_of(folder.node(name), ca)]
    if not members or own in members:
        return own
    if len(members) > 1:
        raise InputError(f"--node: this machine has joined as {few(members)}; name one of them")
    return members[0]


def _is_of(place: Path, ca: str | None) -> bool:
    """True if the machine has joined the cluster whose CA has this fingerprint."""
    from rota.client.trust import fingerprint_of

    with contextlib.suppress(ValueError):
        return ca is not None and fingerprint_of(str(membership(place).get("ca"))) == ca.lower()
    return False


def _has_used(place: Path, token: str) -> bool:
    """True if the machine has joined by this very token."""
    return bool(membership(place).get("invitation") == _hash(token))


def _hash(token: str) -> str:
    return sha256(os.fsencode(token)).hexdigest()


def _join(folder: Folder, name: str, url: str, token: str, ca: str) -> None:
    """Join, and only then write down where.

    A machine that is that node already shows the token that it has: it stays the node that it was,
    with what it offers, and calls the controller at this address from now on.
    """
    from rota.client.joining import checked_url, join
    from rota.client.trust import authority_at

    url, place = checked_url(url, "--join"), folder.node(name)
    authority = authority_at(url, ca)
    before = membership(place)
    current = before.get("token") if before.get("ca") == authority else None
    joined = join(url, authority, token, name, current)
    folder.create()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    told = {"url": url, "token": joined.token, "ca": authority, "invitation": _hash(token)}
    if joined.is_known and OPTIONS in before:
        told[OPTIONS] = before[OPTIONS]
    keep_membership(place, told)
    has = "stays in" if joined.is_known else "has joined"
    click.echo(f"node {name} {has} the cluster at {url}", err=True)
    for other in _members(folder):
        if other != name and membership(folder.node(other)).get("ca") == authority:
            click.echo(
                f"warning: this machine is node {other} of that cluster as well, and both may "
                f"offer the same GPUs; `rota node remove {other}` if {name} takes its place",
                err=True,
            )


def _settled(name: str, place: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The options of the agent: those that are given, and those that were given before.

    They are kept for the next start. Those that would change the node's devices wait until no job
    is there: the agent of other devices ends the jobs of the node.
    """
    told = membership(place)
    before = told.get(OPTIONS)
    known: dict[str, Any] = before if isinstance(before, dict) else {}
    options = known | {option: value for option, value in given.items() if value is not None}
    if isinstance(before, dict):
        changed = [each for each in OF_DEVICES if options.get(each) != known.get(each)]
        if changed and (jobs := _jobs_there(place)):
            options = {each: options[each] for each in options if each not in OF_DEVICES}
            options |= {each: known[each] for each in OF_DEVICES if each in known}
            for each in changed:
                click.echo(
                    f"{each}: {given[each]} is not taken now, because {jobs_text(jobs)} may be on "
                    f"node {name}, which offers {_offer(each, known)}; start the agent with it "
                    f"again once they have ended, or after `rota node drain {name}`",
                    err=True,
                )
        taken = [each for each in OF_DEVICES if each in known and given[each] is None]
        for each in taken:
            click.echo(f"node {name} offers {_offer(each, known)}, as before", err=True)
    if options != before and told:
        with contextlib.suppress(OSError):  # a full disk must not keep the agent from coming back
            keep_membership(place, told | {OPTIONS: options})
    return options


def _offer(option: str, known: dict[str, Any]) -> str:
    """The devices that the node has offered, in words."""
    value = known.get(option)
    if option == "--gpu-type":
        return f"GPUs of type {value}" if value else "GPUs of no type"
    return "all its GPUs" if value is None else f"{value} GPU{'s'[: value != 1]}"


def _jobs_there(place: Path) -> list[str]:
    """The jobs whose attempts have begun since this boot and were not seen to end."""
    found = dict[str, None]()
    for file in sorted(place.glob("jobs/*/*/attempt.json")):
        try:
            began = json.loads(file.read_text()).get("boot_id")
        except (OSError, ValueError, AttributeError):
            began = None
        if began in (None, boot_id()):
            found[file.parent.parent.name] = None
    found |= {file.parent.parent.name: None for file in sorted(place.glob("jobs/*/*/arrival.json"))}
    return list(found)


def _follow_clock(place: Path) -> None:
    """Write down how the cluster's time goes on here, unless that is known since the last boot."""
    from rota.client.joining import clock_ahead_s
    from rota.live.wire.clock import keep_ahead_s, read_ahead_s, wall_ahead_s

    file = place / "clock.json"
    if read_ahead_s(file) is not None:
        return
    told = membership(place)
    ahead_s = clock_ahead_s(told["url"], told["ca"]) if {"url", "ca"} <= told.keys() else None
    if ahead_s is not None:
        keep_ahead_s(file, wall_ahead_s() + ahead_s)
