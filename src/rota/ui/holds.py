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
    """Pieces of the timeline, numbered from 0 in order of their beginning.

    ``gpus`` are ``(node, GPU index)`` as they came, ``nodes`` the GPUs of each node. ``changed``
    are the numbers of pieces that have begun or ended, for whoever follows, in order.
    """

    def __init__(self) -> None:
        self.gpus: list[tuple[str, int]] = []
        self.pieces: list[Piece] = []
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

    def of_job(self, job_id: str) -> list[Piece]:
        """The pieces of one job, oldest first."""
        return [piece for piece in self.pieces if piece.job_id == job_id]

    def _gpu(self, node: str, index: int) -> int:
        place = self._place.get((node, index))
        if place is None:
            place = self._place[node, index] = len(self.gpus)
            self.gpus.append((node, index))
        return place

    def _piece(self, number: int) -> Piece:
        return self.pieces[number - self.first]

    def _begin(self, job_id: str, at_s: float) -> None:
        self._close(job_id, at_s)
        numbers = self._open[job_id] = []
        for part in self._given.get(job_id, ()):
            for index in part["gpus"]:
                number = self.first + len(self.pieces)
                self.pieces.append(Piece(self._gpu(part["node"], index), job_id, at_s, None))
                numbers.append(number)
                self.changes.append(number)
        if len(self.pieces) > MOST_PIECES:
            self._forget()

    def _close(self, job_id: str, end_s: float) -> None:
        for number in self._open.pop(job_id, ()):
            if number >= self.first:
                piece = self._piece(number)
                end_s = max(end_s, piece.start_s)
                self.pieces[number - self.first] = piece._replace(end_s=end_s)
                self.changes.append(number)

    def _forget(self) -> None:
        del self.pieces[:FORGOTTEN]
        self.first += FORGOTTEN
        forgotten = len(self.changes) - MOST_PIECES
        if forgotten > 0:
            del self.changes[:forgotten]
            self.changes_before += forgotten
