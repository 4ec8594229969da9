"""``python -m rota.live.agent --home DIR --node NAME [--gpus N] ...``: the agent of one node."""

import argparse
import asyncio
import logging
import resource
import socket
import sys
from functools import partial

from rota.errors import InputError
from rota.folder import Folder, hold_lock, is_in_place
from rota.live.agent.agent import Agent
from rota.live.agent.devices import discover
from rota.live.agent.host import usable_memory_gb, usable_millicores
from rota.live.wire import clock


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
    parser.add_argument("--nodes-here", type=int, default=1, help="that share this machine")
    parser.add_argument("--controller-pid", type=int, help="of a controller on this machine")
    options = parser.parse_args()
    if options.open_files is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (options.open_files, hard))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
    folder = Folder(options.home)
    folder.node(options.node).mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        run(folder, options)
    except InputError as error:
        sys.exit(f"rota agent: {error}")


def run(folder: Folder, options: argparse.Namespace) -> None:
    """Be the agent until it ends."""
    lock_path = folder.node(options.node) / "agent.lock"
    lock = hold_lock(lock_path)
    if lock is None:
        sys.exit(f"rota agent: another agent of node {options.node} runs on {folder.path}")
    clock.follow(clock.read_ahead_s(folder.clock))
    devices = discover(options.gpus, options.first_gpu)._replace(
        gpu_type=options.gpu_type,
        millicores=usable_millicores() // options.nodes_here,
        host_memory_gb=usable_memory_gb() / options.nodes_here,
    )
    agent = Agent(
        folder,
        options.node,
        devices,
        options.controller_pid,
        options.host_memory,
        log_limit_bytes=options.log_limit,
        is_in_place=partial(is_in_place, lock, lock_path),
    )
    asyncio.run(agent.run())
    lock.close()


if __name__ == "__main__":
    main()
