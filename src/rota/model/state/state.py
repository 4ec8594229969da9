"""The cluster's whole state, rebuilt from events alone: which event calls which function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rota.model.events import (
    AttemptLost,
    BatchRefused,
    CommandFailed,
    CommandSent,
    DecisionTaken,
    Event,
    JobFinished,
    JobLaunched,
    JobResized,
    JobResumed,
    JobRetuned,
    JobSubmitted,
    JobSuspended,
    MetricReported,
    ModelReported,
    NodeJoined,
    NodeLost,
    ResumeRequested,
    RetryDue,
    SpeedChanged,
    StopRequested,
    SuspendRequested,
    SweepEnded,
    SweepSubmitted,
    TrialStopped,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.state import commands, decisions, lifecycle, nodes, requests, resizing, sweeps
from rota.model.state.ledger import Ledger

HANDLERS: dict[type, Callable[[Ledger, Any], None]] = {
    NodeJoined: nodes.node_joined,
    NodeLost: nodes.node_lost,
    JobSubmitted: requests.job_submitted,
    SuspendRequested: requests.suspend_requested,
    ResumeRequested: requests.resume_requested,
    StopRequested: requests.stop_requested,
    RetryDue: requests.retry_due,
    DecisionTaken: decisions.decision_taken,
    CommandSent: commands.command_sent,
    CommandFailed: commands.command_failed,
    JobLaunched: lifecycle.job_launched,
    JobSuspended: lifecycle.job_suspended,
    JobResumed: lifecycle.job_resumed,
    JobResized: resizing.job_resized,
    JobRetuned: resizing.job_retuned,
    BatchRefused: resizing.batch_refused,
    SpeedChanged: lifecycle.speed_changed,
    WorkerRegistered: lifecycle.worker_registered,
    ModelReported: lifecycle.model_reported,
    WorkerReported: lifecycle.worker_reported,
    AttemptLost: lifecycle.attempt_lost,
    JobFinished: lifecycle.job_finished,
    SweepSubmitted: sweeps.search_changed,
    TrialStopped: sweeps.trial_stopped,
    SweepEnded: sweeps.search_changed,
    MetricReported: sweeps.metric_reported,
}


class ClusterState(Ledger):
    """What exists and what has happened: the ledger, changed by :meth:`apply` alone."""

    def __init__(self, *, keep_stories: bool = True) -> None:
        super().__init__(keep_stories=keep_stories)
        self._log: list[Event] | None = None

    def apply(self, event: Event) -> None:
        """Take note of ``event``. Raises TransitionError and leaves the job as it was."""
        HANDLERS[type(event)](self, event)
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
