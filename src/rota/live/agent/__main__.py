"""``python -m rota.live.agent --home DIR --node NAME [--gpus N] ...``: the agent of one node."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import sys
from functools import partial
from pathlib import Path

from rota.errors import InputError, shortage_of
from rota.folder import (
    MEMBERSHIP,
    REMOVED,
    Folder,
    hold_lock,
    is_in_place,
    keep_membership,
    membership,
)
from rota.live.agent.agent import Agent
from rota.live.agent.cpu_groups import Groups, find, identity, keep, kept
from rota.live.agent.cpus import WHOLE, Part, numa_nodes
from rota.live.agent.devices import discover
from rota.live.agent.endpoint import Endpoint, FolderEndpoint, JoinedEndpoint
from rota.live.agent.processes import descendants
from rota.live.logline import FORMATS, TEXT, formatter
from rota.live.wire import clock
from rota.live.wire.title import title_role

EXIT_REMOVED = 5  # the exit code of an agent whose node is none of the cluster's any more
LOG_LINE = "%(asctime)s %(levelname)s %(message)s"


log = logging.getLogger("rota.agent")


def main() -> None:
    """Run the agent of one node."""
    parser = argparse.ArgumentParser(description="The agent of one Rota node.")
    parser.add_argument("--home", required=True)
    parser.add_argument("--node", default=socket.gethostname())
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--gpu-type", default="")
    parser.add_argument("--host-memory", type=int, help="bytes that suspended jobs may hold")
    parser.add_argument("--log-limit", type=int, help="bytes that the logs of a job may hold")
    parser.add_argument("--open-files", type=int, help="that each process of a job may have")
    parser.add_argument("--controller-pid", type=int, help="of a controller on this machine")
    parser.add_argument("--joined", action="store_true", help="this machine has joined a cluster")
    parser.add_argument("--ends", action="store_true", help="end when the cluster lets it go")
    parser.add_argument("--data-port", type=int, help="where others fetch files; 0: nowhere")
    parser.add_argument("--part", type=_part, default=WHOLE, help="of the machine, such as 1/2")
    parser.add_argument("--log-format", choices=FORMATS, default=TEXT)
    options = parser.parse_args()
    title_role("agent")
    if options.open_files is not None:
        limit_open_files(options.open_files)
    handler = logging.StreamHandler()
    about = {"process": "agent", "node": options.node}
    handler.setFormatter(formatter(options.log_format, LOG_LINE, **about))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in ("websockets", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    folder = Folder(options.home)
    folder.node(options.node).mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        run(folder, options)
    except InputError as error:
        sys.exit(f"rota agent: {error}")
    except (OSError, RuntimeError) as error:
        if (shortage := shortage_of(error)) is None:
            raise
        sys.exit(f"rota agent: {shortage}")


def limit_open_files(wanted: int) -> None:
    """Let this process, and jobs, open ``wanted`` files, or as many as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def run(folder: Folder, options: argparse.Namespace) -> None:
    """Be the agent until it ends."""
    lock_path = folder.node(options.node) / "agent.lock"
    lock = hold_lock(lock_path)
    if lock is None:
        sys.exit(f"rota agent: another agent of node {options.node} runs on {folder.path}")
    place = folder.node(options.node)
    clock.follow(clock.read_ahead_s(place / "clock.json" if options.joined else folder.clock))
    endpoint: Endpoint = FolderEndpoint(folder, options.controller_pid)
    if options.joined:
        endpoint = _joined(place / MEMBERSHIP)
    devices = discover(options.gpus, options.first_gpu)._replace(gpu_type=options.gpu_type)
    agent = Agent(
        folder,
        options.node,
        devices,
        endpoint,
        options.host_memory,
        log_limit_bytes=options.log_limit,
        is_in_place=partial(is_in_place, lock, lock_path),
        groups=_groups(folder, options),
        part=options.part,
        data_port=options.data_port,
        ends=options.ends or not options.joined,
    )
    asyncio.run(agent.run())
    lock.close()
    if agent.is_removed:
        with contextlib.suppress(OSError):  # a full disk: the next agent is told so again
            keep_membership(place, membership(place) | {REMOVED: True})
        what = f"node {options.node} was removed from its cluster; it can join again with the line "
        log.error("%sof `rota node invite`", what)
        sys.exit(EXIT_REMOVED)


def _joined(file: Path) -> JoinedEndpoint:
    """The endpoint of the cluster that this machine has joined. Raises InputError."""
    try:
        told = json.loads(file.read_text())
        return JoinedEndpoint(told["url"], told["token"], told["ca"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} can't be read: {error}; remove it, and join again with the line of `rota "
            "node invite`"
        ) from None


def _groups(folder: Folder, options: argparse.Namespace) -> Groups | None:
    """The control groups that jobs can be held by here; None if they can't."""

    def family() -> list[int]:
        return [*descendants(options.controller_pid or os.getpid()), *descendants(os.getpid())]

    name, file = identity(folder, options.node), folder.cpu_groups(options.node)
    groups, reasons = find(name, family, binds=len(numa_nodes()) > 1, former=kept(file, name))
    with contextlib.suppress(OSError):  # a full disk: the next agent looks again
        keep(file, groups)
    found = groups.name if groups is not None else f"none: {'; '.join(reasons)}"
    logging.getLogger("rota.agent").info("control groups for CPU cores: %s", found)
    return groups


def _part(text: str) -> Part:
    number, _, count = text.partition("/")
    return Part(int(number) - 1, int(count))


if __name__ == "__main__":
    main()
