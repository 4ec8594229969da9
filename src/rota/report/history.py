"""The course of a run, from its events: waiting jobs, and held, used and stranded GPUs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import fsum
from typing import Any, NamedTuple

from rota.model import events
from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.commands import Launch, Migrate, Resume, Suspend
from rota.model.events import Event
from rota.model.job import JobSpec, JobState
from rota.report.gauges import FreeByNode
from rota.report.statistic import mean, median

MINI_BATCHES = 100
# Gandiva (OSDI 2018), section 4.1: a minute's quantum is about 100 mini-batches.
FIRST_MINI_BATCHES_S = 60.0


class Moment(NamedTuple):
    """State of the cluster from ``at_s`` until the next moment."""

    at_s: float
    waiting_jobs: int
    held_gpus: int
    running_gpus: int  # held by jobs that advance
    all_gpus: int
    stranded_gpus: int  # free, of use to no waiting job where they are
    free_gpus: int


class _Going(NamedTuple):
    """A job that runs."""

    since_s: float
    speed: float


class History:
    """Moments in order of time, and when each job had done its first mini-batches.

    Background jobs do not count: they wait for gaps, and hold what others leave of their GPUs.
    ``nodes`` are those that were there before the first event (``Simulation`` has its nodes join
    before its log can be asked for); those that join later come from the events. ``step_s`` gives
    the time of one mini-batch of a job in seconds, or None if it is not known; then the first 100
    count as done after a minute of work, or with the job if that is shorter.
    """

    def __init__(
        self,
        events: Iterable[Event],
        nodes: Iterable[Node] = (),
        step_s: Callable[[JobSpec], float | None] | None = None,
    ) -> None:
        self.moments: list[Moment] = []
        self.first_batches_s: dict[int, float] = {}  # row -> seconds since its submission
        self.node_failures = 0
        self._step_s = step_s
        self._specs: list[JobSpec] = []
        self._gone: set[int] = set()
        self._background: set[int] = set()
        self._kept_back: set[int] = set()  # by their owners
        self._waiting: set[int] = set()
        self._demands: Counter[int] = Counter()  # GPUs -> jobs that wait for so many
        self._held: dict[int, Allocation] = {}
        self._held_gpus = 0
        self._sent: dict[int, Any] = {}
        self._going: dict[int, _Going] = {}
        self._done_s = array("d")  # work before the current turn, by row
        self._advancing: set[int] = set()
        self._running_gpus = 0
        self._free = FreeByNode()
        for node in nodes:
            self._free.join(node.name, node.num_gpus)
        now_s: float | None = None
        for event in events:
            handle = HANDLERS[type(event)]
            if handle is None:
                continue
            if now_s is not None and event.at_s > now_s:
                self._note(now_s)
            now_s = event.at_s if now_s is None else max(now_s, event.at_s)
            handle(self, event)
        if now_s is not None:
            self._note(now_s)

    # -- figures -------------------------------------------------------------------------------

    def figures(self) -> dict[str, float | None]:
        """Figures of the run's course, by name; None where there was nothing to measure.

        ``fragmentation`` is the share of free GPUs that were stranded, averaged over the GPU time
        in which some were free while a job waited: see :class:`rota.report.gauges.FreeByNode`.
        """
        stranded, free, waiting, span = [], [], [], 0.0
        for moment, later in pairwise(self.moments):
            length = later.at_s - moment.at_s
            waiting.append(moment.waiting_jobs * length)
            span += length
            if moment.waiting_jobs:
                free.append(moment.free_gpus * length)
                stranded.append(moment.stranded_gpus * length)
        free_s = fsum(free)
        first = sorted(self.first_batches_s.values())
        return {
            "avg_first_100_s": mean(first),
            "median_first_100_s": median(first),
            "avg_waiting_jobs": fsum(waiting) / span if span else None,
            "max_waiting_jobs": max((moment.waiting_jobs for moment in self.moments), default=None),
            "fragmentation": fsum(stranded) / free_s if free_s else None,
            "node_failures": self.node_failures,
        }

    # -- nodes ---------------------------------------------------------------------------------

    def _node_joined(self, e: events.NodeJoined) -> None:
        self._free.join(e.name, e.num_gpus)

    def _node_lost(self, e: events.NodeLost) -> None:
        self.node_failures += not e.given_back
        index = self._free.index[e.name]
        for row in [row for row, held in self._held.items() if index in held.nodes()]:
            self._lost(row, e.at_s)
        self._free.lose(index)

    # -- jobs ----------------------------------------------------------------------------------

    def _job_submitted(self, e: events.JobSubmitted) -> None:
        self._specs.append(e.spec)
        self._done_s.append(0.0)
        row = len(self._specs) - 1
        if e.spec.is_background:
            self._background.add(row)
            self._gone.add(row)
        self._review(row)

    def _suspend_requested(self, e: events.SuspendRequested) -> None:
        self._kept_back.add(e.row)
        self._review(e.row)

    def _resume_requested(self, e: events.ResumeRequested) -> None:
        self._kept_back.discard(e.row)
        self._review(e.row)

    def _stop_requested(self, e: events.StopRequested) -> None:
        self._pause(e.row, e.at_s)
        self._gone.add(e.row)
        self._review(e.row)

    def _command_sent(self, e: events.CommandSent) -> None:
        command = e.command
        row = command.row
        if row in self._background:
            return
        self._sent[row] = command
        if isinstance(command, Launch | Resume | Migrate):
            self._held[row] = command.allocation
            self._held_gpus += command.allocation.num_gpus
            self._free.take(command.allocation)
            self._review(row)
        elif isinstance(command, Suspend):
            self._stand_still(row)

    def _command_failed(self, e: events.CommandFailed) -> None:
        command = self._sent.pop(e.row, None)
        if isinstance(command, Launch | Resume | Migrate):
            self._release(e.row)
        elif e.row in self._going:
            self._advance(e.row)

    def _started(self, e: events.JobLaunched | events.JobResumed) -> None:
        if e.row not in self._gone:
            self._going[e.row] = _Going(e.at_s, e.speed)
            self._advance(e.row)

    def _resized(self, e: events.JobResized) -> None:
        """The job has other GPUs from here on, and another speed; those on their way are idle."""
        self._pause(e.row, e.at_s)
        held = self._held[e.row]
        self._free.give(held)
        self._free.take(e.allocation)
        self._held_gpus += e.allocation.num_gpus - held.num_gpus
        self._held[e.row] = e.allocation
        self._done_s[e.row] -= e.paused_s * e.speed
        self._going[e.row] = _Going(e.at_s, e.speed)
        self._advance(e.row)

    def _speed_changed(self, e: events.SpeedChanged | events.JobRetuned | events.CpusSet) -> None:
        self._pause(e.row, e.at_s)
        if e.row not in self._background:
            self._going[e.row] = _Going(e.at_s, e.speed)
            self._advance(e.row)

    def _suspended(self, e: events.JobSuspended) -> None:
        self._pause(e.row, e.stopped_s)
        self._release(e.row)

    def _attempt_lost(self, e: events.AttemptLost) -> None:
        self._lost(e.row, e.at_s)

    def _finished(self, e: events.JobFinished) -> None:
        self._pause(e.row, e.at_s)
        self._gone.add(e.row)
        self._release(e.row)
        if e.outcome == JobState.SUCCEEDED and e.row not in self._background:
            self.first_batches_s.setdefault(e.row, e.at_s - self._specs[e.row].submit_s)

    # -- shared steps --------------------------------------------------------------------------

    def _lost(self, row: int, at_s: float) -> None:
        self._pause(row, at_s)
        self._release(row)

    def _advance(self, row: int) -> None:
        if row not in self._advancing:
            self._advancing.add(row)
            self._running_gpus += self._held[row].num_gpus

    def _stand_still(self, row: int) -> None:
        if row in self._advancing:
            self._advancing.discard(row)
            self._running_gpus -= self._held[row].num_gpus

    def _pause(self, row: int, at_s: float) -> None:
        """End the job's turn: count its work, and check if its first mini-batches are done."""
        self._stand_still(row)
        going = self._going.pop(row, None)
        if going is None:
            return
        work_s = max(0.0, at_s - going.since_s) * going.speed
        if row not in self.first_batches_s:
            left_s = self._first_s(row) - self._done_s[row]
            if work_s >= left_s:
                reached_s = going.since_s + left_s / going.speed
                self.first_batches_s[row] = reached_s - self._specs[row].submit_s
        self._done_s[row] += work_s

    def _first_s(self, row: int) -> float:
        step_s = self._step_s(self._specs[row]) if self._step_s else None
        return FIRST_MINI_BATCHES_S if step_s is None else MINI_BATCHES * step_s

    def _release(self, row: int) -> None:
        held = self._held.pop(row, None)
        if held is not None:
            self._held_gpus -= held.num_gpus
            self._free.give(held)
        self._review(row)

    def _review(self, row: int) -> None:
        """Update the waiting jobs: those that hold nothing, and are neither gone nor kept back."""
        waits = not (row in self._held or row in self._gone or row in self._kept_back)
        if waits != (row in self._waiting):
            (self._waiting.add if waits else self._waiting.discard)(row)
            gpus, change = self._specs[row].num_gpus, 1 if waits else -1
            self._demands[gpus] += change
            if not self._demands[gpus]:
                del self._demands[gpus]

    def _note(self, at_s: float) -> None:
        free = self._free
        least = min(self._demands, default=0)
        self.moments.append(
            Moment(
                at_s,
                len(self._waiting),
                self._held_gpus,
                self._running_gpus,
                free.all_gpus,
                free.stranded(least),
                free.count,
            )
        )


