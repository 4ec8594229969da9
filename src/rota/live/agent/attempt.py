"""One attempt of a job on this node: its processes, and how they are paused and continued.

What must outlive the agent is on disk in the attempt's folder: ``attempt.json`` (written before
anything is started), ``rankN.pid`` and ``rankN.exit`` (written by the shim of each rank).
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.errors import AgentError
from rota.live.agent.elastic import Elastic
from rota.live.agent.launching import checkpoints, node_name
from rota.live.agent.pausing import Pausing
from rota.live.agent.processes import kill_remains, signal_name
from rota.live.agent.rank import Rank, life_of
from rota.live.agent.vacating import Vacating
from rota.live.wire import Message, is_memory_cycle, is_model, is_progress

GRACE_S = 5.0  # from SIGTERM to SIGKILL
LOOK_AGAIN_S = 0.02
LAST_WORDS_S = 0.5  # how long connections of processes that have ended are still read
MAX_MODEL_REPORTS = 100  # of one attempt; each is written down


class Attempt:
    """The processes of one attempt. ``notify`` is called with each message for the controller."""

    def __init__(
        self, record: dict[str, Any], folder: Path, notify: Callable[[Message], None]
    ) -> None:
        self.record = record
        self.folder = folder
        self.job_id: str = record["job_id"]
        self.number: int = record["attempt"]
        slots = range(record["slots"])
        self.ranks = [Rank(slot, folder, life_of(record, slot)) for slot in slots]
        self.elastic: Elastic | None = None
        self.shards: int | None = None  # of the program's batches: as many ranks can share them
        self.tasks: set[asyncio.Task[Any]] = set()
        self.progress: dict[str, Any] = {}
        self.state = (
            "starting"  # adopted, running, suspending, suspended, resuming, ending, ended, lost
        )
        self.ended: Message | None = None
        self._notify = notify
        self.pausing = Pausing(self)
        self.vacating: Vacating | None = None
        self.at_rest: Callable[[], object] = bool  # called when it has been suspended, or vacated
        # Called when an attempt that has come from another node can't go on here.
        self.refused: Callable[[Attempt], object] | None = None
        self.stopping = False
        self._memory_error: str | None = None
        self._cycle: dict[str, Any] | None = None  # device memory over a step
        self._model_reports = 0
        self._over_s: float | None = None  # since when no process is left
        self._timers: list[asyncio.TimerHandle] = []
        self._metrics = folder / "metrics.jsonl"

    # -- starting and adopting -------------------------------------------------------------------

    def save(self, *, durable: bool = True) -> None:
        """Write the record down before acting on it; ``durable``: to outlast a power cut."""
        draft = self.folder / "attempt.json.new"
        with open(draft, "w") as file:
            json.dump(self.record, file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(draft, self.folder / "attempt.json")

    async def launch(self, fork: Callable[[dict[str, Any]], Any], requests: list[Any]) -> None:
        """Start every rank, or none: what has started is killed if another can't. AgentError."""
        try:
            for rank, request in zip(self.ranks, requests, strict=True):
                self._refuse_if_stopping()
                await rank.start(fork, request)
            self._refuse_if_stopping()
        except (AgentError, OSError) as error:
            for rank in self.ranks:
                await rank.abandon()
            raise AgentError(f"job {self.job_id} could not be started: {error}") from None
        self.state = "running"
        for rank in self.ranks:
            self.watch(rank)
        if self.elastic is not None:
            self.elastic.look()

    def _refuse_if_stopping(self) -> None:
        if self.stopping:
            raise AgentError("it was told to end before it had started")

    def adopt(self) -> None:
        """Take over processes that an earlier agent started, or find out how they ended.

        A pause or a continuation that was cut short is called off: the attempt runs, and the
        controller repeats its command.
        """
        for rank in self.ranks:
            rank.find()
            if rank.alive:
                self.watch(rank)
        for rank in self.ranks:  # a resize that was cut short has left newcomers, or their ends
            if rank.index not in self.record["members"]:
                rank.survived = True
                rank.signal(signal.SIGKILL)
            elif not rank.alive and self.elastic is not None:
                rank.survived = self.elastic.ended(rank)
        if self.is_vacated and self.vacating is not None:
            self.vacating.adopt()
        elif "suspended_s" in self.record:
            self.state = "suspended"
        else:
            self.state = "adopted" if self.record["suspension"] == "boundary" else "running"
            for rank in self.ranks:
                rank.signal(signal.SIGCONT)
        if self.elastic is not None:
            self.elastic.look()
        if not all(rank.alive for rank in self.members):
            self.check_end()

    def settle(self) -> None:
        """Take an adopted attempt as one that runs; ranks that say otherwise are to go on."""
        if self.state == "adopted":
            self.state = "running"
            for rank in self.ranks:
                if rank.suspended is not None:
                    self.pausing.go_on(rank)

    def watch(self, rank: Rank) -> None:
        """Learn of the end of a rank that has been started."""
        loop = asyncio.get_running_loop()
        if rank.pidfd >= 0:
            loop.add_reader(rank.pidfd, self._shim_ended, rank)
        else:  # it has ended already
            loop.call_soon(self._shim_ended, rank)

    # -- the end -----------------------------------------------------------------------------------

    def _shim_ended(self, rank: Rank) -> None:
        if rank.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(rank.pidfd)
        rank.close()
        rank.gone = True
        rank.read_exit()
        expected = self.is_vacated and rank.index in self.record["members"]
        if self.elastic is not None and not expected and self.elastic.ended(rank):
            rank.survived = True
        self.check_end()

    def check_end(self) -> None:
        """Once a rank has failed the whole gang goes; once all are gone the attempt has ended."""
        if self.ended is not None:
            return
        if self.is_vacated and self.vacating is not None:
            self.vacating.ended()
            return
        failed = [
            r
            for r in self.ranks
            if not r.survived and (r.gone or (r.exit is not None and r.exit["code"] != 0))
        ]
        if any(rank.alive for rank in self.ranks):
            if failed:
                self.kill_ranks()
            elif self.state == "suspending":
                self.pausing.check_held()
            return
        if self.elastic is not None and self.elastic.launching:
            return  # a newcomer may be about to start; it asks again
        if self._still_tells():
            self.state = "ending"  # from here on there is nothing to suspend or resize
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self.check_end)
            return
        self.cancel_timers()
        last = [rank for rank in self.ranks if not rank.survived] or self.ranks
        if any(rank.gone for rank in last):
            if self._kill_remains():  # killed is not yet gone: look until none is there
                self.after(LOOK_AGAIN_S, self.check_end)
                return
            started = any(rank.shim for rank in self.ranks)
            error = "its processes vanished without a word (shim killed, reboot)"
            self._end("lost", error=error if started else "it never started", started=started)
            return
        exits = [(rank, rank.exit) for rank in last if rank.exit is not None]
        bad = [(e["at_s"], rank.index, e["code"]) for rank, e in exits if e["code"] != 0]
        _, process, code = min(bad, default=(0.0, 0, 0))
        if code == -signal.SIGKILL and self._is_out_of_the_way() and not self.stopping:
            # By the kernel, when memory ran out, or by somebody else. Who is killed while it
            # trains has failed; but one that was made to wait must not lose by that.
            self._end("lost", error="its processes were killed while suspended", started=True)
            return
        message = self._failure(process, code) if bad else ""
        at_s = max(e["at_s"] for _, e in exits)
        asked = self.stopping
        self._end("ended", at_s=at_s, exit_code=code, message=message, stop_asked=asked)

    def _is_out_of_the_way(self) -> bool:
        """Whether it is suspended at a boundary, or on its way there or back."""
        at_boundary = self.record["suspension"] == "boundary"
        return at_boundary and self.state in ("suspending", "suspended", "resuming")

    def _failure(self, process: int, code: int) -> str:
        """How the process ended that ended the others, and where its output is."""
        killed = f"killed by {signal_name(-code)}" if code < 0 else ""
        members = self.record["members"]
        if self.stopping or self.record["slots"] == 1:
            return killed
        self.record["failed"] = process
        with contextlib.suppress(OSError):  # its output can be asked for by its number
            self.save(durable=False)
        is_member = process in members
        number = members.index(process) if is_member else process
        which = f"{'rank' if is_member else 'process'} {number}"
        how = f"was {killed}" if killed else "failed"
        return f"{which} {how}: see `rota logs {self.job_id} --{which}`"

    def _still_tells(self) -> bool:
        """Whether something that the processes have said may not be read yet.

        Their connections end with them, unless something that they have left behind holds one.
        """
        if not any(rank.writer is not None for rank in self.ranks):
            return False
        if self._over_s is None:
            self._over_s = self._now()
        return self._now() < self._over_s + LAST_WORDS_S

    def _end(self, kind: str, **fields: Any) -> None:
        if self.is_guest and (kind == "lost" or self.stopping):
            self.refuse(str(fields.get("error", "it was told to end")))
            return
        self.state = kind
        if self.vacating is not None:
            self.vacating.closed()
        self.ended = self._about(kind) | fields
        if self.progress:
            self._notify(self.report())  # the last one, which says how far it has come
        self._notify(self.ended)

    @property
    def is_guest(self) -> bool:
        """Whether its state has come from another node, and is there as well: it has not gone on
        here yet."""
        return self.is_vacated and "source" in self.record

    def refuse(self, error: str) -> None:
        """A guest can't go on here; nothing is lost by that."""
        command_id = self.vacating.command_id if self.vacating is not None else None
        self.vanish("refused")
        if self.refused is not None:
            self.refused(self)
        if command_id is not None:
            self._notify({"type": "failed", "command_id": command_id, "error": error})

    def vanish(self, state: str) -> None:
        """End without a word and without a trace in host memory: its state is elsewhere."""
        self.kill_ranks()
        self.cancel_timers()
        self.state, self.ended = state, self._about(state)
        if self.vacating is not None:
            self.vacating.closed()

    def end_without_processes(self) -> None:
        """The attempt was told to end, and is in arenas alone."""
        code, message = -int(signal.SIGTERM), f"killed by {signal_name(signal.SIGTERM)}"
        ended = {"exit_code": code, "message": message, "stop_asked": self.stopping}
        self._end("ended", at_s=time.time(), **ended)

    def lose(self, error: str) -> None:
        """Its state is gone: it has to start anew."""
        self.kill_ranks()
        self._end("lost", error=error, started=True)

    def _kill_remains(self) -> int:
        """Kill what vanished shims left behind, of this attempt of this cluster alone."""
        marks = {
            "ROTA_CHECKPOINT_DIR": str(checkpoints(self.folder)),
            "ROTA_NODE": node_name(self.folder),
            "ROTA_JOB_ID": self.job_id,
            "ROTA_ATTEMPT": str(self.number),
        }
        return kill_remains([rank.shim for rank in self.ranks if rank.gone], marks)

    def stop(self) -> None:
        """Ask every process to end, and kill what is left after the grace period."""
        if self.stopping:
            return
        self.stopping = True
        for rank in self.ranks:
            rank.signal(signal.SIGTERM)
            rank.signal(signal.SIGCONT)
        asyncio.get_running_loop().call_later(GRACE_S, self.kill_ranks)
        if self.is_vacated:
            self.check_end()

    def kill(self) -> None:
        """End the attempt now."""
        self.kill_ranks()
        if self.is_vacated:
            self.stopping = True
            self.check_end()

    def kill_ranks(self) -> None:
        """Kill every process now."""
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)

    @property
    def is_vacated(self) -> bool:
        """Whether its state is in arenas, and not in processes."""
        return "vacated" in self.record

    @property
    def members(self) -> list[Rank]:
        """The ranks that train together, in order; newcomers are none yet."""
        return [self.ranks[slot] for slot in self.record["members"]]

    @property
    def cooperates(self) -> bool:
        """Whether every rank has a session, so that the job stops by itself at a boundary."""
        return all(rank.writer is not None for rank in self.members)

    def resized(
        self, command_id: int | None, error: str | None, cause: str = "", lost_ranks: int = 0
    ) -> None:
        """A change of members has ended, well or with an error; without a command, by itself.

        ``cause`` says why in words, and ``lost_ranks`` how many were lost.
        """
        if command_id is not None and error is None:
            self.done(command_id, gpus=self.record["gpus"])
            return
        if command_id is not None:
            self.failed(command_id, str(error))
        self._notify(self.size_report() | {"cause": cause, "lost_ranks": lost_ranks})

    def size_report(self) -> Message:
        """The GPUs that have ranks on them, for the controller."""
        return self._about("resized") | {"gpus": self.record["gpus"], "at_s": time.time()}

    def device_index(self, position: int) -> int:
        """Where in the worker's list of visible devices the GPU of one rank stands."""
        visible, gpus = self.record["visible"], self.record["gpus"]
        return int(visible.index(gpus[position])) if visible else position

    def done(self, command_id: int | None, **fields: Any) -> None:
        """Tell the controller that a command has been carried out."""
        message = {"type": "done", "command_id": command_id, "at_s": time.time()}
        self._notify(message | fields)

    def failed(self, command_id: int | None, error: str) -> None:
        """Tell the controller that a command could not be carried out."""
        if self.is_guest:
            self.refuse(error)
            return
        self._notify({"type": "failed", "command_id": command_id, "error": error})

    # -- what the workers say ------------------------------------------------------------------

    def joined(self, index: int, writer: asyncio.StreamWriter, hello: Message) -> None:
        """A rank opened a session, or found this agent after losing another."""
        rank = self.ranks[index]
        rank.writer = writer
        rank.suspended = hello if hello["suspended"] else None
        if rank.suspended is not None:
            self.pausing.rejoined(rank)
        self.pausing.check_resumed()
        if hello.get("shards") is not None:
            self._note_shards(hello)
        if [index] == self.record["members"][:1]:
            self._note_model(hello.get("model"))
            self._note_cycle(hello.get("memory"))
        if self.elastic is not None:
            self.elastic.gang.is_in(index, int(hello.get("generation", 0)))
        if not self.cooperates:
            return
        if self.record["suspension"] != "boundary":
            self.record["suspension"] = "boundary"
            self.save()
        self.tell_registration()
        self.settle()

    def report(self) -> Message:
        """The latest progress, for the controller."""
        return self._about("progress") | {"progress": self.progress}

    def model_report(self) -> Message | None:
        """The sizes of the job's model, for the controller; None if they are not known."""
        model = self.record.get("model")
        return self._about("model") | model if model else None

    def memory(self) -> Message:
        """Where the state of a suspended attempt is, and what a step takes, for the controller.

        ``where`` is null while it runs, else ``processes``, ``memory`` (arenas in host memory) or
        ``disk``; ``bytes`` are those of the arenas; ``error`` says why the state could not be put
        elsewhere. ``cycle`` is the device memory over a step, null if it has not been measured.
        """
        vacated, where = self.record.get("vacated"), None
        if vacated is not None:
            in_memory = self.vacating is not None and self.vacating.in_memory
            where = "memory" if in_memory else "disk"
        elif "suspended_s" in self.record:
            where = "processes"
        error = self._memory_error if where is not None else None
        state = {"where": where, "bytes": vacated and vacated["bytes"], "error": error}
        return self._about("memory") | {"memory": state | {"cycle": self._cycle}}

    def note_memory(self, error: str | None) -> None:
        """The state has been put elsewhere, or could not be, for this error."""
        if error != self._memory_error or error is None:
            self._memory_error = error
            self.tell_memory()

    def tell_memory(self) -> None:
        """Tell the controller where the state is, and what a step takes."""
        self._notify(self.memory())

    def registration(self) -> Message:
        """How this attempt can be suspended and resized, for the controller."""
        return self._about("registered") | self._abilities()

    def _abilities(self) -> Message:
        return {
            "suspension": self.record["suspension"],
            "movable": self.record["movable"] and not self.record.get("stays", False),
            "resizable": self.resizable,
            "most_ranks": self.shards or 0,
            "portable": self.portable,
        }

    def tell_registration(self) -> None:
        """Tell the controller how this attempt can be suspended."""
        self._notify(self.registration())

    @property
    def resizable(self) -> bool:
        """Whether the attempt can have more or fewer ranks: its job may, its program can."""
        return self.elastic is not None and self.shards is not None

    @property
    def portable(self) -> bool:
        """Whether its state can be written down, so that it can go on on another node.

        As far as is known: its library says so for certain whenever it is suspended.
        """
        record = self.record
        may = not record.get("frozen", False) and record.get("keeps") is None
        return record["suspension"] == "boundary" and may

    def left(self, index: int, writer: asyncio.StreamWriter) -> None:
        """A rank's connection closed."""
        rank = self.ranks[index]
        if rank.writer is not writer:
            return
        rank.writer = rank.suspended = None
        if self.vacating is not None:
            self.vacating.call_off(f"rank {index} closed its connection")
        self.pausing.check_resumed()
        if self.elastic is None or len(self.members) < 2:
            self.pausing.freeze()  # if it was to hold at a boundary: none will come

    def heard(self, index: int, message: Message) -> None:
        """A message from a rank with a session."""
        rank = self.ranks[index]
        kind = message["type"]
        first = [index] == self.record["members"][:1]
        if kind == "report":
            if first:
                self._note_progress(message)
        elif kind == "model":
            if first:
                self._note_model(message)
        elif kind == "memory":
            if first:
                self._note_cycle(message)
        elif kind == "elastic":
            self._note_shards(message)
        elif kind == "at" and self.state == "suspending":
            self.pausing.holds(index, message["step"], message.get("round"))
        elif kind == "at" and not (self.elastic is not None and self.elastic.gang.busy):
            rank.send({"type": "resume", "device": None})
        elif kind == "suspended":
            self.pausing.is_suspended(rank, message)
        elif kind == "resumed":
            rank.suspended = None
            self.pausing.check_resumed()
        elif kind in ("written", "kept"):
            if self.vacating is not None:
                self.vacating.heard(index, message)
        elif self.elastic is not None:
            self.elastic.heard(index, message)

    def _note_shards(self, message: Message) -> None:
        """Remember into how many parts the program cuts its batches."""
        shards = message.get("shards")
        if isinstance(shards, int) and not isinstance(shards, bool) and shards > 0:
            new, self.shards = shards != self.shards, shards
            if new and self.elastic is not None:
                self.tell_registration()

    def _note_progress(self, message: Message) -> None:
        if not is_progress(message):
            return  # a program may say what it likes; nobody else has to read it
        self.progress = {key: value for key, value in message.items() if key != "type"}
        with contextlib.suppress(OSError), open(self._metrics, "a") as file:
            file.write(json.dumps(self.progress) + "\n")

    def _note_model(self, message: Any) -> None:
        """Keep the sizes that rank 0 tells of its model, and pass them on if they are new."""
        if not is_model(message) or self._model_reports >= MAX_MODEL_REPORTS:
            return
        model = {key: message[key] for key in ("model_bytes", "largest_tensor_bytes")}
        if model != self.record.get("model"):
            self._model_reports += 1
            self.record["model"] = model
            with contextlib.suppress(OSError):  # the worker tells it again to the next agent
                self.save(durable=False)
            self._notify(self._about("model") | model)

    def _note_cycle(self, message: Any) -> None:
        """Pass on what rank 0 tells of its device memory."""
        if is_memory_cycle(message):
            names = ("least_bytes", "most_bytes", "least_after")
            self._cycle = {name: message[name] for name in names}
            self.tell_memory()

    # -- shared --------------------------------------------------------------------------------

    def observed(self) -> Message:
        """What the controller should know of this attempt after a gap."""
        if self.ended is not None:
            return self.ended
        return self._about("alive") | {"state": self.state} | self._abilities()

    def _about(self, kind: str) -> Message:
        return {"type": kind, "job_id": self.job_id, "attempt": self.number}

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call something later, unless the attempt has ended by then."""
        self._timers = [timer for timer in self._timers if timer.when() > self._now()]
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call, *arguments))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def cancel_timers(self) -> None:
        """Call nothing later that :meth:`after` was asked to."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
