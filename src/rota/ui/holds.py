"""Who held which GPUs when, from the event stream."""

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_PIECES = 200_000  # the oldest are forgotten
FORGOTTEN = MOST_PIECES // 10  # at once


class Piece(NamedTuple):
    """A job held one GPU, from the confirmed start to the confirmed stop; None: it still does."""

    gpu: int  # place in Holds.gpus
    job_id: str
    start_s: float
    end_s: float | None


class Holds:
    """Pieces of the timeline, numbered from 0 in order of their beginning; times to a millisecond.

    ``gpus`` are ``(node, GPU index)`` as they came. Pieces are kept as columns, which pages load as
    they are: ``gpu_of``, ``job_of``, ``start_s`` and ``end_s``, from piece ``first`` on.
    """

    def __init__(self) -> None:
        self.gpus: list[tuple[str, int]] = []
        self.gpu_of: list[int] = []
        self.job_of: list[str] = []
        self.start_s: list[float] = []
        self.end_s: list[float | None] = []
        self.first = 0  # number of the oldest piece that is kept
        self.changes: list[int] = []  # numbers of pieces, one for each beginning and end
        self.changes_before = 0  # how many changes have been forgotten
        self._place: dict[tuple[str, int], int] = {}
        self._given: dict[str, list[dict[str, Any]]] = {}  # by job, as the last command says
        self._open: dict[str, list[int]] = {}  # numbers of the pieces that a job has now

    def node_joined(self, name: str, num_gpus: int) -> None:
        """Make room for a node's GPUs."""
        for index in range(num_gpus):
            self._gpu(name, index)

    def apply(self, kind: str, at_s: float, job_id: str | None, data: Mapping[str, Any]) -> None:
        """Take note of an event, as the stream tells it."""
        if kind == "NodeJoined":
            self.node_joined(data["name"], data["num_gpus"])
        elif kind == "NodeLost":
            for holder, numbers in list(self._open.items()):
                if any(self.gpus[self._piece(n).gpu][0] == data["name"] for n in numbers):
                    self._close(holder, at_s)
        elif job_id is None:
            return
        elif kind == "CommandSent":
            if data.get("allocation") and data["command"] != "Resize":
                self._given[job_id] = data["allocation"]
        elif kind in ("JobLaunched", "JobResumed"):
            self._begin(job_id, at_s)
        elif kind == "JobResized":
            self._close(job_id, at_s)
            self._given[job_id] = data["allocation"]
            self._begin(job_id, at_s)
        elif kind == "JobSuspended":
            self._close(job_id, data["stopped_s"])
        elif kind in ("AttemptLost", "JobFinished"):
            self._close(job_id, at_s)
            if kind == "JobFinished":
                self._given.pop(job_id, None)

    def since(self, change: int) -> tuple[list[tuple[int, Piece]], int]:
        """Pieces that have changed since a number of changes, and that number now."""
        now = self.changes_before + len(self.changes)
        wanted = self.changes[max(0, change - self.changes_before) :]
        numbers = dict.fromkeys(number for number in wanted if number >= self.first)
        return [(number, self._piece(number)) for number in numbers], now

    @property
    def change(self) -> int:
        """How many changes there have been."""
        return self.changes_before + len(self.changes)

    def of_job(self, job_id: str) -> list[tuple[int, Piece]]:
        """The pieces of one job with their numbers, oldest first."""
        numbers = [n for n, job in enumerate(self.job_of, self.first) if job == job_id]
        return [(number, self._piece(number)) for number in numbers]

    def _gpu(self, node: str, index: int) -> int:
        place = self._place.get((node, index))
        if place is None:
            place = self._place[node, index] = len(self.gpus)
            self.gpus.append((node, index))
        return place

    def _piece(self, number: int) -> Piece:
        at = number - self.first
        return Piece(self.gpu_of[at], self.job_of[at], self.start_s[at], self.end_s[at])

    def _begin(self, job_id: str, at_s: float) -> None:
        self._close(job_id, at_s)
        numbers = self._open[job_id] = []
        for part in self._given.get(job_id, ()):
            for index in part["gpus"]:
                number = self.first + len(self.job_of)
                self.gpu_of.append(self._gpu(part["node"], index))
                self.job_of.append(job_id)
                self.start_s.append(round(at_s, 3))
                self.end_s.append(None)
                numbers.append(number)
                self.changes.append(number)
        if len(self.job_of) > MOST_PIECES:
            self._forget()

    def _close(self, job_id: str, end_s: float) -> None:
        for number in self._open.pop(job_id, ()):
            if number >= self.first:
                at = number - self.first
                self.end_s[at] = max(round(end_s, 3), self.start_s[at])
                self.changes.append(number)

    def _forget(self) -> None:
        for column in (self.gpu_of, self.job_of, self.start_s, self.end_s):
            del column[:FORGOTTEN]
        self.first += FORGOTTEN
        forgotten = len(self.changes) - MOST_PIECES
        if forgotten > 0:
            del self.changes[:forgotten]
            self.changes_before += forgotten
