"""A real cluster of one's own: started, used, taken down."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rota.client.client import Client
from rota.errors import RotaError, SimulationError, UnreachableError
from rota.folder import Folder
from rota.model.job import JobState

START_S = 60.0
STOP_S = 30.0


@contextlib.contextmanager
def cluster(
    home: Path,
    *,
    gpus: int,
    policy: str,
    settings: Mapping[str, str] | None = None,
    nodes: int = 1,
    options: Sequence[str] = (),
) -> Iterator[Client]:
    """``rota up`` on a folder, made if it is not there, with so many slots on each of its nodes.

    ``options`` are more of its own. It leaves no process behind, whatever happens inside. While it
    lasts SIGTERM raises SystemExit, so that it is taken down then too, unless a handler of the
    caller's own is there. Raises SimulationError if it does not start.
    """
    command = [sys.executable, "-m", "rota.cli.main", "up", "--home", str(home)]
    command += ["--gpus", str(gpus), "--nodes", str(nodes), "--policy", policy, *options]
    for key, value in (settings or {}).items():
        command += ["--set", f"{key}={value}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
    home.mkdir(parents=True, exist_ok=True)
    log = home / "up.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us: the cluster is then taken down in order
        )
    with raising_at_sigterm(), Client(folder=Folder(home)) as client:
        try:
            wait_until(partial(are_connected, client, nodes), process, log)
            yield client
        finally:
            with contextlib.suppress(RotaError):
                client.shut_down()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def raising_at_sigterm() -> Iterator[None]:
    """Have SIGTERM raise SystemExit meanwhile, unless a handler of the caller's own is there."""
    before = signal.getsignal(signal.SIGTERM)
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for_all(client: Client, jobs: Sequence[str], within_s: float) -> None:
    """Wait until the jobs have succeeded. Raises SimulationError for one that does not."""
    deadline = time.monotonic() + within_s
    for job in jobs:
        while not JobState[state := client.job(job)["state"]].is_final:
            if time.monotonic() > deadline:
                raise SimulationError(f"job {job}: {state} after {within_s:.0f} s")
            time.sleep(0.1)
        if state != "SUCCEEDED":
            tail = "".join(client.logs(job, tail=5)).strip()
            raise SimulationError(f"job {job}: {state}; its last words: {tail}")


def wait_until(is_so: Callable[[], bool], process: "subprocess.Popen[Any]", log: Path) -> None:
    """Wait for a cluster that starts. Raises SimulationError if the process ends, or it is late."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SimulationError(f"the cluster did not start: {log.read_text().strip()}")
        with contextlib.suppress(UnreachableError):
            if is_so():
                return
        time.sleep(0.05)
    raise SimulationError(f"the cluster was not up after {START_S:.0f} s; see {log}")


def are_connected(client: Client, nodes: int) -> bool:
    """True if the agents of so many nodes are connected."""
    return sum(node["connected"] for node in client.nodes()) >= nodes
