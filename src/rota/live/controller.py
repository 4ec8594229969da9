"""The controller: turns what users and agents say into events, and plans into commands.

One turn: take note of what has come, let the policy decide if something calls for it, derive the
commands, write everything down in one transaction, and only then send the commands.
"""

import asyncio
import contextlib
import json
import logging
from typing import Any, Protocol

from rota.errors import AgentError, JobFileError, NeverFitsError
from rota.folder import Folder
from rota.live.provider.local import LocalProvider
from rota.live.record import SHUT_DOWN, Record
from rota.live.recovery import attempt_lost, ended, node_changed, reconcile, registered
from rota.live.wire import Message, decode, is_model
from rota.model.allocation import on_node
from rota.model.commands import Command, Launch, Migrate, Resize, Resume, Suspend
from rota.model.decision import take_decision
from rota.model.events import (
    CommandFailed,
    CommandSent,
    Event,
    JobLaunched,
    JobResized,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    ModelReported,
    NodeJoined,
    ResumeRequested,
    RetryDue,
    StopRequested,
    SuspendRequested,
    WorkerReported,
)
from rota.model.job import JobSpec, JobState, Program
from rota.model.jobfile import JobRequest
from rota.model.plan import diff
from rota.model.view import identity
from rota.policy.base import Policy
from rota.store.events import EventStore, Submission

RETRY_S = 5.0  # a failed launch is tried again after so long, times the number of failures
POLICY_RETRY_S = 5.0  # a policy that raised is asked again after so long
LOG_PROGRESS_EVERY_S = 10.0

log = logging.getLogger("rota.controller")


class Channel(Protocol):
    """One agent's connection."""

    async def receive_text(self) -> str: ...
    async def send_text(self, data: str) -> None: ...


