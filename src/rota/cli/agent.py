"""``rota agent``: this machine as a node of a cluster that runs on another one."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
from hashlib import sha256
from pathlib import Path

import click

from rota.cli.keyvalue import parse_size
from rota.errors import InputError
from rota.folder import MEMBERSHIP, Folder, is_locked


@click.command()
@click.option("--join", "url", metavar="URL", help="The controller, as https://HOST:PORT.")
@click.option("--token", metavar="TOKEN", help="A join token; `rota node invite` makes one.")
@click.option("--ca", metavar="sha256:...", help="The fingerprint of the cluster's CA.")
@click.option("--node", metavar="NAME", help="The node's name; this machine's by default.")
@click.option(
    "--gpus",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Offer so many GPUs, or device slots where there is no GPU; all by default.",
)
@click.option("--gpu-type", metavar="TYPE", default="", help="What to call the GPUs.")
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
    gpu_type: str,
    host_memory: str | None,
    log_limit: str | None,
    data_port: int | None,
    ends: bool,
    log_format: str,
    home: str | None,
) -> None:
    """Have this machine be a node of a cluster that runs on another machine.

    `rota node invite` prints the line to join with. The machine stays a member until `rota node
    remove`: afterwards `rota agent` alone is enough, and the whole line does no harm. It runs until
    Ctrl-C and never gives up by itself; jobs go on without it, and the next one takes them over.
    The exit code is 5 if the token or the CA is wrong, or the node was removed.
    """
    folder = Folder(home)
    name = node or _own_name()
    place = folder.node(name)
    if (place / "agent.lock").exists() and is_locked(place / "agent.lock"):
        raise InputError(f"--node: an agent of node {name} runs on {folder.path} already")
    given = {"--join": url, "--token": token, "--ca": ca}
    if any(value is not None for value in given.values()):
        for option, value in given.items():
            if value is None:
                raise InputError(f"{option}: it is missing; copy the line of `rota node invite`")
        assert url is not None and token is not None and ca is not None
        if not _has_used(place, token):
            _join(folder, name, url, token, ca)
    elif not (place / MEMBERSHIP).exists():
        raise InputError(
            f"--join: node {name} has not joined a cluster yet; run the line that `rota node "
            "invite` prints on the controller's machine"
        )
    _follow_clock(place)
    command = [sys.executable, "-m", "rota.live.agent", "--home", str(folder.path)]
    command += ["--node", name, "--joined", "--gpu-type", gpu_type, "--log-format", log_format]
    command += ["--gpus", str(gpus)] if gpus is not None else []
    if host_memory is not None:
        command += ["--host-memory", str(parse_size("--host-memory", host_memory))]
    if log_limit is not None:
        command += ["--log-limit", str(parse_size("--log-limit", log_limit))]
    command += ["--data-port", str(data_port)] if data_port is not None else []
    command += ["--ends"] if ends else []
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - no shell: the agent takes this one's place


def _own_name() -> str:
    name = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).lstrip("-.")[:63]
    return name or "node"


def _has_used(place: Path, token: str) -> bool:
    """True if the machine has joined by this very token."""
    try:
        told = json.loads((place / MEMBERSHIP).read_text())
        return bool(told["invitation"] == _hash(token))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _hash(token: str) -> str:
    return sha256(os.fsencode(token)).hexdigest()


def _join(folder: Folder, name: str, url: str, token: str, ca: str) -> None:
    """Join, and only then write down where."""
    from rota.client.joining import checked_url, join
    from rota.client.trust import authority_at

    url, place = checked_url(url, "--join"), folder.node(name)
    authority = authority_at(url, ca)
    joined = join(url, authority, token, name)
    folder.create()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    told = {"url": url, "token": joined.token, "ca": authority, "invitation": _hash(token)}
    draft = place / f"{MEMBERSHIP}.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(place / MEMBERSHIP)
    click.echo(f"node {name} has joined the cluster at {url}", err=True)


def _follow_clock(place: Path) -> None:
    """Write down how the cluster's time goes on here, unless that is known since the last boot."""
    from rota.client.joining import clock_ahead_s
    from rota.live.wire.clock import keep_ahead_s, read_ahead_s, wall_ahead_s

    file = place / "clock.json"
    if read_ahead_s(file) is not None:
        return
    told = json.loads((place / MEMBERSHIP).read_text())
    ahead_s = clock_ahead_s(told["url"], told["ca"])
    if ahead_s is not None:
        keep_ahead_s(file, wall_ahead_s() + ahead_s)
