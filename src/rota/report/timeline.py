"""Times at which jobs held GPUs, from the events of a simulation or of a live cluster."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rota.model import events
from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.commands import Resize
from rota.model.events import Event


class Segment(NamedTuple):
    """A job ran on these GPUs, from the confirmed start to the confirmed stop."""

    row: int
    gpus: tuple[tuple[int, int], ...]  # (node index, GPU index)
    start_s: float
    end_s: float


class Switches(NamedTuple):
    """Seconds that suspensions, resumptions and launches took, one entry each.

    ``suspend_s`` counts from the step boundary (the running step's rest is not in it) until the
    GPUs were confirmed free; ``resume_s`` and ``launch_s`` from the command until the job ran.
    """

    suspend_s: list[float]
    resume_s: list[float]
    launch_s: list[float]


class Timeline:
    """Segments and switches of every job, in order of time.

    ``nodes`` are those that were there before the first event.
    """

    def __init__(self, events: Iterable[Event], nodes: Iterable[Node] = ()) -> None:
        self.segments: list[Segment] = []
        self.switches: dict[int, Switches] = {}
        self.submit_s: list[float] = []
        self.finish_s: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._sent_s: dict[int, float] = {}
        self._holds: dict[int, Allocation] = {}
        self._sizes = {node.name: node.num_gpus for node in nodes}  # in order of their index
        for event in events:
            handle = HANDLERS[type(event)]
            if handle is not None:
                handle(self, event)
        self.num_gpus = sum(self._sizes.values())

    def _node_joined(self, e: events.NodeJoined) -> None:
        self._sizes[e.name] = e.num_gpus

    def _node_lost(self, e: events.NodeLost) -> None:
        index = list(self._sizes).index(e.name)
        for row in [row for row in self._since if index in self._holds[row].nodes()]:
            self._close(row, e.at_s)

    def _job_submitted(self, e: events.JobSubmitted) -> None:
        self.switches[len(self.submit_s)] = Switches([], [], [])
        self.submit_s.append(e.spec.submit_s)

    def _command_sent(self, e: events.CommandSent) -> None:
        self._sent_s[e.command.row] = e.at_s
        allocation = getattr(e.command, "allocation", None)
        if allocation is not None and not isinstance(e.command, Resize):
            self._holds[e.command.row] = allocation

    def _job_launched(self, e: events.JobLaunched) -> None:
        self._since[e.row] = e.at_s
        self.switches[e.row].launch_s.append(e.at_s - self._sent_s[e.row])

    def _job_suspended(self, e: events.JobSuspended) -> None:
        self._close(e.row, e.stopped_s)
        self.switches[e.row].suspend_s.append(e.at_s - e.stopped_s)

    def _job_resumed(self, e: events.JobResumed) -> None:
        self._since[e.row] = e.at_s
        self.switches[e.row].resume_s.append(e.at_s - self._sent_s[e.row])

    def _job_resized(self, e: events.JobResized) -> None:
        self._close(e.row, e.at_s)
        self._since[e.row] = e.at_s
        self._holds[e.row] = e.allocation

    def _attempt_lost(self, e: events.AttemptLost) -> None:
        self._close(e.row, e.at_s)

    def _job_finished(self, e: events.JobFinished) -> None:
        self._close(e.row, e.at_s)
        self.finish_s[e.row] = e.at_s

    def _close(self, row: int, end_s: float) -> None:
        start_s = self._since.pop(row, None)
        if start_s is not None:
            gpus = tuple((node, gpu) for node, each in self._holds[row].gpus() for gpu in each)
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
        """Time at which the job had run for ``service_s`` seconds; None if it never did."""
        left_s = service_s
        for segment in self.segments:
            if segment.row == row:
                ran_s = segment.end_s - segment.start_s
                if ran_s >= left_s:
                    return segment.start_s + left_s
                left_s -= ran_s
        return None


# What each kind of event does to a timeline; None: it is not about who held which GPUs.
HANDLERS: dict[type, Callable[[Timeline, Any], None] | None] = {
    events.NodeJoined: Timeline._node_joined,
    events.NodeLost: Timeline._node_lost,
    events.NodeCpusChanged: None,
    events.NodeAddressChanged: None,
    events.NodeDeadlineChanged: None,
    events.NodeClosed: None,
    events.NodeOpened: None,
    events.NodeUnreachable: None,
    events.NodeReachable: None,
    events.JobSubmitted: Timeline._job_submitted,
    events.SuspendRequested: None,
    events.ResumeRequested: None,
    events.StopRequested: None,
    events.RetryDue: None,
    events.DecisionTaken: None,
    events.CommandSent: Timeline._command_sent,
    events.CommandFailed: None,
    events.JobLaunched: Timeline._job_launched,
    events.JobSuspended: Timeline._job_suspended,
    events.JobResumed: Timeline._job_resumed,
    events.JobParked: None,
    events.JobResized: Timeline._job_resized,
    events.JobRetuned: None,
    events.CpusSet: None,
    events.BatchRefused: None,
    events.SpeedChanged: None,
    events.FillMeasured: None,
    events.WorkerRegistered: None,
    events.ModelReported: None,
    events.BurstPlanned: None,
    events.WorkerReported: None,
    events.AttemptLost: Timeline._attempt_lost,
    events.JobFinished: Timeline._job_finished,
    events.JobCleaned: None,
    events.PolicyFailed: None,
    events.SweepSubmitted: None,
    events.TrialStopped: None,
    events.SweepEnded: None,
    events.MetricReported: None,
}
