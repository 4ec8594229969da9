"""One attempt of a job on this node: its processes, and how they are paused and continued.

What must outlive the agent is on disk in the attempt's folder: ``attempt.json`` (written before
anything is started), ``rankN.pid`` and ``rankN.exit`` (written by the shim of each rank).
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.errors import AgentError
from rota.live.processes import bind, descendants, is_stopped, kill_marked, signal_tree, started_at
from rota.live.wire import Message, encode

GRACE_S = 5.0  # from SIGTERM to SIGKILL
BOUNDARY_TIMEOUT_S = 10.0  # a job that reaches no boundary for so long, or for so many of
BOUNDARY_TIMEOUT_STEPS = 5  # its steps if that is more, is stopped where it is
COUPLED_STEP_S = 0.05  # ranks that do not answer for so long may be waiting for one that holds


class Rank:
    """One process of an attempt, with its shim and its connection."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.shim = 0
        self.worker = 0
        self.pidfd = -1
        self.exit: dict[str, Any] | None = None
        self.gone = False
        self.writer: asyncio.StreamWriter | None = None
        self.held_at: int | None = None
        self.suspended: Message | None = None

    @property
    def alive(self) -> bool:
        """Whether its shim still watches over it."""
        return self.shim > 0 and self.exit is None and not self.gone

    def send(self, message: Message) -> None:
        """Tell the worker something, if it listens."""
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(encode(message))


