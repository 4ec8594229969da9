"""Who held which GPUs when, from the events of a simulation or of a live cluster."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.commands import Resize
from rota.model.events import (
    AttemptLost,
    CommandSent,
    Event,
    JobFinished,
    JobLaunched,
    JobResized,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    NodeLost,
)


class Segment(NamedTuple):
    """A job ran on these GPUs, from the confirmed start to the confirmed stop."""

    row: int
    gpus: tuple[tuple[int, int], ...]  # (node index, GPU index)
    start_s: float
    end_s: float


class Switches(NamedTuple):
    """Seconds that suspensions and resumptions took, one entry each.

    ``suspend_s`` counts from the step boundary (the running step's rest is not in it) until the
    GPUs were confirmed free; ``resume_s`` from the command until the job ran.
    """

    suspend_s: list[float]
    resume_s: list[float]


class Timeline:
    """Segments and switches of every job, in order of time.

    ``nodes`` are those that were there before the first event.
    """

    def __init__(self, events: Iterable[Event], nodes: Iterable[Node] = ()) -> None:
        self.segments: list[Segment] = []
        self.switches: dict[int, Switches] = {}
        self.submit_s: list[float] = []
        self.finish_s: dict[int, float] = {}
        since: dict[int, float] = {}
        sent_s: dict[int, float] = {}
        holds: dict[int, Allocation] = {}
        sizes = {node.name: node.num_gpus for node in nodes}  # in order of their index
        self.num_gpus = sum(sizes.values())
        for event in events:
            match event:
                case NodeJoined():
                    sizes[event.name] = event.num_gpus
                    self.num_gpus = sum(sizes.values())
                case NodeLost():
                    index = list(sizes).index(event.name)
                    for row in [row for row in since if index in holds[row].nodes()]:
                        self._close(row, since, holds, event.at_s)
                case JobSubmitted():
                    self.switches[len(self.submit_s)] = Switches([], [])
                    self.submit_s.append(event.spec.submit_s)
                case CommandSent():
                    sent_s[event.command.row] = event.at_s
                    allocation = getattr(event.command, "allocation", None)
                    if allocation is not None and not isinstance(event.command, Resize):
                        holds[event.command.row] = allocation
                case JobLaunched():
                    since[event.row] = event.at_s
                case JobResumed():
                    since[event.row] = event.at_s
                    self.switches[event.row].resume_s.append(event.at_s - sent_s[event.row])
                case JobResized():
                    self._close(event.row, since, holds, event.at_s)
                    since[event.row] = event.at_s
                    holds[event.row] = event.allocation
                case JobSuspended():
                    self._close(event.row, since, holds, event.stopped_s)
                    self.switches[event.row].suspend_s.append(event.at_s - event.stopped_s)
                case AttemptLost() | JobFinished():
                    self._close(event.row, since, holds, event.at_s)
                    if isinstance(event, JobFinished):
                        self.finish_s[event.row] = event.at_s

    def _close(
        self, row: int, since: dict[int, float], holds: dict[int, Allocation], end_s: float
    ) -> None:
        start_s = since.pop(row, None)
        if start_s is not None:
            gpus = tuple((node, gpu) for node, indices in holds[row].gpus() for gpu in indices)
            self.segments.append(Segment(row, gpus, start_s, max(start_s, end_s)))

    def only(self, rows: Sequence[int]) -> "Timeline":
        """The same without any other jobs; ``rows`` become 0, 1, 2, ..."""
        part = Timeline(())
        part.num_gpus = self.num_gpus
        new = {row: index for index, row in enumerate(rows)}
        part.segments = [s._replace(row=new[s.row]) for s in self.segments if s.row in new]
        part.switches = {new[row]: value for row, value in self.switches.items() if row in new}
        part.submit_s = [self.submit_s[row] for row in rows]
        part.finish_s = {new[row]: value for row, value in self.finish_s.items() if row in new}
        return part

    def device_s(self, row: int, start_s: float, end_s: float) -> float:
        """Seconds for which the job ran within a window."""
        return sum(
            max(0.0, min(segment.end_s, end_s) - max(segment.start_s, start_s))
            for segment in self.segments
            if segment.row == row
        )

    def time_at_service(self, row: int, service_s: float) -> float | None:
        """When the job had run for ``service_s`` seconds, or None if it never did."""
        left_s = service_s
        for segment in self.segments:
            if segment.row == row:
                ran_s = segment.end_s - segment.start_s
                if ran_s >= left_s:
                    return segment.start_s + left_s
                left_s -= ran_s
        return None


def shares(timeline: Timeline, rows: Sequence[int]) -> dict[int, float]:
    """Each job's part of all device time, over the window in which all of them are active.

    The window begins when the last of them was submitted and ends when the first one finishes.
    """
    start_s = max(timeline.submit_s[row] for row in rows)
    end_s = min(timeline.finish_s[row] for row in rows)
    ran_s = {row: timeline.device_s(row, start_s, end_s) for row in rows}
    total_s = sum(ran_s.values())
    return {row: seconds / total_s if total_s else 0.0 for row, seconds in ran_s.items()}
