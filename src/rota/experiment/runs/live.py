"""A real cluster of an experiment's own: started, used, taken down."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rota.client.client import Client
from rota.errors import RotaError, SimulationError, UnreachableError
from rota.folder import Folder
from rota.model.job import JobState

START_S = 60.0
STOP_S = 30.0


@contextlib.contextmanager
def cluster(
    home: Path, *, gpus: int, policy: str, settings: Mapping[str, str] | None = None
) -> Iterator[Client]:
    """``rota up`` on the folder ``home``, with so many slots; taken down at the end.

    Raises SimulationError if it does not start.
    """
    command = [sys.executable, "-m", "rota.cli.main", "up", "--home", str(home)]
    command += ["--gpus", str(gpus), "--policy", policy]
    for key, value in (settings or {}).items():
        command += ["--set", f"{key}={value}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    with Client(folder=Folder(home)) as client:
        try:
            _wait_until_up(client, process)
            yield client
        finally:
            with contextlib.suppress(RotaError):
                client.shut_down()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


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


def _wait_until_up(client: Client, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(UnreachableError):
            if any(node["connected"] for node in client.nodes()):
                return
        time.sleep(0.05)
    raise SimulationError("the cluster for the experiment did not start; try `rota up` by hand")
