"""What follows from that which drivers confirm: starts, suspensions, reports, losses and ends."""

from __future__ import annotations

from typing import Any

from rota.model.commands import Launch, Migrate, Resume, Suspend
from rota.model.events import (
    AttemptLost,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSuspended,
    ModelReported,
    SpeedChanged,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import JobState, Suspension
from rota.model.reason import Reason
from rota.model.state.resizing import Changes
from rota.model.state.transitions import (
    FIRST_FINAL,
    HELD,
    PENDING,
    RUNNING,
    STOPPING,
    SUSPENDED,
)

LAUNCHES, RESUMES, STARTS = (Launch,), (Resume, Migrate), (Launch, Resume, Migrate)
ENDED_BY_ITSELF = (JobState.SUCCEEDED, JobState.FAILED)


class Confirmations(Changes):
    """How the columns change by what has happened to the processes of a job."""

    def has_processes(self, row: int) -> bool:
        """Whether the job's attempt may have living processes."""
        started = self.attempt[row] > 0 and self.state[row] not in (PENDING, HELD)
        return started and self.state[row] < FIRST_FINAL

    def _job_launched(self, e: JobLaunched) -> None:
        at_s, row, _, speed = e
        self._confirm_start(row, at_s, speed, LAUNCHES, "started")
        if self.first_start_s[row] < 0:
            self.first_start_s[row] = at_s

    def _job_resumed(self, e: JobResumed) -> None:
        self._confirm_start(e.row, e.at_s, e.speed, RESUMES, "resumed")

    def _confirm_start(self, row: int, at_s: float, speed: float, kind: Any, verb: str) -> None:
        command = self.outstanding[row]
        if not isinstance(command, kind):
            self._refuse(row, verb)
        if type(command) is Migrate:
            self.migrations[row] += 1
        if self.first_start_s[row] >= 0:
            self.restarts[row] += 1
        self.outstanding[row] = None
        self.home[row] = None
        held = self.held[row]
        if at_s != self.changed_s[row]:
            self.overhead_s[row] += at_s - self.changed_s[row]
            self.changed_s[row] = at_s
        if held is self.target[row] and self.state[row] != STOPPING:
            self.unsettled.pop(row, None)
        else:
            self._settle(row)
            if self.state[row] == STOPPING:
                return
        self.since_s[row] = at_s
        if speed != 1.0 or self.speed[row] != 1.0:
            self.speed[row] = speed
        self.changed.append(row)
        self.state[row] = RUNNING
        if self._stories is not None:
            if type(command) is Migrate and held is not None:
                verb = f"resumed on {' '.join(self.nodes[n].name for n in held.nodes())}"
            self._tell(row, at_s, verb)

    def _speed_changed(self, e: SpeedChanged) -> None:
        if self.state[e.row] != RUNNING:
            self._refuse(e.row, f"told to run at speed {e.speed}")
        self._pause_clock(e.row, e.at_s)
        self.since_s[e.row] = e.at_s
        self.speed[e.row] = e.speed
        if e.by_itself:
            self.changed.append(e.row)
        else:
            self._changed(e.row)

    def _job_suspended(self, e: JobSuspended) -> None:
        row = e.row
        if not isinstance(self.outstanding[row], Suspend):
            self._refuse(row, "suspended")
        self.outstanding[row] = None
        stopped = max(e.stopped_s, self.changed_s[row])
        self._ran(row, stopped - self.changed_s[row])
        self.changed.append(row)
        self.overhead_s[row] += e.at_s - stopped
        self.home[row] = self.held[row]
        self._release(row)
        target = self.target[row]
        if target is not None and target.num_gpus not in self.sizes(row):
            self._untarget(row)  # it was to become smaller as it ran, and could not
            self._changed(row)
        self._settle(row)
        if self.state[row] != STOPPING:
            self._enter(row, SUSPENDED, e.at_s)
        self._tell(row, e.at_s, "suspended")

    def _worker_registered(self, e: WorkerRegistered) -> None:
        self.suspension[e.row] = e.suspension
        if (self.movable[e.row], self.portable[e.row]) != (e.movable, e.portable):
            self.movable[e.row], self.portable[e.row] = e.movable, e.portable
            self.changed.append(e.row)
        if (self.resizable[e.row], self.most_ranks[e.row]) != (e.resizable, e.most_ranks):
            self.resizable[e.row], self.most_ranks[e.row] = e.resizable, e.most_ranks
            self._changed(e.row)

    def _model_reported(self, e: ModelReported) -> None:
        if not 0 < e.largest_tensor_bytes <= e.model_bytes:
            self._refuse(e.row, f"told to have {e.largest_tensor_bytes} of {e.model_bytes} bytes")
        self.skew[e.row] = e.largest_tensor_bytes / e.model_bytes
        self._changed(e.row)

    def _worker_reported(self, e: WorkerReported) -> None:
        self.progress[e.row] = e.progress

    def _attempt_lost(self, e: AttemptLost) -> None:
        if e.attempt != self.attempt[e.row] or not self.has_processes(e.row):
            self._refuse(e.row, f"lost attempt {e.attempt}")
        self._lose_attempt(e.at_s, e.row, e.error, e.lost_s)

    def _lose_attempt(self, at_s: float, row: int, error: str, lost_s: float = 0.0) -> None:
        self._tell(row, at_s, f"attempt {self.attempt[row]} lost: {error}")
        self._pause_clock(row, at_s)
        self.lag_s[row] += lost_s
        self.lost_s[row] += lost_s
        if isinstance(self.outstanding[row], STARTS):
            self.overhead_s[row] += max(0.0, at_s - self.changed_s[row])  # a start cut off
        self._release(row)
        self.outstanding[row] = None
        self.resizing.pop(row, None)
        self.home[row] = None
        self.suspension[row] = Suspension.UNKNOWN
        self.movable[row] = self.portable[row] = True
        outcome = self.stop_outcome.pop(row, None)
        if outcome is not None:
            self._end(row, at_s, outcome, None, error)
            return
        self._untarget(row)
        if row in self.active:
            self.reason[row] = Reason.WAIT_PRIORITY
        self._enter(row, HELD if row in self.user_suspended else PENDING, at_s)
        self._changed(row)

    def _job_finished(self, e: JobFinished) -> None:
        at_s, row, outcome, exit_code, message = e
        if self.state[row] >= FIRST_FINAL or outcome < FIRST_FINAL:
            self._refuse(row, f"finished ({outcome.name})")
        self._pause_clock(row, at_s)
        if outcome in ENDED_BY_ITSELF:
            self.completed_gpu_s.append(
                self.service_s[row] * self.num_gpus[row] + self.extra_gpu_s[row]
            )
        self._end(row, at_s, outcome, exit_code, message)
