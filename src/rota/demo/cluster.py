"""A private cluster for one measured run: started, watched, taken down, and read."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.errors import RotaError
from rota.experiment.runs.live import cluster
from rota.folder import Folder
from rota.model.events import JobSubmitted
from rota.model.job import WARM, JobState
from rota.report.timeline import Timeline
from rota.store.events import EventStore

WATCH_EVERY_S = 0.25
LEAST_LIVE_S = 25.0  # of a run that is cut off, so that each job has reported


class JobRecord(NamedTuple):
    """One job's last progress, and all its reports in order of time."""

    name: str
    progress: dict[str, Any]
    reports: list[dict[str, Any]]


WARM_UP = {"name": "warm-up", "run": "python -m site", "start": WARM}  # loads torch, once


class Run(NamedTuple):
    """One measured run of a workload; of one that was cut off, some jobs were cancelled."""

    timeline: Timeline
    jobs: list[JobRecord]
    cut_off: frozenset[int] = frozenset()  # rows of the jobs that were cancelled

    @property
    def zero_s(self) -> float:
        """Time at which the first job was submitted."""
        return min(self.timeline.submit_s)


@contextlib.contextmanager
def private_cluster(
    home: Path, policy: str, settings: dict[str, str], gpus: int, nodes: int = 1
) -> Iterator[Client]:
    """A :func:`~rota.experiment.runs.live.cluster` whose nodes have joined and have a warm zygote.

    Raises SimulationError if it does not start.
    """
    with cluster(home, gpus=gpus, policy=policy, settings=settings, nodes=nodes) as client:
        warm = client.submit(WARM_UP | {"workdir": str(home)})
        client.wait(warm["id"])
        yield client


def run_workload(
    home: Path,
    jobs: Sequence[tuple[float, dict[str, Any]]],
    *,
    policy: str,
    settings: dict[str, str],
    gpus: int,
    watch: Callable[[list[dict[str, Any]]], None],
    until_s: float = inf,
) -> Run:
    """Run jobs to their end, then read what happened.

    Each job comes with the seconds after which it is submitted, in that order. ``watch`` is called
    a few times a second with the jobs as the API shows them. Jobs that have not ended at
    ``until_s``, of the monotonic clock, are cancelled, once they had :data:`LEAST_LIVE_S` together.
    Raises RotaError if a job fails.
    """
    with private_cluster(home, policy, settings, gpus) as client:
        began_s, ids, left = time.monotonic(), list[str](), list(jobs)
        until_s, cut_off = max(until_s, began_s + LEAST_LIVE_S), frozenset[int]()
        while True:
            while left and left[0][0] <= time.monotonic() - began_s:
                ids.append(client.submit(left.pop(0)[1])["id"])
            now = [job for job in client.jobs(everything=True) if job["id"] in ids]
            watch(now)
            final = [job for job in now if JobState[job["state"]].is_final]
            if not left and not cut_off and time.monotonic() > until_s:
                ended = {job["id"] for job in final}
                cut_off = frozenset(row for row, job in enumerate(ids) if job not in ended)
                for row in cut_off:
                    client.cancel(ids[row])
            for job in final:
                if job["state"] != "SUCCEEDED" and ids.index(job["id"]) not in cut_off:
                    tail = "".join(client.logs(job["id"], tail=5)).strip()
                    raise RotaError(f"job {job['name']}: {job['state']}; its last words: {tail}")
            if not left and len(final) == len(ids):
                break
            time.sleep(WATCH_EVERY_S)
    return read_run(Folder(home), ids)._replace(cut_off=cut_off)


def read_run(folder: Folder, ids: Sequence[str]) -> Run:
    """Read a finished run from the event log and from the jobs' own reports.

    Rows are those of ``ids``, from 0; other jobs of the cluster are left out.
    """
    store = EventStore(folder.database)
    try:
        events = list(store.load())
    finally:
        store.close()
    known = [event.spec.job_id for event in events if isinstance(event, JobSubmitted)]
    first = known.index(ids[0])
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
