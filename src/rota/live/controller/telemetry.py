"""What agents report of running jobs: taken note of, and written down as far as it is worth it."""

import logging
from typing import Any

from rota.errors import InputError
from rota.folder import Folder
from rota.live.controller.recovery import registered
from rota.live.controller.room import Room
from rota.live.controller.sweep_api import Sweeps
from rota.live.wire import Message, is_model
from rota.model.allocation import on_node
from rota.model.commands import Migrate, Resume, Retune
from rota.model.events import (
    BatchRefused,
    JobResized,
    MetricReported,
    ModelReported,
    WorkerReported,
)
from rota.model.measured.adaptation import read
from rota.model.sweep import Report
from rota.store.events import EventStore

LOG_PROGRESS_EVERY_S = 10.0

log = logging.getLogger("rota.controller")


class Reports(Sweeps):
    """The record and its users, with what the jobs tell of themselves meanwhile."""

    def __init__(self, store: EventStore, folder: Folder, room: Room | None = None) -> None:
        super().__init__(store, folder, room)
        self.memory: dict[int, dict[str, Any]] = {}  # by row: see the agent's ``Attempt.memory``
        self._early_sizes: dict[int, Message] = {}  # by row: told before the job has gone on here
        self._senseless: set[int] = set()  # rows that have told what can't be

    def _note_report(self, row: int, message: Message, now_s: float) -> None:
        """Take note of one message about a job's attempt, other than its end."""
        kind = message["type"]
        if kind == "progress":
            self._latest[row] = message["progress"]
            self._check_sense(row, message["progress"])
            if self._must_be_written(row, message["progress"]["at_s"]):
                self._write_progress(row, now_s)
        elif kind == "registered":
            self._note_registration(row, message, now_s)
        elif kind == "resized":
            self._note_size(row, message, now_s)
        elif kind == "refused":
            self._note_refusal(row, message, now_s)
        elif kind == "memory":
            self.memory[row] = message["memory"]
        elif kind == "model":
            self._note_model(row, message, now_s)

    def _note_curve(self, message: Message, now_s: float) -> None:
        """What a trial has reported of its metric, as far as it is new.

        Also of an attempt that has ended, or is on another node by now: each says the same.
        """
        row, curves = self.rows.get(message["job_id"]), self.state.told_curves
        if row is None or curves is None or self.state.spec[row].trial is None:
            return
        if self.is_foreign(message):
            return
        attempt = message["attempt"]
        if attempt != self.state.attempt[row]:
            return
        known = curves.heard(row, attempt) - message["since"]
        new = message["reports"][max(0, known) :]
        if new:
            self._note(MetricReported(now_s, row, tuple(Report(*report) for report in new)))

    def _note_registration(self, row: int, message: Message, now_s: float) -> None:
        event, state = registered(message, row, now_s), self.state
        known = (state.suspension[row], state.movable[row], state.resizable[row])
        more = (state.most_ranks[row], state.portable[row], self.why_suspended.get(row, ""))
        if event[2:] != (*known, *more):
            self._note(event)

    def _note_model(self, row: int, message: Message, now_s: float) -> None:
        if is_model(message):
            sizes = (message["model_bytes"], message["largest_tensor_bytes"])
            if sizes != self.model(row):
                self._note(ModelReported(now_s, row, *sizes))

    def _note_size(self, row: int, message: Message, now_s: float) -> None:
        """A job has changed by itself: it has lost a rank, or has had one replaced."""
        state = self.state
        held = state.resizing.get(row) or state.held[row]
        if isinstance(state.outstanding[row], Resume | Migrate):
            self._early_sizes[row] = message  # an agent that comes back tells it before its answer
        busy = not isinstance(state.outstanding[row], Retune | None)
        if state.since_s[row] < 0 or held is None or busy:
            return
        gpus = on_node(held.parts[0][0], sum(1 << gpu for gpu in message["gpus"]))
        allocation = gpus.with_batch(held.batch)
        cause = message.get("cause", "")
        if allocation.without(held) is None and (cause or allocation != held):
            self._write_progress(row, now_s)
            lost_ranks = message.get("lost_ranks", 0)
            self._note(JobResized(now_s, row, allocation, cause=cause, lost_ranks=lost_ranks))

    def _note_refusal(self, row: int, message: Message, now_s: float) -> None:
        """A batch does not go. One that was asked for where the job has other ranks by now, or is
        wrong as a whole, says nothing of its GPUs: that command fails, and is tried again."""
        state, batch = self.state, (message["batch"][0], message["batch"][1])
        held, command = state.held[row], state.outstanding[row]
        if held is None:
            return
        awaited = isinstance(command, Retune) and command.batch == batch
        of_a_gpu = not self._is_of_the_whole(row, batch, message["gpus"])
        known = state.refused.get(row, {}).get(state.nodes[held.parts[0][0]].gpu_type)
        news = of_a_gpu and (awaited or known is None or batch[0] < known.samples)
        if news or (held.batch == batch and not awaited):
            self._note(BatchRefused(now_s, row, batch, message["error"], of_a_gpu))

    def _is_of_the_whole(self, row: int, batch: tuple[int, int], ranks: int) -> bool:
        """Whether so many ranks would take more or fewer samples in all than a batch can have."""
        reports = self.state.reports
        limits = None if reports is None else reports.batch_range(row)
        if limits is None or batch[0] > limits.most_per_gpu:
            return False
        parts = ranks * (1 + batch[1])
        return parts * (batch[0] - 1) >= limits.most or parts * (batch[0] + 1) <= limits.initial

    def _note_early_size(self, row: int, now_s: float) -> None:
        """The job has gone on: what was told of its size since it was to do that counts now."""
        message = self._early_sizes.pop(row, None)
        if message is not None and message["attempt"] == self.state.attempt[row]:
            self._note_size(row, message, now_s)

    def _check_sense(self, row: int, progress: dict[str, Any]) -> None:
        """Say once of a job that what it tells of its training is left out, and why."""
        try:
            read(progress)
        except InputError as error:
            if row not in self._senseless:
                self._senseless.add(row)
                spec = self.state.spec[row]
                where = f"job {spec.job_id} ({spec.name})"
                log.warning("%s: reports are left out that make no sense: %s", where, error)

    # -- progress ------------------------------------------------------------------------------

    def _note_last_report(self, row: int, message: Message) -> None:
        """Keep the last report of an attempt that has ended, which comes with the end."""
        if message.get("progress"):
            self._latest[row] = message["progress"]
            self._check_sense(row, message["progress"])

    def _write_progress(self, row: int, now_s: float) -> None:
        latest = self._latest.get(row)
        if latest and latest != self.state.progress[row]:
            self._note(WorkerReported(now_s, row, latest))

    def _write_sharers(self, row: int, now_s: float) -> None:
        """Write down how far those are who share the job's GPUs: their conditions change."""
        profiles, held = self.state.profiles, self.state.held[row]
        for other in profiles.sharers(held, row) if profiles is not None else ():
            self._write_progress(other, now_s)

    def _must_be_written(self, row: int, at_s: float) -> bool:
        """Whether a report told then is to be in the log: now and then, and where profiles begin
        to measure."""
        written_s = (self.state.progress[row] or {}).get("at_s", 0.0)
        profiles = self.state.profiles
        begins = profiles is not None and profiles.awaits(row, at_s)
        return bool(begins or at_s - written_s >= LOG_PROGRESS_EVERY_S)