# What each kind of event does to a history; None: nothing that it tells of.
HANDLERS: dict[type, Callable[[History, Any], None] | None] = {
    events.NodeJoined: History._node_joined,
    events.NodeLost: History._node_lost,
    events.NodeCpusChanged: None,
    events.NodeAddressChanged: None,
    events.NodeDeadlineChanged: None,
    events.NodeClosed: None,
    events.NodeOpened: None,
    events.NodeUnreachable: None,
    events.NodeReachable: None,
    events.JobSubmitted: History._job_submitted,
    events.SuspendRequested: History._suspend_requested,
    events.ResumeRequested: History._resume_requested,
    events.StopRequested: History._stop_requested,
    events.RetryDue: None,
    events.DecisionTaken: None,
    events.CommandSent: History._command_sent,
    events.CommandFailed: History._command_failed,
    events.JobLaunched: History._started,
    events.JobSuspended: History._suspended,
    events.JobResumed: History._started,
    events.JobParked: None,
    events.JobResized: History._resized,
    events.JobRetuned: History._speed_changed,
    events.CpusSet: History._speed_changed,
    events.BatchRefused: None,
    events.SpeedChanged: History._speed_changed,
    events.FillMeasured: None,
    events.WorkerRegistered: None,
    events.ModelReported: None,
    events.BurstPlanned: None,
    events.WorkerReported: None,
    events.AttemptLost: History._attempt_lost,
    events.JobFinished: History._finished,
    events.JobCleaned: None,
    events.PolicyFailed: None,
    events.SweepSubmitted: None,
    events.TrialStopped: None,
    events.SweepEnded: None,
    events.MetricReported: None,
}
