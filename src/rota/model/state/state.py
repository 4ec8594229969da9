"""The cluster's whole state, rebuilt from events alone: columns, one row per job by arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.errors import PlanError, TransitionError
from rota.model.cluster import FreeGpus, Node
from rota.model.commands import Launch, Migrate, Resize, Retune, Stop, Suspend, may_follow
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
from rota.model.job import Job, JobState, Suspension
from rota.model.reason import Reason
from rota.model.state.lifecycle import STARTS
from rota.model.state.sweeps import Searching
from rota.model.state.told_notes import ToldNotes
from rota.model.state.transitions import (
    FIRST_FINAL,
    HELD,
    MIGRATING,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    SUSPENDED,
    SUSPENDING,
)

if TYPE_CHECKING:
    from rota.model.measured.adaptation import Adaptations
    from rota.model.measured.profiles import Profiles
    from rota.model.measured.reports import Reports, Truth


class ClusterState(Searching):
    """What exists and what has happened, changed by :meth:`apply` alone."""

    def __init__(self, *, keep_stories: bool = True) -> None:
        super().__init__(keep_stories=keep_stories)
        self.plan: object = None  # the plan that the last decision applied, if made in this process
        self.policy = ""
        self.policy_mark: Any = None
        self.wake_at_s: float | None = None
        self.decision_seq = 0
        self.next_command_id = 1
        self.epoch = 0
        self.events = 0
        self.log: list[Event] | None = None  # set it to a list to keep every event applied
        self.profiles: Profiles | None = None  # from the first job with a program on
        # What jobs tell of their training: a driver's, or of live jobs what the log has of it.
        self.reports: Reports | None = None
        self._told: Adaptations | None = None
        self.truth: Truth | None = None  # in a simulation
        self.notes = ToldNotes()
        self._handlers = {
            NodeJoined: self._node_joined,
            NodeLost: self._node_lost,
            JobSubmitted: self._job_submitted,
            SuspendRequested: self._suspend_requested,
            ResumeRequested: self._resume_requested,
            StopRequested: self._stop_requested,
            RetryDue: self._retry_due,
            DecisionTaken: self._decision_taken,
            CommandSent: self._command_sent,
            CommandFailed: self._command_failed,
            JobLaunched: self._job_launched,
            JobSuspended: self._job_suspended,
            JobResumed: self._job_resumed,
            JobResized: self._job_resized,
            JobRetuned: self._job_retuned,
            BatchRefused: self._batch_refused,
            SpeedChanged: self._speed_changed,
            WorkerRegistered: self._worker_registered,
            ModelReported: self._model_reported,
            WorkerReported: self._worker_reported,
            AttemptLost: self._attempt_lost,
            JobFinished: self._job_finished,
            SweepSubmitted: self._search_changed,
            TrialStopped: self._trial_stopped,
            SweepEnded: self._search_changed,
            MetricReported: self._metric_reported,
        }

    # -- reading -------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take note of ``event``. Raises TransitionError and leaves the job as it was."""
        self._handlers[type(event)](event)  # type: ignore[operator]
        self.events += 1
        if self.log is not None:
            self.log.append(event)

    def job(self, row: int, now_s: float) -> Job:
        """A snapshot of everything known about one job."""
        exit_code, message = self.ending.get(row, (None, ""))
        held = self.held[row]
        first, finish = self.first_start_s[row], self.finish_s[row]
        return Job(
            spec=self.spec[row],
            state=JobState(self.state[row]),
            reason=self.reason[row],
            attempt=self.attempt[row],
            service_s=self.service(row, now_s),
            overhead_s=self.overhead_s[row],
            first_start_s=first if first >= 0 else None,
            finish_s=finish if finish >= 0 else None,
            preemptions=self.preemptions[row],
            migrations=self.migrations[row],
            suspension=Suspension(self.suspension[row]),
            exit_code=exit_code,
            message=message,
            gpus=tuple((self.nodes[n].name, gpus) for n, gpus in held.gpus()) if held else (),
            progress=self.progress[row] or {},
        )

    def validate(self) -> None:
        """Check every invariant that the columns must keep. Raises PlanError naming the breach."""
        assumed, idle = FreeGpus(), FreeGpus()
        for index, node in enumerate(self.nodes):
            for free in (assumed, idle):
                free.set_mask(index, (1 << node.num_gpus) - 1 if node.alive else 0)
        for row in range(len(self.spec)):
            for what, free, allocation in (
                ("target", assumed, self.target[row]),
                ("held", idle, self.held[row]),
            ):
                if allocation is None:
                    continue
                if what == "target" and allocation.num_gpus not in self.sizes(row):
                    raise PlanError(f"{what} of job {self._name(row)} is not its whole gang")
                if not free.fits(allocation):
                    raise PlanError(f"{what} of job {self._name(row)} overlaps another's GPUs")
                free.take(allocation)
        if assumed.masks != self.assumed.masks or idle.masks != self.idle.masks:
            raise PlanError("the free GPUs are not those that no job has")

    # -- nodes ---------------------------------------------------------------------------------

    def _node_joined(self, e: NodeJoined) -> None:
        full = (1 << e.num_gpus) - 1
        index = self.node_index.get(e.name)
        node = Node(e.name, e.num_gpus, e.kind, True, e.gpu_type, e.rack, e.island, e.memory_gb)
        if index is None:
            index = len(self.nodes)
            self.node_index[e.name] = index
            self.nodes.append(node)
        elif self.nodes[index].alive:
            raise TransitionError(f"node {e.name} joined twice without being lost in between")
        else:
            self.nodes[index] = node
        self.total_gpus += e.num_gpus
        self.one_node_gangs = self.one_node_gangs or node.is_live
        self.assumed.set_mask(index, full)
        self.idle.set_mask(index, full)
        self.decision_needed = True

    def _node_lost(self, e: NodeLost) -> None:
        index = self.node_index.get(e.name)
        if index is None or not self.nodes[index].alive:
            raise TransitionError(f"node {e.name} was lost, but no such node is there")
        for row in range(len(self.spec)):
            target, places = self.target[row], (self.held[row], self.home[row])
            if any(place and index in place.nodes() for place in places):
                if self.has_processes(row):
                    self._lose_attempt(e.at_s, row, f"node {e.name} was lost")
            elif target and index in target.nodes():
                self._untarget(row)
                self.reason[row] = Reason.WAIT_PRIORITY
                self._changed(row)
        self.total_gpus -= self.nodes[index].num_gpus
        self.nodes[index] = self.nodes[index]._replace(alive=False)
        self.assumed.set_mask(index, 0)
        self.idle.set_mask(index, 0)
        self.decision_needed = True

    # -- what users ask ------------------------------------------------------------------------

    def _job_submitted(self, e: JobSubmitted) -> None:
        at_s, spec = e
        if not spec.simulated and self.profiles is None:
            from rota.model.measured.profiles import (
                Profiles,  # here: simulated jobs have no program
            )

            self.profiles = Profiles()
            self._handlers |= self.profiles.listen(self, self._handlers)
        if not spec.simulated and self.reports is None:
            from rota.model.measured.adaptation import Adaptations  # likewise

            self.reports = self._told = Adaptations()
        row = self.append(spec)
        if self._stories is not None:
            self._stories.append([(at_s, "submitted")])
        self.active[row] = None
        self.priorities.add(spec.priority)
        self._add_trial(row, spec)
        self.changed.append(row)
        self.decision_needed = True

    def _worker_reported(self, e: WorkerReported) -> None:
        super()._worker_reported(e)
        if self._told is not None:
            self._told.note(self, e)

    def _suspend_requested(self, e: SuspendRequested) -> None:
        row = e.row
        self.require_open(row, "suspended by its owner")
        if row in self.user_suspended:
            return
        self.user_suspended.add(row)
        self.backoff.pop(row, None)
        self.reason[row] = Reason.HELD_BY_USER
        if self.state[row] == PENDING and self.outstanding[row] is None:
            self._enter(row, HELD, e.at_s)
        self._tell(row, e.at_s, "suspended by its owner")
        self._leave_active(row)

    def _resume_requested(self, e: ResumeRequested) -> None:
        row = e.row
        self.require_open(row, "resumed by its owner")
        if row not in self.user_suspended:
            return
        self.user_suspended.discard(row)
        self.reason[row] = Reason.WAIT_PRIORITY
        if self.state[row] == HELD:
            self._enter(row, PENDING, e.at_s)
        self._tell(row, e.at_s, "resumed by its owner")
        self.active[row] = None
        self._changed(row)

    def _stop_requested(self, e: StopRequested) -> None:
        row = e.row
        if self.state[row] >= FIRST_FINAL:
            self._refuse(row, "asked to stop")
        if self.state[row] == STOPPING:
            return
        had_processes = self.has_processes(row)
        self._tell(row, e.at_s, f"asked to stop ({e.outcome.name})")
        self._leave_active(row)
        self.backoff.pop(row, None)
        self.user_suspended.discard(row)
        if not had_processes:
            self._end(row, e.at_s, e.outcome, None, "it had not started")
            return
        self._pause_clock(row, e.at_s)
        self.stop_outcome[row] = e.outcome
        self._enter(row, STOPPING, e.at_s)
        self._settle(row)

    def _retry_due(self, e: RetryDue) -> None:
        if self.backoff.pop(e.row, None) is None:
            self._refuse(e.row, "told to retry")
        held_back = e.row in self.user_suspended or self.state[e.row] == STOPPING
        if e.row not in self.active and not held_back:
            self.reason[e.row] = Reason.WAIT_PRIORITY
            self.active[e.row] = None
        self._changed(e.row)

    # -- decisions and commands ----------------------------------------------------------------

    def _decision_taken(self, e: DecisionTaken) -> None:
        _, seq, policy, allocations, reasons, marks, policy_mark, wake_at_s, notes = e
        if allocations:
            self._assume(allocations)
        if reasons:
            for row, code in reasons.items():
                self.reason[row] = code
        if self._stories is not None and (allocations or reasons):
            self._tell_sharing(e.at_s, reasons)
        if policy != self.policy:
            self.policy, self.policy_mark = policy, None
            self.marks = [None] * len(self.marks)
            self.notes.forget()
        if marks:
            for row, mark in marks.items():
                self.marks[row] = mark
        if notes is not None:
            for row, warning in self.notes.note(e.at_s, notes):
                self._tell(row, e.at_s, f"warning: {warning}")
        if policy_mark is not None:
            self.policy_mark = policy_mark
        self.wake_at_s = wake_at_s
        self.decision_seq = seq
        self.decision_needed = False
        self.plan = None
        self.changed.clear()

    def _end(
        self, row: int, at_s: float, outcome: JobState, exit_code: int | None, message: str
    ) -> None:
        super()._end(row, at_s, outcome, exit_code, message)
        if self.refused:
            self.refused.pop(row, None)
        self.notes.end(row, keep_warnings=self.spec[row].simulated)

    def _command_sent(self, e: CommandSent) -> None:
        at_s, command = e
        row, kind, outstanding = command.row, type(command), self.outstanding
        if outstanding[row] is not None and not may_follow(outstanding[row], command):
            self._refuse(row, f"sent {kind.__name__}")
        if isinstance(command, STARTS):
            allocation = command.allocation
            if self.held[row] is not None or not self.idle.take(allocation):
                self._refuse(row, f"sent {kind.__name__}")
            self.held[row] = allocation
            if allocation.num_gpus != self.num_gpus[row]:
                self._size(row, allocation.num_gpus)
            if kind is Launch:
                self.attempt[row] = command.attempt
                self.state[row] = STARTING
            elif kind is Migrate:
                self.state[row] = MIGRATING
        elif isinstance(command, Resize | Retune):
            self._send_change(row, command)
            outstanding[row] = command
            self.next_command_id = max(self.next_command_id, command.command_id + 1)
            return  # the job goes on meanwhile
        elif kind is Suspend:
            self._pause_clock(row, at_s)
            self.changed.append(row)
            self.state[row] = SUSPENDING
        self.changed_s[row] = at_s
        outstanding[row] = command
        if command.command_id >= self.next_command_id:
            self.next_command_id = command.command_id + 1

    def _command_failed(self, e: CommandFailed) -> None:
        row = e.row
        command = self.outstanding[row]
        if command is None or command.command_id != e.command_id:
            self._refuse(row, f"failed command {e.command_id}")
        self.outstanding[row] = None
        self._tell(row, e.at_s, f"{type(command).__name__.lower()} failed: {e.error}")
        if isinstance(command, Resize):
            self._fail_resize(row)
            self.backoff[row] = e.retry_at_s
        elif isinstance(command, Retune):
            self._fail_retune(row)
            self.backoff[row] = e.retry_at_s
        elif isinstance(command, Suspend | Stop):
            if isinstance(command, Stop) or self.state[row] != STOPPING:
                self.backoff[row] = e.retry_at_s  # not again at once
            if self.state[row] != STOPPING:
                self.since_s[row] = self.changed_s[row]
                self._enter(row, RUNNING, e.at_s)
        elif isinstance(command, STARTS):
            self._release(row)
            self._leave_active(row)
            waits = PENDING if isinstance(command, Launch) else SUSPENDED
            if row in self.user_suspended:
                self._enter(row, HELD if waits == PENDING else SUSPENDED, e.at_s)
            elif self.state[row] != STOPPING:
                self._enter(row, waits, e.at_s)
                self.reason[row] = Reason.WAIT_BACKOFF
                self.backoff[row] = e.retry_at_s
            elif isinstance(command, Launch):
                self._end(row, e.at_s, self.stop_outcome[row], None, "it had not started")
                return
        self._settle(row)
        self._changed(row)
