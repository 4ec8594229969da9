"""One machine as a whole cluster: controller, HTTP API and agents in one process tree."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from rota.errors import InputError, RotaError
from rota.folder import Folder, hold_lock
from rota.live.agent.devices import offered_ids
from rota.live.agent.memory import DEFAULT_SHARE
from rota.live.controller import Controller
from rota.live.provider.local import LocalProvider, lay_out
from rota.live.room import Room
from rota.server.door import raise_open_files
from rota.server.logfile import LogFile
from rota.server.serve import run
from rota.store.events import EventStore


def run_cluster(
    folder: Folder,
    *,
    policy: Any,
    policy_name: str,
    gpus: int | None,
    host_memory_bytes: int | None,
    port: int,
    on_listen: Callable[[str, Controller, LocalProvider], None],
    nodes: int = 1,
    gpu_types: Sequence[str] = (),
) -> Controller:
    """Run a controller on ``folder`` until SIGTERM or SIGINT; the controller, as it ended.

    It has ``nodes`` nodes of ``gpus`` GPUs each, and those of former times that may have jobs.
    Raises InputError for a policy that is an oracle, for more GPUs than there are, and when another
    controller runs on the same folder.
    """
    if getattr(policy, "needs_duration", False):
        raise InputError(
            f"policy: {policy_name} needs to know how long jobs run, which only a trace tells; "
            "use it in `rota sim`, and here for example tiresias or gandiva"
        )
    cores = len(os.sched_getaffinity(0))
    layout = lay_out(nodes, gpus, gpu_types, len(offered_ids()), cores)
    if host_memory_bytes is None:  # the nodes share this machine's
        host_memory_bytes = int(DEFAULT_SHARE * psutil.virtual_memory().total / nodes)
    folder.create()
    lock = hold_lock(folder.controller_lock)
    if lock is None:
        raise InputError(
            f"a controller runs on {folder.path} already; `rota nodes` shows what it has, "
            "and --home starts another cluster elsewhere"
        )
    logging.basicConfig(level=logging.INFO, handlers=[LogFile(folder.controller_log)], force=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # a line for each WebSocket else
    open_files = raise_open_files()
    try:
        room = Room(folder)
        room.look()  # on a full disk there is room to start with from here on
        store = EventStore(folder.database)
        provider = LocalProvider(folder, layout, host_memory_bytes, open_files)
        try:
            controller = Controller(store, folder, policy, policy_name, provider, room)
        except RotaError:
            store.close()
            raise
        run(
            controller,
            folder,
            port=port,
            on_listen=lambda url: on_listen(url, controller, provider),
        )
        return controller
    except RotaError:
        logging.getLogger("rota.controller").exception("the controller could not go on")
        raise
    finally:
        lock.close()
