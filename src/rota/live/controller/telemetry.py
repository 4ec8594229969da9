"""Keeps agents' reports of running jobs, and writes down those that are worth it."""

import logging
from collections.abc import Callable
from typing import Any

from rota.errors import InputError
from rota.live.controller.journal import Journal
from rota.live.controller.record import Record
from rota.live.controller.recovery import registered
from rota.live.wire import Message
from rota.live.wire.messages import is_flow_use, is_model, planned_of
from rota.live.wire.places import node_and_gpu
from rota.model.allocation import Allocation, of_parts
from rota.model.commands import Migrate, Resume, Retune, SetCpus
from rota.model.events import (
    BatchRefused,
    BurstPlanned,
    FillMeasured,
    JobResized,
    MetricReported,
    ModelReported,
    ResumeRequested,
    SuspendRequested,
    WorkerReported,
)
from rota.model.job import JobState
from rota.model.measured.adaptation import read
from rota.model.measured.phase_times import PHASES, TRAIN
from rota.model.measured.phase_times import read as read_phases
from rota.model.state.state import ClusterState
from rota.model.sweep import Report

LOG_PROGRESS_EVERY_S = 10.0
LOG_PHASES_EVERY_S = 2.0  # switches of a job's phase; shorter phases tell nothing

log = logging.getLogger("rota.controller")


