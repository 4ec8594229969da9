"""One machine as a whole cluster: controller, HTTP API and agent in one process tree."""

import logging
from collections.abc import Callable
from typing import Any

from rota.errors import InputError, RotaError
from rota.folder import Folder, hold_lock
from rota.live.controller import Controller
from rota.live.provider.local import LocalProvider
from rota.server.serve import run
from rota.store.events import EventStore


def run_cluster(
    folder: Folder,
    *,
    policy: Any,
    policy_name: str,
    gpus: int | None,
    port: int,
    on_listen: Callable[[str, Controller], None],
) -> Controller:
    """Run a controller on ``folder`` until SIGTERM or SIGINT; the controller, as it ended.

    Raises InputError for a policy that is an oracle, and when another controller runs on the same
    folder.
    """
    if getattr(policy, "needs_duration", False):
        raise InputError(
            f"policy: {policy_name} needs to know how long jobs run, which only a trace tells; "
            "use it in `rota sim`, and here for example tiresias or gandiva"
        )
    folder.create()
    lock = hold_lock(folder.controller_lock)
    if lock is None:
        raise InputError(
            f"a controller runs on {folder.path} already; `rota nodes` shows what it has, "
            "and --home starts another cluster elsewhere"
        )
    handler = logging.FileHandler(folder.controller_log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    try:
        store = EventStore(folder.database)
        controller = Controller(store, folder, policy, policy_name, LocalProvider(folder, gpus))
        run(controller, folder, port=port, on_listen=lambda url: on_listen(url, controller))
        return controller
    except RotaError:
        logging.getLogger("rota.controller").exception("the controller could not go on")
        raise
    finally:
        lock.close()
