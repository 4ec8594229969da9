"""Counts of what has happened in a cluster, for ``/metrics``: of its events, and of this process.

``Counts`` is a fold of the event log: whoever applies the same events has the same counts, so that
they go on where they were when a controller starts again. ``ProcessCounts`` begins at 0 with each
controller: the log does not have how long something took.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import Any

from rota.model.commands import Command, Launch, Migrate, Park, Resume, Suspend
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    CommandSent,
    DecisionTaken,
    Event,
    FillMeasured,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResized,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodeLost,
    StopRequested,
)
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.model.state.ledger import FIRST_FINAL
from rota.model.state.lifecycle import ENDED_BY_ITSELF
from rota.model.state.state import ClusterState

MOST_QUEUES = 100  # that are counted apart, those whose jobs came first; all others are one
NO_QUEUE, OTHER_QUEUES = "(none)", "(other)"  # no queue can have such a name
STARTED, MOVED, FAILED, CUT_OFF = "started", "moved", "failed", "cut_off"
GROWN, SHRUNK, SAME_SIZE = "grown", "shrunk", "same_size"
CHANGED, UNCHANGED = "changed", "unchanged"

LONG_S = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800)
SHORT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
CYCLE_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SLOWDOWN = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)

Labels = tuple[str, ...]  # the values of a counter's labels


class Histogram:
    """Values counted by size: ``counts`` has one for each of ``bounds``, and one for larger ones.

    A value counts for the first bound that is not less than the value.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __copy__(self) -> "Histogram":
        twin = Histogram(self.bounds)
        twin.counts, twin.total = self.counts.copy(), self.total
        return twin

    def add(self, value: float) -> None:
        """Count a value; one below 0, which clocks that were set may cause, counts as 0."""
        value = max(0.0, value)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counts:
    """Counts of the events that have been applied to ``state``; :meth:`note` is its observer.

    Keys of counters are tuples of label values, in the order of ``rota.server.metrics.METRICS``.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._queues: dict[str, str] = {}  # what a queue is called in labels
        self._sent: dict[int, tuple[type[Command], float]] = {}  # by row: the start or suspension
        self._sizes: dict[int, int] = {}  # by row: GPUs of running jobs
        self.open: dict[int, None] = {}  # rows of jobs that have not ended
        self._preempted: dict[int, int] = {}  # by row: how often, as far as it is counted
        self.submitted: Counter[Labels] = Counter()
        self.ended: Counter[Labels] = Counter()
        self.decisions: Counter[Labels] = Counter()
        self.fallbacks: Counter[Labels] = Counter()
        self.preemptions: Counter[Labels] = Counter()
        self.launches: Counter[Labels] = Counter()
        self.migrations: Counter[Labels] = Counter()
        self.resizes: Counter[Labels] = Counter()
        self.attempts_lost = 0
        self.nodes_lost = 0
        self.lost_work_gpu_s = 0.0
        self.queue_wait_s: dict[Labels, Histogram] = {}
        self.completion_s: dict[Labels, Histogram] = {}
        self.launch_s, self.suspend_s = Histogram(SHORT_S), Histogram(SHORT_S)
        self.resume_s, self.slowdown = Histogram(SHORT_S), Histogram(SLOWDOWN)

    def copy(self) -> "Counts":
        """The counts as they are now; nothing is to be noted in the copy."""
        twin = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Counter | Histogram):
                setattr(twin, name, copy(value))
        twin._queues = self._queues.copy()
        twin.queue_wait_s = {key: copy(each) for key, each in self.queue_wait_s.items()}
        twin.completion_s = {key: copy(each) for key, each in self.completion_s.items()}
        return twin

    def note(self, event: Event) -> None:
        """Count an event that has just been applied."""
        count = _COUNTED.get(type(event))
        if count is not None:
            count(self, event)

    def queue_of(self, vc: str) -> str:
        """What a queue is called in labels: OTHER_QUEUES if MOST_QUEUES others came before it."""
        label = self._queues.get(vc)
        if label is None:
            label = (vc or NO_QUEUE) if len(self._queues) < MOST_QUEUES else OTHER_QUEUES
            if label is not OTHER_QUEUES:
                self._queues[vc] = label
        return label

    def _queue(self, row: int) -> str:
        return self.queue_of(self._state.spec[row].vc)

    def _submitted(self, event: JobSubmitted) -> None:
        self.open[len(self._state.spec) - 1] = None
        self.submitted[(self.queue_of(event.spec.vc),)] += 1

    def _decided(self, event: DecisionTaken) -> None:
        self.decisions[(CHANGED if event.allocations else UNCHANGED,)] += 1
        if event.fallback:
            self.fallbacks[(event.fallback,)] += 1
        state = self._state
        for row, allocation in event.allocations.items():
            if allocation is None and (times := state.preemptions[row]):
                new = times - self._preempted.get(row, 0)
                if new > 0:
                    self._preempted[row] = times
                    reason = Reason(state.reason[row]).name
                    self.preemptions[self._queue(row), reason] += new

    def _command_sent(self, event: CommandSent) -> None:
        command = event.command
        self._cut_off(command.row)  # such as a move to a node that was lost
        if isinstance(command, Launch | Suspend | Resume | Migrate | Park):
            self._sent[command.row] = type(command), event.at_s

    def _command_failed(self, event: CommandFailed) -> None:
        kind, _ = self._sent.pop(event.row, (None, 0.0))
        if kind is Launch:
            self.launches[(FAILED,)] += 1
        elif kind in (Migrate, Park):
            self.migrations[(FAILED,)] += 1
        self._close_if_ended(event.row)

    def _launched(self, event: JobLaunched) -> None:
        row, state = event.row, self._state
        _, sent_s = self._sent.pop(row, (None, event.at_s))
        self.launches[(STARTED,)] += 1
        self.launch_s.add(event.at_s - sent_s)
        if not state.restarts[row]:
            wait_s = self.queue_wait_s.setdefault((self._queue(row),), Histogram(LONG_S))
            wait_s.add(event.at_s - state.submit_s[row])
        self._keep_size(row)

    def _resumed(self, event: JobResumed) -> None:
        kind, sent_s = self._sent.pop(event.row, (None, event.at_s))
        if kind is Migrate:
            self.migrations[(MOVED,)] += 1
        self.resume_s.add(event.at_s - sent_s)
        self._keep_size(event.row)

    def _parked(self, event: JobParked) -> None:
        self._sent.pop(event.row, None)
        self.migrations[(MOVED,)] += 1

    def _suspended(self, event: JobSuspended) -> None:
        _, sent_s = self._sent.pop(event.row, (None, event.at_s))
        self.suspend_s.add(event.at_s - sent_s)

    def _resized(self, event: JobResized) -> None:
        before, now = self._sizes.get(event.row, 0), event.allocation.num_gpus
        self.resizes[(GROWN if now > before else SHRUNK if now < before else SAME_SIZE,)] += 1
        self._sizes[event.row] = now

    def _attempt_lost(self, event: AttemptLost) -> None:
        self.attempts_lost += 1
        self.lost_work_gpu_s += event.lost_s * self._state.num_gpus[event.row]
        self._cut_off(event.row)
        self._close_if_ended(event.row)

    def _may_have_ended(self, event: JobFinished | StopRequested) -> None:
        self._close_if_ended(event.row)

    def _close_if_ended(self, row: int) -> None:
        state = self._state
        if state.state[row] < FIRST_FINAL or row not in self.open:
            return
        queue = self._queue(row)
        self.ended[queue, JobState(state.state[row]).name] += 1
        if state.state[row] in ENDED_BY_ITSELF:
            took_s = self.completion_s.setdefault((queue,), Histogram(LONG_S))
            took_s.add(state.finish_s[row] - state.submit_s[row])
        self._cut_off(row)
        del self.open[row]
        self._sizes.pop(row, None)
        self._preempted.pop(row, None)

    def _node_lost(self, event: NodeLost) -> None:
        self.nodes_lost += not event.given_back

    def _fill_measured(self, event: FillMeasured) -> None:
        if event.beside >= 0:
            self.slowdown.add(event.slowdown)

    def _keep_size(self, row: int) -> None:
        held = self._state.held[row]
        if held is not None:
            self._sizes[row] = held.num_gpus

    def _cut_off(self, row: int) -> None:
        """Count a start or a move that something else has overtaken."""
        kind, _ = self._sent.pop(row, (None, 0.0))
        if kind is Launch:
            self.launches[(CUT_OFF,)] += 1
        elif kind in (Migrate, Park):
            self.migrations[(CUT_OFF,)] += 1


_COUNTED: dict[type, Callable[[Counts, Any], None]] = {
    JobSubmitted: Counts._submitted,
    DecisionTaken: Counts._decided,
    CommandSent: Counts._command_sent,
    CommandFailed: Counts._command_failed,
    JobLaunched: Counts._launched,
    JobResumed: Counts._resumed,
    JobParked: Counts._parked,
    JobSuspended: Counts._suspended,
    JobResized: Counts._resized,
    AttemptLost: Counts._attempt_lost,
    JobFinished: Counts._may_have_ended,
    StopRequested: Counts._may_have_ended,
    NodeLost: Counts._node_lost,
    FillMeasured: Counts._fill_measured,
}


class ProcessCounts:
    """What this controller has measured of itself since it started, in seconds of a steady clock.

    ``conflicts`` counts attempts that agents had and should not have: each was ended.
    """

    def __init__(self) -> None:
        self.cycle_s = Histogram(CYCLE_S)  # of decisions, until what follows is written down
        self.transaction_s = Histogram(CYCLE_S)  # of writes to the event log
        self.conflicts = 0
