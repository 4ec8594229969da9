"""One attempt as all its parts see it: its record and ranks, and the messages about it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rota.errors import InputError
from rota.folder import in_host_memory
from rota.live.agent.abroad import Abroad
from rota.live.agent.curve import Curve
from rota.live.agent.launching import checkpoints, node_name
from rota.live.agent.method import RESTART, STAYS, STOP, SUSPENSIONS, Method
from rota.live.agent.output import keep_last_lines
from rota.live.agent.processes import tag_of
from rota.live.agent.pulses import phase_of
from rota.live.agent.rank import Rank, life_of
from rota.live.agent.record import LastAnswer, Record, json_of
from rota.live.agent.states import State, Story
from rota.live.agent.world import World
from rota.live.wire import MAX_LINE_BYTES, METRICS, Message
from rota.live.wire.messages import (
    is_memory_cycle,
    is_model,
    is_progress,
    planned_of,
    progress_of,
)
from rota.live.wire.places import is_far
from rota.model.measured.phase_times import read as read_phases

SPANS = "it stays on its nodes while it is suspended, because it has several"
MAX_MODEL_REPORTS = 100  # of one attempt; each is written down
MAX_SHARD_REPORTS = 100  # likewise
MAX_PLANS = 1000  # likewise; a program plans anew after each resize
MAX_TORN_LINES = 10
MOST_METRICS_BYTES = 64 << 20  # bytes of reports kept in a file: the latest

log = logging.getLogger("rota.agent")


class Account:
    """The record and the ranks of one attempt; see ``Attempt`` for what is done with them.

    ``notify`` is called with each message for the controller.
    """

    def __init__(
        self, record: Record, folder: Path, notify: Callable[[Message], None], world: World
    ) -> None:
        self.world = world
        self.record = record
        self.folder = folder
        self.job_id = record.job_id
        self.number = record.attempt
        self.launch_mark = record.launch
        self.abroad = Abroad(record, folder)
        self.ranks = [self.new_rank(slot) for slot in range(record.slots)]
        self.resume_id: int | None = None  # the command that last asked it to go on
        self.stopping = False
        self.asked_end: Message = {}  # how its processes ended, if a suspension ended them
        self.grace_s = 0.0  # that its processes have when it is stopping
        self.complaint = ""  # of a rank that is about to end
        self.goes_on = False  # True if that rank has saved what the next attempt needs
        self.was_rebooted = False  # True if the machine was, since its processes were started
        self.at_rest: Callable[[], object] = bool  # called when it has been suspended, or vacated
        self.changed: Callable[[Account], object] = bool  # called when its state is another
        # Called when an attempt that has come from another node can't go on here.
        self.refused: Callable[[Account], object] = bool
        self.tasks: set[asyncio.Task[Any]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self.shards: int | None = None  # of the program's batches: as many ranks can share them
        self.progress: dict[str, Any] = {}
        self.usage: Callable[[], dict[str, Any]] = dict  # its resource use: see ``Meter.usage``
        self.state = State.STARTING
        self.story = Story()
        self.ended: Message | None = None
        self.unsaved = False  # True if the last try to write the record has failed
        self.notify = notify
        self.crowd = ""  # names the rank that has several sessions
        self.worker_pids: list[int] = []  # of a flow job: the processes on its GPUs
        self.unstopped = 0  # processes of other users, which run on while it is suspended
        # Processes that have device memory, of all jobs on its GPUs: see ``Meter.holders``.
        self.holders: Callable[[], set[int]] = set
        self._memory_error: str | None = None
        self._cycle: dict[str, Any] | None = None  # device memory over a step
        self._model_reports = self._shard_reports = self._plans = 0
        self._planned_told: Message | None = None
        self.curve = Curve(folder)
        self._curve_told = 0
        self._metrics = folder / METRICS
        self._complained = False  # True once an unreadable report was logged,
        self._complained_of_phases = False  # and once times of phases that can't be
        self._complained_of_plan = False  # and once a plan of layers that is none

    def become(self, state: State) -> None:
        """Change to another state, as :data:`~rota.live.agent.states.TRANSITIONS` allows.

        A change that it does not allow is a fault of this agent; it is made, and logged as an error
        with the attempt's story.
        """
        if not self.story.takes(self.world.now_s(), self.state, state):
            log.error("job %s.%s: %s", self.job_id, self.number, self.story)
        self.state = state
        self.changed(self)

    def save(self, *, durable: bool = True) -> None:
        """Write the record before acting on it; ``durable`` writes survive a power cut.

        Raises OSError; the agent writes the record later then, with the contents of that time.
        """
        self.unsaved = True
        draft = self.folder / "attempt.json.new"
        with open(draft, "w") as file:
            json.dump(json_of(self.record), file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(draft, self.folder / "attempt.json")
        self.unsaved = False

    def save_if_there_is_room(self) -> None:
        """Write the record if there is room: ranks or the controller could repeat what it has."""
        with contextlib.suppress(OSError):
            self.save()

    # -- its ranks -----------------------------------------------------------------------------

    def new_rank(self, slot: int) -> Rank:
        """A process of this slot, not started yet, or to be found."""
        if str(slot) in self.record.far:
            return self.abroad.rank(slot)
        return self.world.new_rank(slot, self.folder, life_of(self.record.lives, slot))

    def address_of(self, slot: int) -> str:
        """The address at which the processes of other slots find that of this one."""
        if not self.record.nodes:
            return "127.0.0.1"
        return self.record.nodes[self.record.far.get(str(slot), 0)]["address"]

    @property
    def spans(self) -> bool:
        """True if its ranks are on several nodes."""
        return any(map(is_far, self.record.gpus))

    @property
    def members(self) -> list[Rank]:
        """The ranks that train together, in order; newcomers are none yet."""
        return [self.ranks[slot] for slot in self.record.members]

    @property
    def phase(self) -> str | None:
        """The phase that the session of its first rank is in; None without a session."""
        return phase_of(self.folder, self.record.members[0]) if self.record.members else None

    @property
    def cooperates(self) -> bool:
        """True if every rank has one session, so that the job stops by itself at a boundary."""
        return all(rank.writer is not None and not rank.beside for rank in self.members)

    @property
    def is_vacated(self) -> bool:
        """True if its state is in arenas, and not in processes."""
        return self.record.vacated is not None

    @property
    def arenas(self) -> list[Path]:
        """The files that its state is in, one for each rank; none while it is in processes."""
        vacated = self.record.vacated
        return list(map(Path, vacated.arenas.values())) if vacated is not None else []

    @property
    def is_in_memory(self) -> bool:
        """True if it is vacated, and its arenas are in host memory."""
        return any(map(in_host_memory, self.arenas))

    @property
    def is_guest(self) -> bool:
        """True if the state has come from another node, and is not this node's yet.

        Then the source node still holds the state as well.
        """
        return self.is_vacated and self.record.source is not None

    def kill_ranks(self) -> None:
        """Kill every process now."""
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)

    def kill_remains(self) -> int:
        """Kill what vanished shims left behind, of this attempt of this cluster alone.

        How many processes there were.
        """
        marks = {
            "ROTA_CHECKPOINT_DIR": str(checkpoints(self.folder)),
            "ROTA_NODE": node_name(self.folder),
            "ROTA_JOB_ID": self.job_id,
            "ROTA_ATTEMPT": str(self.number),
        }
        vanished = [rank for rank in self.ranks if rank.gone and not rank.is_far]
        tags = [tag_of(self.record.secret, rank.name) for rank in vanished]
        return self.world.kill_remains([rank.shim for rank in vanished], tags, marks)

    def device_index(self, position: int) -> int:
        """Index of one rank's GPU in the worker's list of visible devices."""
        visible, gpus = self.record.visible, self.record.gpus
        return int(visible.index(gpus[position])) if visible else position

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        task = self.world.spawn(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function later, unless the attempt has ended by then."""
        self._timers = [timer for timer in self._timers if not timer.cancelled()]

        def fire() -> None:
            self._timers.remove(timer)
            call(*arguments)

        timer = self.world.later(seconds, fire)
        self._timers.append(timer)

    def cancel_timers(self) -> None:
        """Cancel all calls requested by :meth:`after`."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # -- for the controller ---------------------------------------------------------------------

    def done(self, command_id: int | None, **fields: Any) -> None:
        """Tell the controller that a command has been carried out, and how far the job is."""
        if self.progress:
            self.notify(self.report())
        answer = self.record.answer
        if answer is None or answer.command_id != command_id or not answer.is_final:
            answer = self.carries_out(command_id, fields.get("stopped_s"))
            with contextlib.suppress(OSError):  # else the next agent may tell a later time
                self.save(durable=False)
        at_s = self.world.now_s() if answer is None else answer.at_s
        self.notify(self.about("done") | {"command_id": command_id, "at_s": at_s} | fields)
        self.tell_planned()  # its ranks may have other GPUs now

    def carries_out(
        self, command_id: int | None, stopped_s: float | None = None, *, is_final: bool = True
    ) -> LastAnswer | None:
        """Record that a command is carried out now, for a controller that may miss the answer."""
        if command_id is not None:
            at_s = self.world.now_s()
            self.record.answer = LastAnswer(command_id, at_s, stopped_s, is_final)
        return self.record.answer if command_id is not None else None

    def last_done(self) -> Message:
        """The last command that was carried out; the controller may have missed the answer."""
        answer = self.record.answer
        if answer is None:
            return {}
        done: Message = {"command_id": answer.command_id, "at_s": answer.at_s}
        return {
            "done": done if answer.stopped_s is None else done | {"stopped_s": answer.stopped_s}
        }

    def failed(self, command_id: int | None, error: str) -> None:
        """Tell the controller that a command could not be carried out."""
        self.notify(self.about("failed") | {"command_id": command_id, "error": error})

    def observed(self) -> Message:
        """Summary of this attempt for a controller that has missed messages."""
        if self.ended is not None:
            return self.ended
        done = self.last_done() if self.state != State.RESUMING else {}  # it may fail yet
        return self.about("alive") | {"state": self.state} | self._abilities() | done

    def about(self, kind: str) -> Message:
        """The beginning of a message of this kind about the attempt."""
        about = {"type": kind, "job_id": self.job_id, "attempt": self.number}
        return about if self.launch_mark is None else about | {"launch": self.launch_mark}

    def report(self) -> Message:
        """The latest progress, if any, and the job's resource use by now, for the controller."""
        told = (self.progress or {"at_s": self.world.now_s()}) | self.usage()
        if self._cycle is not None:
            least, most = self._cycle["least_bytes"], self._cycle["most_bytes"]
            told["memory_least_bytes"] = least
            told["memory_most_bytes"] = max(most, told.get("memory_most_bytes", 0))
        return self.about("progress") | {"progress": told}

    def last_report(self) -> dict[str, Any]:
        """The last report that an earlier agent has written; empty if there is none."""
        try:
            with open(self._metrics, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LINE_BYTES))
                lines = file.read().splitlines()
        except OSError:
            return {}
        for line in reversed(lines[-MAX_TORN_LINES:]):  # a power cut may have torn the last one
            with contextlib.suppress(ValueError, RecursionError):
                told = json.loads(line)
                if isinstance(told, dict) and is_progress(told):
                    return _kept(told, self.world.now_s())
        return {}

    def tell_curve(self) -> None:
        """Tell the controller what a trial has reported since the last time, if anything."""
        message = self.curve_report(self._curve_told)
        if message is not None:
            self.notify(message)

    def curve_report(self, since: int = 0) -> Message | None:
        """A trial's reports after the first ``since``, for the controller; None if it has none."""
        self._curve_told = self.curve.read()
        told = self.curve.reports[since:]
        return self.about("curve") | {"since": since, "reports": told} if told else None

    def model_report(self) -> Message | None:
        """The sizes of the job's model, for the controller; None if they are not known."""
        model = self.record.model
        return self.about("model") | model if model else None

    def planned_report(self) -> Message | None:
        """The plan of layers, for the controller; None if there is none for the present ranks.

        The ranks' idle parts are in the order of their GPUs.
        """
        planned, gpus = self.record.planned, self.record.gpus
        if planned is None or len(planned["idle"]) != len(gpus):
            return None
        idle = [part for _, part in sorted(zip(gpus, planned["idle"], strict=True))]
        return self.about("planned") | planned | {"idle": idle}

    def tell_planned(self) -> None:
        """Tell the controller the plan of layers, if it, or a rank's GPU, is another by now."""
        report = self.planned_report()
        if report is not None and report != self._planned_told:
            self._planned_told = report
            self.notify(report)

    def memory(self) -> Message:
        """For the controller: where a suspended attempt's state is, and the memory of a step.

        ``where`` is null while it runs, else ``processes``, ``memory`` (arenas in host memory),
        ``disk`` or ``checkpoint`` (the job's own); ``bytes`` are those of the arenas; ``error``
        says why the state could not be put elsewhere. ``cycle`` is the device memory over a step,
        null if it has not been measured.
        """
        vacated, where = self.record.vacated, None
        if vacated is not None:
            where = "memory" if self.is_in_memory else "disk" if vacated.arenas else "checkpoint"
        elif self.record.suspended_s is not None:
            where = "processes"
        error = self._memory_error if where is not None else None
        state = {"where": where, "bytes": vacated and vacated.bytes, "error": error}
        return self.about("memory") | {"memory": state | {"cycle": self._cycle}}

    def note_memory(self, error: str | None) -> None:
        """The state has been put elsewhere, or could not be, for this error."""
        if error != self._memory_error or error is None:
            self._memory_error = error
            self.tell_memory()

    def tell_memory(self) -> None:
        """Tell the controller where the state is, and what a step takes."""
        self.notify(self.memory())

    def registration(self) -> Message:
        """Report to the controller: the ways in which this attempt can be suspended and resized."""
        return self.about("registered") | self._abilities()

    def _abilities(self) -> Message:
        record, method = self.record, self.method
        suspension, why = record.suspension, "all its ranks use rota.train"
        if self.spans:
            why = f"{why}; {SPANS}"
        if record.flow is not None:
            why = "its workers stop between operations"
        if suspension != "boundary" and record.fallback is not None:
            suspension, why = SUSPENSIONS[STOP], f"{record.fallback}; {STAYS}"
        elif suspension != "boundary":
            suspension, why = SUSPENSIONS[method.kind], method.why
        stays = record.stays or (self.crowd and record.visible is not None)
        if self.crowd:
            why = f"{self.crowd}; {why}"
        elif suspension == "boundary" and stays:
            why = f"{why}, but beside these a process has device memory: {STAYS}"
        if self.unstopped:
            why = f"{why}; {self.unstopped} of its processes can't be stopped: another user's"
        movable = record.movable and not stays and not self.spans
        return {
            "suspension": suspension,
            "movable": movable
            or self._restarts
            or (record.checkpoint is not None and record.checkpoint.moves),
            "resizable": self.resizable,
            "most_ranks": self.most_ranks,
            "portable": self.portable,
            "why": why,
            "started": record.started,
        }

    @property
    def method(self) -> Method:
        """The suspension method without a session, and the reason for it."""
        return self.record.method

    @property
    def _restarts(self) -> bool:
        """True if the job continues from its own checkpoint, wherever that is."""
        return self.record.suspension != "boundary" and self.method.kind == RESTART

    def tell_registration(self) -> None:
        """Tell the controller how this attempt can be suspended."""
        self.notify(self.registration())

    @property
    def resizable(self) -> bool:
        """True if the attempt can have more or fewer ranks: its job may, its program can."""
        if self.record.flow is not None:
            return len(self.record.flow["devices"]) > 1
        return self.record.max_world > 1 and self.shards is not None and not self.crowd

    @property
    def most_ranks(self) -> int:
        """The most ranks that can share its batches, or workers of a flow job; 0: unknown."""
        return (
            len(self.record.flow["devices"]) if self.record.flow is not None else self.shards or 0
        )

    @property
    def portable(self) -> bool:
        """True if the state can be written to files, so that the job can continue on another node.

        The answer may change: the library reports it for certain at each suspension.
        """
        record = self.record
        stopped = record.frozen or record.stays
        may = not stopped and record.keeps is None
        if self.spans:
            return False
        return self._restarts or (record.suspension == "boundary" and may)

    # -- what the ranks tell --------------------------------------------------------------------

    def note_shards(self, message: Message) -> None:
        """Remember the number of parts in which the program cuts its batches, if it has changed."""
        shards = message.get("shards")
        if not shards or shards == self.shards or self._shard_reports >= MAX_SHARD_REPORTS:
            return
        self.shards = shards
        self._shard_reports += 1
        if self.record.max_world > 1:
            self.tell_registration()

    def note_progress(self, message: Message) -> None:
        """Keep a report of rank 0, if it is well-formed."""
        if not is_progress(message):  # a program may say what it likes; nobody has to read it
            if not self._complained:
                self._complained = True
                log.warning("job %s: a report that is no report is left out", self.job_id)
            return
        self._check_phases(message)
        self.progress = _kept(message, self.world.now_s())
        with contextlib.suppress(OSError):
            with open(self._metrics, "a") as file:
                file.write(json.dumps(self.progress) + "\n")
                size = file.tell()
            if size > MOST_METRICS_BYTES:
                keep_last_lines(self._metrics, MOST_METRICS_BYTES // 2)

    def _check_phases(self, message: Message) -> None:
        """Log once that times of phases which can't be are left out, and why."""
        try:
            read_phases(message)
        except InputError as error:
            if not self._complained_of_phases:
                self._complained_of_phases = True
                log.warning("job %s: times that make no sense are left out: %s", self.job_id, error)

    def note_model(self, message: Any) -> None:
        """Keep the sizes that rank 0 tells of its model, and pass them on if they are new."""
        if not is_model(message) or self._model_reports >= MAX_MODEL_REPORTS:
            return
        model = {key: message[key] for key in ("model_bytes", "largest_tensor_bytes")}
        if model != self.record.model:
            self._model_reports += 1
            self.record.model = model
            with contextlib.suppress(OSError):  # the worker tells it again to the next agent
                self.save(durable=False)
            self.notify(self.about("model") | model)

    def note_planned(self, message: Any) -> None:
        """Keep the plan of layers that rank 0 tells, and pass it on if it is new."""
        planned = planned_of(message)
        if planned is None:
            if not self._complained_of_plan:
                self._complained_of_plan = True
                log.warning("job %s: a plan of layers that is no plan is left out", self.job_id)
            return
        if planned != self.record.planned and self._plans < MAX_PLANS:
            self._plans += 1
            self.record.planned = planned
            with contextlib.suppress(OSError):  # the worker tells it again to the next agent
                self.save(durable=False)
        self.tell_planned()

    def note_cycle(self, message: Any) -> None:
        """Pass on what rank 0 tells of its device memory."""
        if is_memory_cycle(message):
            names = ("least_bytes", "most_bytes", "least_after")
            self._cycle = {name: message[name] for name in names}
            self.tell_memory()


def _kept(report: Message, now_s: float) -> dict[str, Any]:
    """The fields of a well-formed report that are kept.

    Its times are capped at the present: a report from the future would seem newer than all that
    follow.
    """
    told = progress_of(report)
    return told | {"at_s": min(told["at_s"], now_s)}
