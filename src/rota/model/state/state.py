"""The cluster's whole state, rebuilt from events: which event calls which function, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rota.model import events
from rota.model.commands import RULES, Park, Suspend
from rota.model.events import Event
from rota.model.job import JobState
from rota.model.state import (
    closed,
    commands,
    cpus,
    decisions,
    fill,
    lifecycle,
    nodes,
    requests,
    resizing,
    sweeps,
)
from rota.model.state.ledger import FIRST_FINAL, HELD, PENDING, RUNNING, STOPPING, Ledger


class Handler(NamedTuple):
    """The effect of a kind of event, and the states in which it may come.

    Its job is in one of ``states``; otherwise ``refusal`` names the impossible action, with fields
    of the event. Or the event ``answers`` one of these commands, which the function checks. With
    neither it has no job, or may come at any time.
    """

    apply: Callable[[Ledger, Any], None]
    states: frozenset[int] | None = None
    refusal: str = ""
    answers: tuple[type, ...] = ()


_NOT_ENDED = frozenset(range(FIRST_FINAL))
_OPEN = _NOT_ENDED - {STOPPING}
_STARTED = _NOT_ENDED - {PENDING, HELD}
_RUNNING = frozenset((RUNNING,))
_ENDED = frozenset(range(FIRST_FINAL, len(JobState)))

HANDLERS: dict[type, Handler] = {
    events.NodeJoined: Handler(nodes.node_joined),
    events.NodeLost: Handler(nodes.node_lost),
    events.NodeCpusChanged: Handler(nodes.node_cpus_changed),
    events.NodeAddressChanged: Handler(nodes.node_address_changed),
    events.NodeDeadlineChanged: Handler(nodes.node_deadline_changed),
    events.NodeClosed: Handler(nodes.node_closed),
    events.NodeOpened: Handler(nodes.node_opened),
    events.NodeUnreachable: Handler(nodes.node_unreachable),
    events.NodeReachable: Handler(nodes.node_reachable),
    events.JobSubmitted: Handler(requests.job_submitted),
    events.SuspendRequested: Handler(requests.suspend_requested, _OPEN, "suspended by its owner"),
    events.ResumeRequested: Handler(requests.resume_requested, _OPEN, "resumed by its owner"),
    events.StopRequested: Handler(requests.stop_requested, _NOT_ENDED, "asked to stop"),
    events.RetryDue: Handler(requests.retry_due, _NOT_ENDED, "told to retry"),
    events.DecisionTaken: Handler(decisions.decision_taken),
    events.PolicyFailed: Handler(decisions.policy_failed),
    events.CommandSent: Handler(commands.command_sent),  # see the RULES of its command
    events.CommandFailed: Handler(commands.command_failed, answers=tuple(RULES)),
    events.JobLaunched: Handler(lifecycle.job_launched, answers=lifecycle.LAUNCHES),
    events.JobSuspended: Handler(lifecycle.job_suspended, answers=(Suspend,)),
    events.JobResumed: Handler(lifecycle.job_resumed, answers=lifecycle.RESUMES),
    events.JobParked: Handler(lifecycle.job_parked, answers=(Park,)),
    events.JobResized: Handler(resizing.job_resized, _RUNNING, "resized"),
    events.JobRetuned: Handler(resizing.job_retuned, _RUNNING, "retuned"),
    events.CpusSet: Handler(cpus.cpus_set, _RUNNING, "given CPU cores"),
    events.BatchRefused: Handler(resizing.batch_refused, _STARTED, "told of a batch"),
    events.SpeedChanged: Handler(
        lifecycle.speed_changed, _RUNNING, "told to run at speed {0.speed}"
    ),
    events.FillMeasured: Handler(fill.fill_measured),
    events.WorkerRegistered: Handler(lifecycle.worker_registered),
    events.ModelReported: Handler(lifecycle.model_reported),
    events.BurstPlanned: Handler(lifecycle.burst_planned),
    events.WorkerReported: Handler(lifecycle.worker_reported),
    events.AttemptLost: Handler(lifecycle.attempt_lost, _STARTED, "lost attempt {0.attempt}"),
    events.JobFinished: Handler(lifecycle.job_finished, _NOT_ENDED, "finished ({0.outcome.name})"),
    events.JobCleaned: Handler(requests.job_cleaned, _ENDED, "cleaned up"),
    events.SweepSubmitted: Handler(sweeps.search_changed),
    events.TrialStopped: Handler(sweeps.trial_stopped, _OPEN, "stopped by its search"),
    events.SweepEnded: Handler(sweeps.search_changed),
    events.MetricReported: Handler(sweeps.metric_reported),
}


def _checked(handler: Handler) -> Callable[[Ledger, Any], None]:
    """The function of a kind of event, which refuses one that comes in another state."""
    apply, states, refusal, _ = handler
    if states is None:
        return apply

    def apply_if_it_may_come(ledger: Ledger, e: Any) -> None:
        if ledger.state[e.row] not in states:
            ledger.refuse(e.row, refusal.format(e))
        apply(ledger, e)

    return apply_if_it_may_come


_APPLY = {kind: _checked(handler) for kind, handler in HANDLERS.items()}


class ClusterState(Ledger):
    """Everything that exists and has happened: the ledger, changed by :meth:`apply` alone."""

    def __init__(self, *, keep_stories: bool = True) -> None:
        super().__init__(keep_stories=keep_stories)
        self._log: list[Event] | None = None

    def apply(self, event: Event) -> None:
        """Apply ``event``. Raises TransitionError and leaves the job as it was."""
        _APPLY[type(event)](self, event)
        if (self.closed or self.unreachable) and type(event) not in closed.UNCONCERNED:
            closed.settle_jobs(self)
        self.events += 1
        for observe in self.observers:
            observe(event)

    @property
    def log(self) -> list[Event] | None:
        """Every event applied since it was set to a list; None if it was not."""
        return self._log

    @log.setter
    def log(self, events: list[Event] | None) -> None:
        if self._log is not None:
            self.observers.remove(self._keep)
        self._log = events
        if events is not None:
            self.observers.append(self._keep)

    def _keep(self, event: Event) -> None:
        assert self._log is not None
        self._log.append(event)