class Attempt:
    """The processes of one attempt. ``notify`` is called with each message for the controller."""

    def __init__(
        self, record: dict[str, Any], folder: Path, notify: Callable[[Message], None]
    ) -> None:
        self.record = record
        self.folder = folder
        self.job_id: str = record["job_id"]
        self.number: int = record["attempt"]
        self.ranks = [Rank(index) for index in range(record["world"])]
        self.progress: dict[str, Any] = {}
        self.state = "starting"  # adopted, running, suspending, suspended, resuming, ended, lost
        self.ended: Message | None = None
        self._notify = notify
        self._command_id: int | None = None
        self._stop_asked = False
        self._stopped_s = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._metrics = folder / "metrics.jsonl"

    # -- starting and adopting -----------------------------------------------------------------

    def save(self) -> None:
        """Write the record down before acting on it."""
        draft = self.folder / "attempt.json.new"
        with open(draft, "w") as file:
            json.dump(self.record, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.folder / "attempt.json")

    async def launch(self, fork: Callable[[dict[str, Any]], Any], requests: list[Any]) -> None:
        """Start every rank, or none: what has started is killed if another can't. AgentError."""
        try:
            for rank, request in zip(self.ranks, requests, strict=True):
                rank.shim = await fork(request)
                rank.pidfd = os.pidfd_open(rank.shim)
                await self._find_worker(rank)
        except (AgentError, OSError) as error:
            self.kill()
            raise AgentError(f"job {self.job_id} could not be started: {error}") from None
        self.state = "running"
        for rank in self.ranks:
            self._watch(rank)

    async def _find_worker(self, rank: Rank) -> None:
        file = self.folder / f"rank{rank.index}.pid"
        while not file.exists():
            if started_at(rank.shim) is None:
                raise AgentError(f"the shim of rank {rank.index} died at its start")
            await asyncio.sleep(0.001)
        rank.worker = json.loads(file.read_text())["worker"]

    def adopt(self) -> None:
        """Take over processes that an earlier agent started, or find out how they ended."""
        for rank in self.ranks:
            self._read_exit(rank)
            file = self.folder / f"rank{rank.index}.pid"
            if rank.exit is not None:
                continue
            pids = json.loads(file.read_text()) if file.exists() else {"shim": 0, "worker": 0}
            rank.shim, rank.worker = pids["shim"], pids["worker"]
            try:
                rank.pidfd = os.pidfd_open(rank.shim) if rank.shim else -1
            except OSError:
                rank.pidfd = -1
            began = started_at(rank.shim) if rank.pidfd >= 0 else None
            if began is None or began > file.stat().st_mtime + 1:
                rank.gone = True  # nobody there, or another process that got the same pid
                self._read_exit(rank)
        for rank in self.ranks:
            if rank.alive:
                self._watch(rank)
        if not all(rank.alive for rank in self.ranks):
            self._check_end()
        elif all(is_stopped(rank.worker) for rank in self.ranks):
            self.state = "suspended"
            self._stopped_s = time.time()
        elif self.record["suspension"] == "boundary":
            self.state = "adopted"  # running or suspended: the workers' hellos will tell
        else:
            self.state = "running"

    def settle(self) -> None:
        """Take an adopted attempt whose workers do not say hello as one that runs."""
        if self.state == "adopted":
            self.state = "running"

    def _watch(self, rank: Rank) -> None:
        asyncio.get_running_loop().add_reader(rank.pidfd, self._shim_ended, rank)

    # -- the end -------------------------------------------------------------------------------

    def _shim_ended(self, rank: Rank) -> None:
        asyncio.get_running_loop().remove_reader(rank.pidfd)
        os.close(rank.pidfd)
        rank.pidfd = -1
        self._read_exit(rank)
        rank.gone = rank.exit is None
        self._check_end()

    def _read_exit(self, rank: Rank) -> None:
        file = self.folder / f"rank{rank.index}.exit"
        if file.exists():
            rank.exit = json.loads(file.read_text())

    def _check_end(self) -> None:
        """Once a rank has failed the whole gang goes; once all are gone the attempt has ended."""
        failed = [r for r in self.ranks if r.gone or (r.exit is not None and r.exit["code"] != 0)]
        if any(rank.alive for rank in self.ranks):
            if failed:
                self.kill()
            elif self.state == "suspending":
                self._check_held()
            return
        self._cancel_timers()
        if any(rank.gone for rank in self.ranks):
            kill_marked({"ROTA_JOB_ID": self.job_id, "ROTA_ATTEMPT": str(self.number)})
            self._end("lost", error="its processes vanished without a word (shim killed, reboot)")
            return
        exits = [rank.exit for rank in self.ranks if rank.exit is not None]
        first = min((e for e in exits if e["code"] != 0), key=lambda e: e["at_s"], default=exits[0])
        code = first["code"]
        message = "" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        self._end("ended", at_s=max(e["at_s"] for e in exits), exit_code=code, message=message)

    def _end(self, kind: str, **fields: Any) -> None:
        self.state = kind
        self.ended = {"type": kind, "job_id": self.job_id, "attempt": self.number, **fields}
        self._notify(self.ended)

    def stop(self) -> None:
        """Ask every process to end, and kill what is left after the grace period."""
        if self._stop_asked:
            return
        self._stop_asked = True
        for rank in self.ranks:
            if rank.alive:
                signal_tree(rank.worker, signal.SIGTERM)
                signal_tree(rank.worker, signal.SIGCONT)
        self._after(GRACE_S, self.kill)

    def kill(self) -> None:
        """Kill every process now."""
        for rank in self.ranks:
            if rank.alive and rank.worker:
                signal_tree(rank.worker, signal.SIGKILL)
            elif rank.alive:
                os.kill(rank.shim, signal.SIGKILL)

    # -- pausing -------------------------------------------------------------------------------

    @property
    def cooperates(self) -> bool:
        """Whether every rank has a session, so that the job stops by itself at a boundary."""
        return all(rank.writer is not None for rank in self.ranks)

    def suspend(self, command_id: int) -> None:
        """Pause the attempt; ``done`` follows when its devices are free."""
        self._command_id = command_id
        if self.state == "suspended":
            self._suspended()
        elif self.state == "running":
            self.state = "suspending"
            if not self.cooperates:
                self._freeze()
                return
            gang = len(self.ranks) > 1
            for rank in self.ranks:
                rank.held_at = rank.suspended = None
                rank.send({"type": "pause", "gang": gang})
            steps_s = BOUNDARY_TIMEOUT_STEPS * (self.progress.get("step_time_s") or 0.0)
            self._after(max(BOUNDARY_TIMEOUT_S, steps_s), self._freeze)
            if gang:
                self._after(COUPLED_STEP_S, self._advance_holders)

    def _freeze(self) -> None:
        """Stop the processes where they are."""
        if self.state != "suspending":
            return
        self._stopped_s = time.time()
        for rank in self.ranks:
            if rank.alive:
                rank.send({"type": "resume", "device": None})  # no longer asked to stop by itself
                signal_tree(rank.worker, signal.SIGSTOP)
        self.record["frozen"] = True
        self._suspended()

    def _check_held(self) -> None:
        """Bring all ranks that still run to one boundary; then let them suspend."""
        living = [rank for rank in self.ranks if rank.alive]
        steps = [rank.held_at for rank in living if rank.held_at is not None]
        if not steps:
            return
        goal = max(steps)
        for rank in living:
            if rank.held_at is not None and rank.held_at < goal:
                rank.held_at = None
                rank.send({"type": "run_to", "step": goal})
        if all(rank.held_at == goal for rank in living):
            for rank in living:
                rank.send({"type": "offload"})

    def _advance_holders(self) -> None:
        """A rank that has not answered may be in a step that the holders must take part in."""
        if self.state != "suspending" or all(rank.suspended for rank in self.ranks):
            return
        holders = [rank for rank in self.ranks if rank.held_at is not None]
        if holders and len(holders) < sum(rank.alive for rank in self.ranks):
            for rank in holders:
                assert rank.held_at is not None
                rank.send({"type": "run_to", "step": rank.held_at + 1})
                rank.held_at = None
        self._after(COUPLED_STEP_S, self._advance_holders)

    def _suspended(self) -> None:
        self._cancel_timers()
        self.state = "suspended"
        self._done(stopped_s=self._stopped_s)

    def resume(self, command_id: int, gpus: list[int], cores: list[int]) -> None:
        """Continue on these devices; ``done`` follows when every rank runs."""
        self._command_id = command_id
        if self.state == "running":
            self._done()
            return
        self.record["gpus"] = gpus
        frozen = self.record.pop("frozen", False) or not self.cooperates
        self.save()
        for position, rank in enumerate(self.ranks):
            if cores:
                per_rank = [cores[position]] if len(cores) == len(self.ranks) else cores
                bind(rank.worker, per_rank)
            if frozen:
                signal_tree(rank.worker, signal.SIGCONT)
            if rank.suspended is not None:
                device = self.device_index(position) if self.record["movable"] else None
                rank.send({"type": "resume", "device": device})
        self.state = "resuming"
        if frozen:
            self._resumed()

    def device_index(self, position: int) -> int:
        """Where in the worker's list of visible devices the GPU of one rank stands."""
        visible, gpus = self.record["visible"], self.record["gpus"]
        return int(visible.index(gpus[position])) if visible else position

    def _resumed(self) -> None:
        self.state = "running"
        for rank in self.ranks:
            rank.held_at = rank.suspended = None
        self._done()

    def _done(self, **fields: Any) -> None:
        message = {"type": "done", "command_id": self._command_id, "at_s": time.time()}
        self._notify(message | fields)

    # -- what the workers say ------------------------------------------------------------------

    def joined(self, index: int, writer: asyncio.StreamWriter, hello: Message) -> None:
        """A rank opened a session, or found this agent after losing another."""
        rank = self.ranks[index]
        rank.writer = writer
        rank.suspended = hello if hello["suspended"] else None
        if not self.cooperates:
            return
        if self.record["suspension"] != "boundary":
            self.record["suspension"] = "boundary"
            self.save()
        self._notify(self.registration())
        suspended = [rank for rank in self.ranks if rank.suspended is not None]
        if self.state == "adopted" and len(suspended) == len(self.ranks):
            self.state = "suspended"
            self._stopped_s = max(rank.suspended["stopped_s"] for rank in suspended)  # type: ignore[index]
        elif self.state in ("adopted", "running"):
            self.state = "running"
            for rank in suspended:  # an agent died while it suspended this gang: call it off
                rank.send({"type": "resume", "device": None})

    def report(self) -> Message:
        """The latest progress, for the controller."""
        key = {"job_id": self.job_id, "attempt": self.number}
        return {"type": "progress", **key, "progress": self.progress}

    def registration(self) -> Message:
        """How this attempt can be suspended, for the controller."""
        return {
            "type": "registered",
            "job_id": self.job_id,
            "attempt": self.number,
            "suspension": self.record["suspension"],
            "movable": self.record["movable"],
        }

    def left(self, index: int, writer: asyncio.StreamWriter) -> None:
        """A rank's connection closed."""
        if self.ranks[index].writer is writer:
            self.ranks[index].writer = None

    def heard(self, index: int, message: Message) -> None:
        """A message from a rank with a session."""
        rank = self.ranks[index]
        kind = message["type"]
        if kind == "report":
            if index == 0:
                self._note_progress(message)
        elif kind == "at" and self.state == "suspending":
            rank.held_at = message["step"]
            self._check_held()
        elif kind == "at":
            rank.send({"type": "resume", "device": None})
        elif kind == "suspended":
            rank.suspended = message
            if self.state == "suspending" and all(r.suspended for r in self.ranks if r.alive):
                self._stopped_s = max(r.suspended["stopped_s"] for r in self.ranks if r.suspended)
                self._suspended()
        elif kind == "resumed":
            rank.suspended = None
            if self.state == "resuming" and not any(r.suspended for r in self.ranks):
                self._resumed()

    def _note_progress(self, message: Message) -> None:
        self.progress = {key: value for key, value in message.items() if key != "type"}
        with open(self._metrics, "a") as file:
            file.write(json.dumps(self.progress) + "\n")

    # -- shared --------------------------------------------------------------------------------

    def observed(self) -> Message:
        """What the controller should know of this attempt after a gap."""
        if self.ended is not None:
            return self.ended
        return {
            "type": "alive",
            "job_id": self.job_id,
            "attempt": self.number,
            "state": self.state,
            "suspension": self.record["suspension"],
            "movable": self.record["movable"],
        }

    def processes(self) -> list[int]:
        """Every process of the attempt."""
        return [pid for rank in self.ranks if rank.alive for pid in descendants(rank.worker)]

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