class Controller(Record):
    """Owns the cluster's state. All methods run on one event loop, and none waits half-way."""

    def __init__(
        self,
        store: EventStore,
        folder: Folder,
        policy: Policy,
        policy_name: str,
        provider: LocalProvider,
    ) -> None:
        super().__init__(store, folder)
        self.failed = False
        self.stopped = asyncio.Event()  # set when the controller can't go on
        self.policy_name = policy_name
        self.policy_settings: dict[str, Any] = getattr(policy, "settings", {})
        self.resizes: bool = getattr(policy, "resizes", False)
        self._policy = policy
        self._failures: dict[int, int] = {}
        self._unwritten: list[Event] = []
        self._to_send: list[Command] = []
        self._kick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._policy_retry_at_s: float | None = None
        self._provider = provider
        self.ends_jobs = False
        self.state.epoch = store.next_epoch()
        self.state.decision_needed = True

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to decide, and have the node's agent started if none is there."""
        self._task = asyncio.create_task(self._run())
        await self._provider.start()

    def end_jobs(self) -> None:
        """Have :meth:`stop` end all jobs and agents; the jobs start anew afterwards."""
        self.ends_jobs = True

    async def stop(self) -> None:
        """Stop deciding. Jobs, and agents that have any, go on unless they were told to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self.failed and (self.ends_jobs or not self.living()):
            self.ends_jobs = True
            self._tell_agents({"type": "shutdown"})
            await self._provider.wait_for_end(started=bool(self._outboxes))
        else:
            await self._provider.stop()
        if not self.failed:
            self._write_down()
        self.store.close()

    async def _run(self) -> None:
        try:
            while True:
                self.turn()
                self._kick.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._kick.wait(), self._sleep_s())
        except Exception:
            # What is in memory and what is on disk may differ now: only a restart is safe.
            log.critical(
                "the controller stops; jobs go on, and a restart takes over", exc_info=True
            )
            self.failed = True
            self.stopped.set()

    def _sleep_s(self) -> float | None:
        state, times = self.state, list(self.state.backoff.values())
        if state.wake_at_s is not None:
            times.append(state.wake_at_s)
        if self._policy_retry_at_s is not None:
            times.append(self._policy_retry_at_s)
        times += [at_s for _, at_s in self._time_limits()]
        return max(0.0, min(times) - self._clock.now_s()) if times else None

    def turn(self) -> None:
        """One decision, if one is due, and everything that follows from it."""
        if not self.ends_jobs:
            self._advance()
        self._write_down()
        commands, self._to_send = self._to_send, []
        for command in commands:
            self._dispatch(command)

    def _write_down(self) -> None:
        if self._unwritten:
            self.store.append(self._unwritten)
            self._unwritten = []

    def _advance(self) -> None:
        state, now_s = self.state, self._clock.now_s()
        for row in [row for row, at_s in state.backoff.items() if at_s <= now_s]:
            self._note(RetryDue(now_s, row))
        for row, at_s in self._time_limits():
            if at_s <= now_s:
                self._note(StopRequested(now_s, row, JobState.TIMEOUT))
        retry_at_s = self._policy_retry_at_s
        woken = state.wake_at_s is not None and state.wake_at_s <= now_s
        if woken:
            for row in [row for row in state.active if len(state.sizes(row)) > 1]:
                self._write_progress(row, now_s)
        if state.decision_needed or woken or (retry_at_s is not None and retry_at_s <= now_s):
            self._decide(now_s)
        self._to_send = diff(state)
        for command in self._to_send:
            self._note(CommandSent(now_s, command))

    def _decide(self, now_s: float) -> None:
        """Ask the policy. One that fails leaves the last plan in force, and is asked again."""
        self._policy_retry_at_s = None
        try:
            event = take_decision(self.state, self._policy, now_s)
        except Exception:  # a policy is anybody's code
            log.exception("policy %s failed; the last plan stays", identity(self._policy))
            self.state.decision_needed = False
            self.state.wake_at_s = None
            self._policy_retry_at_s = now_s + POLICY_RETRY_S
            return
        self._remember(event)
        self._unwritten.append(event)

    def _time_limits(self) -> list[tuple[int, float]]:
        """(row, time) at which each running job with a limit will have run for that long."""
        state = self.state
        limits = []
        for row in state.active:
            limit_s, since_s = state.spec[row].time_limit_s, state.since_s[row]
            if limit_s is not None and since_s >= 0:
                limits.append((row, since_s + limit_s - state.service_s[row]))
        return limits

    # -- events --------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        """Apply an event; it is written down at the end of the turn."""
        self._apply(event)
        self._unwritten.append(event)
        self._kick.set()

    # -- what users ask ------------------------------------------------------------------------

    def check(self, request: JobRequest) -> None:
        """Refuse a job that can never run here. Raises NeverFitsError or JobFileError."""
        have = self.state.total_gpus
        if self.state.nodes and request.num_gpus > have:
            raise NeverFitsError(
                f"NEVER_FITS: resources.gpus is {request.num_gpus} and this cluster has {have}; "
                f"ask for {have} or fewer"
            )
        most = max((node.num_gpus for node in self.state.nodes if node.alive), default=have)
        if self.state.nodes and request.processes == "node" and request.num_gpus > most:
            raise NeverFitsError(
                f"NEVER_FITS: processes: node needs its GPUs on one node, and no node has "
                f"{request.num_gpus}"
            )

    async def submit(
        self, request: JobRequest, *, user: str, key: str | None, body_hash: str
    ) -> int:
        """Accept a job; its row. The same idempotency key gives the same job.

        When this returns the job is on disk. Raises NeverFitsError, and JobFileError if the key
        was used for another job.
        """
        if key is not None:
            known = self.store.find_submission(user, key)
            if known is not None:
                if known.body_hash != body_hash:
                    raise JobFileError(
                        f"Idempotency-Key {key!r} was used for another job; use a new key"
                    )
                return known.row
        self.check(request)
        row = len(self.state.spec)
        spec = JobSpec(
            job_id=str(row + 1),
            num_gpus=request.num_gpus,
            submit_s=self._clock.now_s(),
            priority=request.priority,
            name=request.name,
            user=user,
            vc=request.queue,
            time_limit_s=request.time_limit_s,
            elastic=request.elastic,
            program=Program(request.run, request.workdir, request.env, request.processes),
        )
        event = JobSubmitted(spec.submit_s, spec)
        submission = Submission(user, key, body_hash, row) if key is not None else None
        self._write_first(event, submission=submission, durable=True)
        return row

    async def cancel(self, row: int) -> None:
        """End a job; nothing happens if it is ending or was cancelled. TransitionError if over."""
        if self.state.state[row] not in (JobState.STOPPING, JobState.CANCELLED):
            self.state.require_open(row, "cancelled")
            self._write_first(StopRequested(self._clock.now_s(), row))

    async def suspend(self, row: int) -> None:
        """Take a job's GPUs away until it is resumed. TransitionError if it is over."""
        self.state.require_open(row, "suspended")
        if row not in self.state.user_suspended:
            self._write_first(SuspendRequested(self._clock.now_s(), row))

    async def resume(self, row: int) -> None:
        """Let a job that its owner suspended go on. TransitionError if it is over."""
        self.state.require_open(row, "resumed")
        if row in self.state.user_suspended:
            self._write_first(ResumeRequested(self._clock.now_s(), row))

    def _write_first(
        self, event: Event, *, submission: Submission | None = None, durable: bool = False
    ) -> None:
        """Write an event that can't be refused down, then apply it. StoreError changes nothing."""
        self.store.append([*self._unwritten, event], submission=submission, durable=durable)
        self._unwritten = []
        self._apply(event)
        self._kick.set()

    # -- agents --------------------------------------------------------------------------------

    async def serve_agent(self, channel: Channel) -> None:
        """Talk to one agent until its connection ends."""
        hello = decode(await channel.receive_text())
        if hello["type"] != "hello":
            raise AgentError(f"an agent began with {hello['type']!r} instead of hello")
        node = hello["node"]
        outbox: asyncio.Queue[Message] = asyncio.Queue()
        self._outboxes[node] = outbox
        self._greet(hello)
        sender = asyncio.create_task(self._send_outbox(channel, outbox))
        try:
            while True:
                self._hear(decode(await channel.receive_text()))
        finally:
            sender.cancel()
            if self._outboxes.get(node) is outbox:
                del self._outboxes[node]

    async def _send_outbox(self, channel: Channel, outbox: asyncio.Queue[Message]) -> None:
        while True:
            await channel.send_text(json.dumps(await outbox.get()))

    def _greet(self, hello: Message) -> None:
        """Take an agent's account of its node, mend what differs, repeat what it may lack."""
        state, now_s, node = self.state, self._clock.now_s(), hello["node"]
        known = state.node_index.get(node)
        if known is not None and state.nodes[known].alive:
            same = (state.nodes[known].num_gpus, state.nodes[known].kind)
            if same != (hello["num_gpus"], hello["kind"]):
                for event in node_changed(state, node, now_s):
                    self._note(event)
        if known is None or not state.nodes[known].alive:
            self._note(NodeJoined(now_s, node, hello["num_gpus"], hello["kind"]))
        findings = reconcile(state, node, hello["attempts"], now_s, self._losses)
        for event in findings.events:
            self._note(event)
        repeated = [
            command
            for command in state.outstanding
            if command is not None and self._node_of(command) == node
        ]
        self.turn()  # what is known now is on disk before anything is said
        self._outboxes[node].put_nowait({"type": "welcome", "epoch": state.epoch})
        for message in findings.forget + findings.kill:
            self._outboxes[node].put_nowait(message)
        for command in repeated:
            self._dispatch(command)

    def _hear(self, message: Message) -> None:
        """Take note of one message from an agent; what is out of date is passed over."""
        kind, now_s = message["type"], self._clock.now_s()
        if kind in ("done", "failed"):
            self._command_answered(message, now_s)
            return
        row = self._rows.get(message["job_id"])
        if row is None or message["attempt"] != self.state.attempt[row]:
            if kind in ("ended", "lost"):
                self._tell_agents({**message, "type": "forget"})
            return
        if kind == "progress":
            self._latest[row] = message["progress"]
            written = (self.state.progress[row] or {}).get("at_s", 0.0)
            if message["progress"]["at_s"] - written >= LOG_PROGRESS_EVERY_S:
                self._write_progress(row, now_s)
        elif not self.state.has_processes(row):
            if kind in ("ended", "lost"):
                self._tell_agents({**message, "type": "forget"})
        elif kind == "registered":
            event = registered(message, row, now_s)
            state = self.state
            known = (state.suspension[row], state.movable[row])
            if event[2:] != (*known, state.resizable[row], state.most_ranks[row]):
                self._note(event)
        elif kind == "resized":
            self._note_size(row, message, now_s)
        elif kind == "model":
            self._note_model(row, message, now_s)
        elif kind in ("ended", "lost"):
            outbox = self._outbox_of(row)
            self._write_progress(row, now_s)
            stopped = self.ends_jobs and (kind == "lost" or message["stop_asked"])
            if stopped and row not in self.state.stop_outcome:
                self._note(attempt_lost(self.state, row, now_s, SHUT_DOWN))
            else:
                self._note(ended(self.state, row, message, now_s, self._losses))
            self.turn()
            if outbox is not None:
                outbox.put_nowait({**message, "type": "forget"})

    def _note_model(self, row: int, message: Message, now_s: float) -> None:
        if is_model(message):
            sizes = (message["model_bytes"], message["largest_tensor_bytes"])
            if sizes != self.model(row):
                self._note(ModelReported(now_s, row, *sizes))

    def _note_size(self, row: int, message: Message, now_s: float) -> None:
        """A job has changed by itself: it has lost a rank, or has had one replaced."""
        state = self.state
        held = state.resizing.get(row) or state.held[row]
        if state.since_s[row] < 0 or held is None or state.outstanding[row] is not None:
            return
        allocation = on_node(held.parts[0][0], sum(1 << gpu for gpu in message["gpus"]))
        cause = message.get("cause", "")
        if allocation.without(held) is None and (cause or allocation != held):
            self._write_progress(row, now_s)
            lost_ranks = message.get("lost_ranks", 0)
            self._note(JobResized(now_s, row, allocation, cause=cause, lost_ranks=lost_ranks))

    def _command_answered(self, message: Message, now_s: float) -> None:
        command_id = message["command_id"]
        row = next((r for r in self.state.unsettled if self._outstanding_id(r) == command_id), None)
        if row is None:
            return
        command = self.state.outstanding[row]
        if message["type"] == "failed":
            self._failures[row] = self._failures.get(row, 0) + 1
            retry_at_s = now_s + RETRY_S * self._failures[row]
            self._note(CommandFailed(now_s, row, command_id, message["error"], retry_at_s))
            return
        # Agents say when it happened; never before the command, never after now.
        at_s = min(max(message["at_s"], self.state.changed_s[row]), now_s)
        if isinstance(command, Launch):
            self._failures.pop(row, None)
            self._note(JobLaunched(at_s, row, command.attempt))
        elif isinstance(command, Suspend):
            self._write_progress(row, now_s)
            self._note(JobSuspended(at_s, row, min(message["stopped_s"], at_s)))
        elif isinstance(command, Resume | Migrate):
            self._failures.pop(row, None)
            self._note(JobResumed(at_s, row))
        elif isinstance(command, Resize):
            self._failures.pop(row, None)
            self._write_progress(row, now_s)
            self._note(JobResized(now_s, row, command.allocation))

    def _outstanding_id(self, row: int) -> int | None:
        command = self.state.outstanding[row]
        return command.command_id if command is not None else None

    def _write_progress(self, row: int, now_s: float) -> None:
        latest = self._latest.get(row)
        if latest and latest != self.state.progress[row]:
            self._note(WorkerReported(now_s, row, latest))

    # -- commands ------------------------------------------------------------------------------

    def _dispatch(self, command: Command) -> None:
        """Send a command to its node; if the agent is away it is repeated at its next hello."""
        state, row = self.state, command.row
        spec = state.spec[row]
        message: Message = {
            "type": "command",
            "kind": type(command).__name__.lower(),
            "command_id": command.command_id,
            "epoch": state.epoch,
            "job_id": spec.job_id,
            "attempt": command.attempt,
        }
        if isinstance(command, Launch | Resume | Migrate | Resize):
            message["gpus"] = [gpu for _, gpus in command.allocation.gpus() for gpu in gpus]
        if isinstance(command, Launch) and spec.program is not None:
            program = spec.program._asdict() | {"env": dict(spec.program.env)}
            message |= {"program": program, "name": spec.name, "at_s": state.changed_s[row]}
            if spec.elastic is not None:
                message["max_gpus"] = spec.elastic.sizes[-1]
        outbox = self._outboxes.get(self._node_of(command) or "")
        if outbox is not None:
            outbox.put_nowait(message)

    def _node_of(self, command: Command) -> str | None:
        place = self.state.held[command.row] or self.state.home[command.row]
        return self.state.nodes[place.nodes()[0]].name if place else None

    def _outbox_of(self, row: int) -> asyncio.Queue[Message] | None:
        place = self.state.held[row] or self.state.home[row]
        return self._outboxes.get(self.state.nodes[place.nodes()[0]].name) if place else None

    def _tell_agents(self, message: Message) -> None:
        for outbox in self._outboxes.values():
            outbox.put_nowait(message)
