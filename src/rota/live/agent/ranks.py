"""Finds the process of each rank of an attempt, from its agent's record."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from rota.errors import NotFoundError
from rota.live.wire.places import node_and_gpu

ENDED = "ended.json"
RECORDS = ("attempt.json", ENDED)  # of an attempt that is under way, or whose end is known


class Ranks(NamedTuple):
    """The processes of one attempt, numbered in order of their start.

    ``members`` are those that train together, or did at the end, by rank; ``gpus`` is the GPU of
    each; ``leaders`` have been rank 0, one after another; ``num_processes`` have been started;
    ``failed`` is the one whose error ended the job.
    """

    members: list[int]
    gpus: list[int]
    leaders: list[int]
    num_processes: int
    failed: int | None
    pids: list[int | None]  # of the members
    elsewhere: dict[int, str]  # the nodes of processes that are not on this one

    def outputs(self, job_id: str, rank: int | None) -> list[int]:
        """The processes whose outputs, in this order, are that of a rank. Raises NotFoundError.

        None stands for rank 0, or for the rank that failed if the job did.
        """
        if rank is None and self.failed is not None and self.failed not in self.leaders:
            return [self.failed]
        if not rank:
            return self.leaders
        if rank < len(self.members):
            return [self.members[rank]]
        last = len(self.members) - 1
        have = f"it has ranks 0 to {last}" if last > 0 else "it has rank 0 alone"
        raise NotFoundError(
            f"job {job_id} has no rank {rank}: {have}; processes that are no ranks any more have "
            f"numbers too: --process 0 to {self.num_processes - 1}"
        )

    def check(self, job_id: str, process: int) -> None:
        """Raises NotFoundError if there has been no such process."""
        if process >= self.num_processes:
            raise NotFoundError(
                f"job {job_id} has no process {process}: they are numbered in order of their "
                f"start, from 0 to {self.num_processes - 1}"
            )

    def rank_of(self, process: int) -> int | None:
        """The present or last rank of a process; None if it had none."""
        return self.members.index(process) if process in self.members else None


def record_of(folder: Path) -> Path | None:
    """The agent's record of the attempt with this folder; None if there is none."""
    return next((folder / name for name in RECORDS if (folder / name).is_file()), None)


def read_ranks(folder: Path) -> Ranks | None:
    """The processes of the attempt with this folder; None while there is no record of it."""
    for name in RECORDS:
        try:
            return _ranks(json.loads((folder / name).read_text()), folder)
        except (OSError, ValueError, LookupError, TypeError):  # there is none, or it is damaged
            continue
    return None


def _ranks(record: dict[str, Any], folder: Path) -> Ranks:
    members = record["members"]
    leaders = record.get("leaders") or members[:1] or [0]
    pids = [_pid(folder / _pid_file(record, process)) for process in members]
    failed = record.get("failed")
    nodes, far = record.get("nodes", []), record.get("far", {})
    elsewhere = {int(process): nodes[at]["name"] for process, at in far.items()}
    gpus = [node_and_gpu(place)[1] for place in record["gpus"]]
    return Ranks(members, gpus, leaders, record["slots"], failed, pids, elsewhere)


def _pid_file(record: dict[str, Any], process: int) -> str:
    """Pid file of the process's present life; none if the process has been given up."""
    if "vacated" in record:
        return "none"
    life = record.get("lives", {}).get(str(process))
    return f"rank{process}.{life}.pid" if life else f"rank{process}.pid"


def _pid(file: Path) -> int | None:
    try:
        return json.loads(file.read_text())["worker"] or None
    except (OSError, ValueError, KeyError, TypeError):
        return None
