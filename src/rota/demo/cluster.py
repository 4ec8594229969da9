"""A private cluster for one measured run: started, watched, taken down, and read."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.errors import RotaError, UnreachableError
from rota.folder import Folder
from rota.model.job import JobState
from rota.report.timeline import Timeline
from rota.store.events import EventStore

START_TIMEOUT_S = 60.0
WATCH_EVERY_S = 0.25


class JobRecord(NamedTuple):
    """What one job left: its last progress, and every report it made, in order of time."""

    name: str
    progress: dict[str, Any]
    reports: list[dict[str, Any]]


class Run(NamedTuple):
    """One measured run of a workload."""

    timeline: Timeline
    jobs: list[JobRecord]

    @property
    def zero_s(self) -> float:
        """When the jobs were submitted."""
        return min(self.timeline.submit_s)


@contextlib.contextmanager
def private_cluster(
    home: Path, policy: str, settings: dict[str, str], gpus: int, nodes: int = 1
) -> Iterator[Client]:
    """``rota up`` on a folder of its own. Leaves no process behind, whatever happens inside.

    While it lasts SIGTERM raises SystemExit, so that it is taken down then too, unless a handler of
    the caller's own is there.
    """
    folder = Folder(home)
    command = [sys.executable, "-m", "rota.cli.main", "up", "--home", str(home)]
    command += ["--gpus", str(gpus), "--nodes", str(nodes), "--policy", policy]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
    home.mkdir(parents=True)
    with open(home / "up.log", "w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us: the cluster is then taken down in order
        )
    before = signal.getsignal(signal.SIGTERM)
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Client(folder=folder) as client:
        try:
            wait_until_up(client, process, home / "up.log", nodes)
            yield client
        finally:
            with contextlib.suppress(RotaError):
                client.shut_down()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            signal.signal(signal.SIGTERM, before)


def wait_until_up(
    client: Client, process: "subprocess.Popen[bytes]", log: Path, nodes: int = 1
) -> None:
    """Wait until all nodes have joined and a zygote is warm. Raises RotaError if it never is."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RotaError(f"the cluster did not start: {log.read_text().strip()}")
        with contextlib.suppress(UnreachableError):
            if sum(node["connected"] for node in client.nodes()) >= nodes:
                warm = client.submit({"name": "warm-up", "run": "true", "workdir": str(log.parent)})
                client.wait(warm["id"])
                return
        time.sleep(0.05)
    raise RotaError(f"the cluster was not up after {START_TIMEOUT_S:.0f} s; see {log}")


def run_workload(
    home: Path,
    jobs: Sequence[dict[str, Any]],
    *,
    policy: str,
    settings: dict[str, str],
    gpus: int,
    watch: Callable[[list[dict[str, Any]]], None],
) -> Run:
    """Run ``jobs`` to the end; then read what happened.

    ``watch`` is called a few times a second with the jobs as the API tells them. Raises RotaError
    if a job fails.
    """
    with private_cluster(home, policy, settings, gpus) as client:
        ids = [client.submit(job)["id"] for job in jobs]
        while True:
            now = [job for job in client.jobs(everything=True) if job["id"] in ids]
            watch(now)
            final = [job for job in now if JobState[job["state"]].is_final]
            for job in final:
                if job["state"] != "SUCCEEDED":
                    tail = "".join(client.logs(job["id"], tail=5)).strip()
                    raise RotaError(f"job {job['name']}: {job['state']}; its last words: {tail}")
            if len(final) == len(ids):
                break
            time.sleep(WATCH_EVERY_S)
    return read_run(Folder(home), ids)


def read_run(folder: Folder, ids: Sequence[str]) -> Run:
    """What the event log and the jobs' own reports tell of a run that is over.

    Rows are those of ``ids``, from 0; other jobs of the cluster are left out.
    """
    store = EventStore(folder.database)
    try:
        events = list(store.load())
    finally:
        store.close()
    first = int(ids[0]) - 1
    timeline = Timeline(events).only(range(first, first + len(ids)))
    jobs = []
    for job_id in ids:
        files = sorted(folder.path.glob(f"nodes/*/jobs/{job_id}/*/metrics.jsonl"))
        reports = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        name = job_id
        record = next(iter(folder.path.glob(f"nodes/*/jobs/{job_id}/*/ended.json")), None)
        if record is not None:
            name = json.loads(record.read_text())["name"]
        jobs.append(JobRecord(name, reports[-1] if reports else {}, reports))
    return Run(timeline, jobs)