class Telemetry:
    """Jobs' own reports: kept in memory, and written down where that is worth it."""

    def __init__(self, record: Record, journal: Journal) -> None:
        self._record, self._journal, self._state = record, journal, record.state
        self.memory: dict[int, dict[str, Any]] = {}  # by row: see the agent's ``Attempt.memory``
        self._early_sizes: dict[int, Message] = {}  # by row: told before the job has gone on here
        self._switched_s: dict[int, float] = {}  # by row: when a switch of phase was written last
        self._senseless: set[int] = set()  # rows that have told what can't be
        self.on_progress: Callable[[int], None] = lambda row: None  # called at each report

    def note_report(self, row: int, message: Message, now_s: float) -> None:
        """Record one message about a job's attempt, other than its end."""
        kind = message["type"]
        if kind == "progress":
            self._keep(row, message["progress"])
            if self._has_switched(row, now_s) or self._must_be_written(
                row, message["progress"]["at_s"]
            ):
                self.write_progress(row, now_s)
        elif kind == "registered":
            self._note_registration(row, message, now_s)
        elif kind == "resized":
            self._note_size(row, message, now_s)
        elif kind == "refused":
            self._note_refusal(row, message, now_s)
        elif kind == "filling":
            self._note_filling(row, message, now_s)
        elif kind == "idle":
            if self._state.state[row] == JobState.RUNNING:
                self._journal.note(SuspendRequested(now_s, row, by_itself=True))
        elif kind == "called":
            if row in self._state.idle_jobs:
                self._journal.note(ResumeRequested(now_s, row, by_itself=True))
        elif kind == "memory":
            self.memory[row] = message["memory"]
        elif kind == "model":
            self._note_model(row, message, now_s)
        elif kind == "planned":
            self._note_planned(row, message, now_s)

    def note_curve(self, message: Message, now_s: float) -> None:
        """Keep a trial's new reports of its metric.

        Reports may come from an attempt that has ended or moved: all agents report the same curve.
        """
        row, curves = self._record.rows.get(message["job_id"]), self._state.told_curves
        if row is None or curves is None or self._state.spec[row].trial is None:
            return
        if self._record.is_foreign(message):
            return
        attempt = message["attempt"]
        if attempt != self._state.attempt[row]:
            return
        known = curves.heard(row, attempt) - message["since"]
        new = message["reports"][max(0, known) :]
        if new:
            self._journal.note(MetricReported(now_s, row, tuple(Report(*report) for report in new)))

    def _note_registration(self, row: int, message: Message, now_s: float) -> None:
        event, state = registered(message, row, now_s), self._state
        known = (state.suspension[row], state.movable[row], state.resizable[row])
        words = (self._record.why_suspended.get(row, ""), self._record.started.get(row, ""))
        more = (state.most_ranks[row], state.portable[row], *words)
        if event[2:] != (*known, *more):
            self._journal.note(event)

    def _note_model(self, row: int, message: Message, now_s: float) -> None:
        if is_model(message):
            sizes = (message["model_bytes"], message["largest_tensor_bytes"])
            if sizes != self._record.models.get(row):
                self._journal.note(ModelReported(now_s, row, *sizes))

    def _note_planned(self, row: int, message: Message, now_s: float) -> None:
        planned = planned_of(message)
        if planned is None:
            return
        step_s, idle = tuple(planned["step_s"]), tuple(planned["idle"])
        event, known = BurstPlanned(now_s, row, planned["batch"], step_s, idle), self._state
        if event[2:] != known.burst_planned.get(row, ())[2:]:
            self._journal.note(event)

    def _note_size(self, row: int, message: Message, now_s: float) -> None:
        """Record that a job has lost a rank, or has had one replaced, without a command."""
        state = self._state
        held = state.resizing.get(row) or state.held[row]
        if isinstance(state.outstanding[row], Resume | Migrate):
            self._early_sizes[row] = message  # an agent that comes back tells it before its answer
        busy = not isinstance(state.outstanding[row], Retune | SetCpus | None)
        if state.since_s[row] < 0 or held is None or busy:
            return
        allocation = _allocation(state, held.parts[0][0], message).with_batch(held.batch)
        cause = message.get("cause", "")
        if allocation.without(held) is None and (cause or allocation != held):
            self.write_progress(row, now_s)
            lost_ranks = message.get("lost_ranks", 0)
            self._journal.note(
                JobResized(now_s, row, allocation, cause=cause, lost_ranks=lost_ranks)
            )

    def _note_refusal(self, row: int, message: Message, now_s: float) -> None:
        """Record the refusal of a batch.

        The refusal of a requested batch says nothing of the GPUs if the job has other ranks by now,
        or if the batch is wrong as a whole: then the command fails, and is tried again.
        """
        state, batch = self._state, (message["batch"][0], message["batch"][1])
        held, command = state.held[row], state.outstanding[row]
        if held is None:
            return
        awaited = isinstance(command, Retune) and command.batch == batch
        of_a_gpu = not self._is_of_the_whole(row, batch, message["gpus"])
        known = state.refused.get(row, {}).get(state.nodes[held.parts[0][0]].gpu_type)
        news = of_a_gpu and (awaited or known is None or batch[0] < known.samples)
        if news or (held.batch == batch and not awaited):
            self._journal.note(BatchRefused(now_s, row, batch, message["error"], of_a_gpu))

    def _is_of_the_whole(self, row: int, batch: tuple[int, int], ranks: int) -> bool:
        """True if so many ranks would take an impossible number of samples in all."""
        reports = self._state.reports
        limits = None if reports is None else reports.batch_range(row)
        if limits is None or batch[0] > limits.most_per_gpu:
            return False
        parts = ranks * (1 + batch[1])
        return parts * (batch[0] - 1) >= limits.most or parts * (batch[0] + 1) <= limits.initial

    def _note_filling(self, row: int, message: Message, now_s: float) -> None:
        """Record how a background job fares, once there is something new to decide by.

        Where nothing is known of the foreground's steps nothing is recorded.
        """
        state, mate = self._state, message.get("beside")
        beside = -1 if mate is None else self._record.rows.get(mate)
        slowdown = 1.0 if mate is None else message.get("slowdown")
        since_s = state.since_s[row]
        if not state.spec[row].is_background or beside is None or slowdown is None or since_s < 0:
            return
        last, told_s = state.fill_measured.get(row), since_s - LOG_PROGRESS_EVERY_S
        if last is not None and last.beside == beside and last.at_s >= since_s:
            told_s = last.at_s
        interval = message.get("low"), message.get("high"), message.get("pairs", 0)
        is_beyond = beside >= 0 and (interval[0] or 0.0) > state.spec[beside].max_slowdown
        if is_beyond or now_s - told_s >= LOG_PROGRESS_EVERY_S:
            told = FillMeasured(now_s, row, beside, slowdown, message["harvest"], *interval)
            self._journal.note(told)

    def note_early_size(self, row: int, now_s: float) -> None:
        """The job has resumed: apply the change of size that was reported before."""
        message = self._early_sizes.pop(row, None)
        if message is not None and message["attempt"] == self._state.attempt[row]:
            self._note_size(row, message, now_s)

    def _check_sense(self, row: int, progress: dict[str, Any]) -> None:
        """Log once per job that its impossible reports of training are left out, and why."""
        try:
            read(progress)
            read_phases(progress)
            if (phase := progress.get("phase")) is not None and phase not in PHASES:
                raise InputError(f"phase: {phase!r:.80} is none; there are {' and '.join(PHASES)}")
            if (flow := progress.get("flow")) is not None and not is_flow_use(flow):
                raise InputError(f"flow: {flow!r:.80} is no use of devices by a flow job")
        except InputError as error:
            if row not in self._senseless:
                self._senseless.add(row)
                spec = self._state.spec[row]
                where = f"job {spec.job_id} ({spec.name})"
                log.warning("%s: reports are left out that make no sense: %s", where, error)

    def forget_early_size(self, row: int) -> None:
        """The job does not resume: drop the change of size that was reported meanwhile."""
        self._early_sizes.pop(row, None)

    # -- progress ------------------------------------------------------------------------------

    def note_last_report(self, row: int, message: Message) -> None:
        """Keep the last report of an ended attempt, which comes with its end."""
        if message.get("progress"):
            self._keep(row, message["progress"])

    def _keep(self, row: int, progress: dict[str, Any]) -> None:
        self._check_sense(row, progress)
        if not is_flow_use(progress.get("flow")):
            progress.pop("flow", None)
        self._record.latest[row] = progress
        self.on_progress(row)

    def write_progress(self, row: int, now_s: float) -> None:
        latest = self._record.latest.get(row)
        if latest and latest != self._state.progress[row]:
            self._journal.note(WorkerReported(now_s, row, latest))

    def write_sharers(self, row: int, now_s: float) -> None:
        """Write the progress of jobs that share the job's GPUs, because their speeds change."""
        profiles, held = self._state.profiles, self._state.held[row]
        for other in profiles.sharers(held, row) if profiles is not None else ():
            self.write_progress(other, now_s)

    def _must_be_written(self, row: int, at_s: float) -> bool:
        """True if a report of that time must be in the log.

        Some are, at intervals; so are those where profiles begin to measure.
        """
        written_s = (self._state.progress[row] or {}).get("at_s", 0.0)
        profiles = self._state.profiles
        begins = profiles is not None and profiles.awaits(row, at_s)
        return bool(begins or at_s - written_s >= LOG_PROGRESS_EVERY_S)

    def _has_switched(self, row: int, now_s: float) -> bool:
        """True if a job's phase is another one than in the log, unless that has just changed."""
        latest, written = self._record.latest[row], self._state.progress[row] or {}
        if latest.get("phase", TRAIN) == written.get("phase", TRAIN):
            return False
        if now_s - self._switched_s.get(row, 0.0) < LOG_PHASES_EVERY_S:
            return False
        self._switched_s[row] = now_s
        return True


def _allocation(state: ClusterState, first: int, message: Message) -> Allocation:
    """The GPUs that an agent, that of the ``first`` node, tells; none of unknown nodes."""
    names, masks = message.get("nodes") or [], dict[int, int]()
    for at, gpu in map(node_and_gpu, message["gpus"]):
        node = state.node_index.get(names[at]) if 0 < at < len(names) else first
        if node is not None:
            masks[node] = masks.get(node, 0) | 1 << gpu
    return of_parts(sorted(masks.items()))
