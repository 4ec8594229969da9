"""State changes confirmed by drivers: starts, suspensions, reports, losses and ends."""

from __future__ import annotations

from rota.model.commands import Launch, Migrate, Park, Resume, Suspend
from rota.model.ending import asked_end_text, end_text
from rota.model.events import (
    AttemptLost,
    BurstPlanned,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResumed,
    JobSuspended,
    ModelReported,
    SpeedChanged,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import JobState, Suspension
from rota.model.reason import Reason
from rota.model.state.displacement import in_favour
from rota.model.state.ledger import FIRST_FINAL, HELD, PENDING, RUNNING, STOPPING, SUSPENDED, Ledger

LAUNCHES, RESUMES, STARTS = (Launch,), (Resume, Migrate), (Launch, Resume, Migrate)
ENDED_BY_ITSELF = (JobState.SUCCEEDED, JobState.FAILED)


def job_launched(ledger: Ledger, e: JobLaunched) -> None:
    at_s, row, _, speed = e
    _confirm_start(ledger, row, at_s, speed, LAUNCHES, "started")
    if ledger.spec[row].suspension == Suspension.PROCESS:
        ledger.stay(row)


def job_resumed(ledger: Ledger, e: JobResumed) -> None:
    _confirm_start(ledger, e.row, e.at_s, e.speed, RESUMES, "resumed")


def _confirm_start(
    ledger: Ledger, row: int, at_s: float, speed: float, kinds: tuple[type, ...], verb: str
) -> None:
    kind = type(ledger.outstanding[row])
    if kind not in kinds:
        ledger.refuse(row, verb)
    if kind is Migrate:
        ledger.migrations[row] += 1
    if ledger.first_start_s[row] >= 0:
        ledger.restarts[row] += 1
    else:
        ledger.first_start_s[row] = at_s
    ledger.outstanding[row] = None
    ledger.home[row] = None
    if ledger.stored:
        ledger.stored.pop(row, None)
    held = ledger.held[row]
    if at_s != ledger.changed_s[row]:
        ledger.overhead_s[row] += at_s - ledger.changed_s[row]
        ledger.changed_s[row] = at_s
    if ledger.state[row] == STOPPING:
        ledger.since_s[row], ledger.speed[row] = at_s, speed  # it runs until it is told to end
        ledger.settle(row)
        return
    if held is ledger.target[row] and not ledger.target_cpus:
        ledger.unsettled.pop(row, None)
    else:
        ledger.settle(row)
    ledger.since_s[row] = at_s
    ledger.speed[row] = speed
    ledger.changed.append(row)
    ledger.state[row] = RUNNING
    if ledger.keeps_stories:
        if kind is Migrate and held is not None:
            verb = f"resumed on {' '.join(ledger.nodes[n].name for n in held.nodes())}"
        ledger.tell(row, at_s, verb)


def speed_changed(ledger: Ledger, e: SpeedChanged) -> None:
    ledger.pause_clock(e.row, e.at_s)
    ledger.since_s[e.row] = e.at_s
    ledger.speed[e.row] = e.speed
    if e.by_itself:
        ledger.changed.append(e.row)
    else:
        ledger.note_change(e.row)


def job_suspended(ledger: Ledger, e: JobSuspended) -> None:
    row = e.row
    if not isinstance(ledger.outstanding[row], Suspend):
        ledger.refuse(row, "suspended")
    ledger.outstanding[row] = None
    stopped = max(e.stopped_s, ledger.changed_s[row])
    ledger.ran(row, stopped - ledger.changed_s[row])
    ledger.changed.append(row)
    ledger.overhead_s[row] += e.at_s - stopped
    ledger.home[row] = ledger.held[row]
    ledger.stored[row] = None
    ledger.release(row)
    target = ledger.target[row]
    if target is not None and (
        target.num_gpus not in ledger.sizes(row) or not ledger.can_go_on(row, target)
    ):
        # The job was to shrink while running, and could not; or its state can't be where it is
        # wanted, which no plan could tell while it was running.
        ledger.untarget(row)
        ledger.note_change(row)
    if ledger.reason[row] == Reason.WAIT_DEVICE_MEMORY:
        ledger.note_change(row)  # no plan could tell before that the job is to go on at its home
    ledger.settle(row)
    if ledger.state[row] != STOPPING:
        ledger.enter(row, SUSPENDED, e.at_s)
    words = [f"suspended{in_favour(ledger, row)}"]
    if e.saved is not None:
        words.append(f"it saved {e.saved or 'nothing in ROTA_CHECKPOINT_DIR'}")
    program = ledger.spec[row].program
    ledger.asked_ends.pop(row, None)
    if program is not None and e.exit_code is not None:
        ledger.asked_ends[row] = e.exit_code
        words.append(asked_end_text(e.exit_code, program.grace_s))
    ledger.tell(row, e.at_s, "; ".join(filter(None, words)))


def job_parked(ledger: Ledger, e: JobParked) -> None:
    row = e.row
    if not isinstance(ledger.outstanding[row], Park):
        ledger.refuse(row, "parked")
    home = ledger.home[row] = ledger.parking[row]
    ledger.forget_parking(row)
    ledger.outstanding[row] = None
    ledger.migrations[row] += 1
    ledger.changed.append(row)
    ledger.settle(row)
    if ledger.state[row] != STOPPING:
        ledger.enter(row, SUSPENDED, e.at_s)
    ledger.tell(row, e.at_s, f"waits on {ledger.nodes[home.nodes()[0]].name}, where its state is")


def worker_registered(ledger: Ledger, e: WorkerRegistered) -> None:
    ledger.suspension[e.row] = e.suspension
    if (ledger.movable[e.row], ledger.portable[e.row]) != (e.movable, e.portable):
        ledger.movable[e.row], ledger.portable[e.row] = e.movable, e.portable
        ledger.changed.append(e.row)
    if (ledger.resizable[e.row], ledger.most_ranks[e.row]) != (e.resizable, e.most_ranks):
        ledger.resizable[e.row], ledger.most_ranks[e.row] = e.resizable, e.most_ranks
        ledger.note_change(e.row)


def model_reported(ledger: Ledger, e: ModelReported) -> None:
    if not 0 < e.largest_tensor_bytes <= e.model_bytes:
        ledger.refuse(e.row, f"told to have {e.largest_tensor_bytes} of {e.model_bytes} bytes")
    ledger.skew[e.row] = e.largest_tensor_bytes / e.model_bytes
    ledger.note_change(e.row)


def burst_planned(ledger: Ledger, e: BurstPlanned) -> None:
    """Keep it as the last one of its job; a job that has ended meanwhile needs none."""
    if not 0 < len(e.idle) <= len(e.step_s):
        ledger.refuse(e.row, f"planned for {len(e.idle)} of {len(e.step_s)} ranks")
    if ledger.state[e.row] < FIRST_FINAL:
        ledger.burst_planned[e.row] = e
        ledger.note_change(e.row)


def worker_reported(ledger: Ledger, e: WorkerReported) -> None:
    ledger.progress[e.row] = e.progress


def attempt_lost(ledger: Ledger, e: AttemptLost) -> None:
    if e.attempt != ledger.attempt[e.row]:
        ledger.refuse(e.row, f"lost attempt {e.attempt}")
    if e.retry_at_s is None:
        lose_attempt(ledger, e.at_s, e.row, e.error, e.lost_s)
    else:
        _retry_later(ledger, e, e.retry_at_s)


def _retry_later(ledger: Ledger, e: AttemptLost, retry_at_s: float) -> None:
    """The job waits for its next attempt, and keeps its place among the others meanwhile."""
    row, retries = e.row, ledger.spec[e.row].retries
    count = ledger.retried[row] = ledger.retried.get(row, 0) + 1
    of = "" if retries is None else f" of {retries.most}"
    ledger.tell(row, e.at_s, f"attempt {e.attempt} failed: {e.error}")
    lose_attempt(ledger, e.at_s, row, "", e.lost_s)
    if ledger.state[row] != PENDING:
        return
    ledger.tell(row, e.at_s, f"retry {count}{of} comes in {max(0.0, retry_at_s - e.at_s):g} s")
    ledger.leave_active(row)
    ledger.reason[row] = Reason.WAIT_BACKOFF
    ledger.backoff[row] = retry_at_s


def lose_attempt(ledger: Ledger, at_s: float, row: int, error: str, lost_s: float = 0.0) -> None:
    """End the job's attempt, and have it wait for another; stories tell an ``error``, if any."""
    if error:
        ledger.tell(row, at_s, f"attempt {ledger.attempt[row]} lost: {error}")
    ledger.pause_clock(row, at_s)
    ledger.lag_s[row] += lost_s
    ledger.lost_s[row] += lost_s
    if isinstance(ledger.outstanding[row], STARTS):
        ledger.overhead_s[row] += max(0.0, at_s - ledger.changed_s[row])  # a start cut off
    ledger.release(row)
    ledger.outstanding[row] = None
    ledger.resizing.pop(row, None)
    ledger.forget_parking(row)
    ledger.home[row] = None
    ledger.stored.pop(row, None)
    ledger.suspension[row] = ledger.spec[row].suspension
    ledger.movable[row] = ledger.portable[row] = True
    outcome = ledger.stop_outcome.pop(row, None)
    if outcome is not None:
        ledger.end(row, at_s, outcome, None, end_text(ledger.spec[row], outcome, error))
        return
    ledger.untarget(row)
    if row in ledger.active or row in ledger.background:
        ledger.wait(row)
    if row in ledger.idle_jobs:  # with its program, the next call is gone
        ledger.idle_jobs.discard(row)
        del ledger.held_back[row]
        ledger.enter_open(row)
    ledger.enter(row, HELD if row in ledger.held_back else PENDING, at_s)
    ledger.note_change(row)


def job_finished(ledger: Ledger, e: JobFinished) -> None:
    at_s, row, outcome, exit_code, message = e
    if outcome < FIRST_FINAL:
        ledger.refuse(row, f"finished ({outcome.name})")
    ledger.pause_clock(row, at_s)
    ran = outcome in ENDED_BY_ITSELF and ledger.first_start_s[row] >= 0
    if ran and not ledger.spec[row].is_background:
        ledger.completed_gpu_s.append(
            ledger.service_s[row] * ledger.num_gpus[row] + ledger.extra_gpu_s[row]
        )
    ledger.end(row, at_s, outcome, exit_code, message)
