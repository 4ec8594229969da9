"""The controller: turns what users and agents say into events, and plans into commands.

One turn: take note of what has come, let the policy decide if something calls for it, derive the
commands, write everything down in one transaction, and only then send the commands.

On a full disk (:mod:`rota.live.controller.room`) nothing is decided and nothing sent that is not
written down; what has come stays in memory, and the controller goes on once there is room.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from rota.errors import AgentError, StoreLostError
from rota.folder import Folder
from rota.live.controller.dispatch import command_message, node_of
from rota.live.controller.hello import check_curve, check_hello
from rota.live.controller.recovery import (
    NODE_CHANGED,
    NODE_GONE,
    SHUT_DOWN,
    attempt_lost,
    end_of_attempt,
    node_left,
    reconcile,
    seats,
)
from rota.live.controller.relay import pass_on, pass_piece_on
from rota.live.controller.room import Room
from rota.live.controller.telemetry import Reports
from rota.live.provider.base import Provider
from rota.live.wire import Message, decode
from rota.model.allocation import Allocation
from rota.model.commands import Command, Launch, Migrate, Resize, Resume, Retune, Stop, Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandFailed,
    CommandSent,
    DecisionTaken,
    Event,
    JobLaunched,
    JobResized,
    JobResumed,
    JobRetuned,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    RetryDue,
    StopRequested,
)
from rota.model.job import JobState
from rota.model.naming import jobs_text
from rota.model.turns import Turns
from rota.model.view import View, identity
from rota.policy.base import Policy, checked
from rota.store.events import EventStore

RETRY_S = 5.0  # a failed launch is tried again after so long, times the number of failures
POLICY_RETRY_S = 5.0  # a policy that raised is asked again after so long
ROOM_EVERY_S = 1.0  # the room on the disk is looked at
# To decide takes longer the more jobs wait. New jobs alone call for no other decision until so many
# times as long has passed as the last one took, or this many seconds.
PACE, MOST_PACE_S = 9.0, 1.0
AWAIT_S = 10.0  # after a start agents of jobs have so long to tell before anything is decided

log = logging.getLogger("rota.controller")
notice = logging.getLogger("rota.notice")  # what whoever has started `rota up` must see as well


class Channel(Protocol):
    """One agent's connection."""

    async def receive(self) -> str | bytes: ...
    async def send(self, data: str | bytes) -> None: ...


class Controller(Reports):
    """Owns the cluster's state. All methods run on one event loop, and none waits half-way."""

    _calls_at_once = True  # whether more than new jobs calls for a decision

    def __init__(
        self,
        store: EventStore,
        folder: Folder,
        policy: Policy,
        policy_name: str,
        provider: Provider,
        room: Room | None = None,
    ) -> None:
        super().__init__(store, folder, room)
        self.policy_name = policy_name
        self._policy = checked(policy)
        self.policy_settings: Mapping[str, Any] = policy.settings
        self.resizes: bool = policy.resizes
        self._failures: dict[int, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._policy_retry_at_s: float | None = None
        self._agents: dict[str, str | None] = {}  # by node: which one is connected, if it has told
        self._paced_until_s = 0.0
        self._awaited: set[str] = set()  # nodes that have yet to say what became of their jobs
        self._await_until_s = 0.0
        self._provider = provider
        self.ends_jobs = False
        self.state.epoch = store.next_epoch()
        self.state.decision_needed = True

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to decide, and have the agents started that are not there."""
        for node in self.state.nodes:
            if node.alive and node.name not in self._provider.names:
                for event in node_left(self.state, node.name, self._clock.now_s(), NODE_GONE):
                    self._note(event)
        self._awaited = {name for row in self.state.active for name in self._names(row)}
        self._await_until_s = self._clock.now_s() + AWAIT_S
        self.room.look()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch_room())]
        await self._provider.start()

    def end_jobs(self) -> None:
        """Begin to end all jobs and agents; ``stopped`` is set when none is left.

        The jobs start anew with the next controller. :meth:`waits_for` tells who is left.
        """
        if not self.ends_jobs:
            self.ends_jobs = True
            self._tell_agents({"type": "shutdown"})
            self._tasks.append(asyncio.create_task(self._end_all()))

    async def _end_all(self) -> None:
        try:
            await self._provider.end()
        except Exception as error:
            log.critical("the controller stops before all jobs have ended", exc_info=True)
            self.give_up(str(error))
        self.stopped.set()

    def waits_for(self) -> dict[str, Any]:
        """Who has yet to end: ``jobs`` that have processes, and nodes with live ``agents``."""
        return {
            "jobs": [
                {"id": spec.job_id, "name": spec.name, "node": self.state_on(row)}
                for row, spec in enumerate(self.state.spec)
                if self.state.has_processes(row)
            ],
            "agents": sorted(self._provider.alive),
        }

    async def stop(self) -> None:
        """Stop deciding. Jobs, and agents that have any, go on unless they were told to end.

        Those that were told to, and have yet to, go on ending.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not (self.failed or self.ends_jobs or self.living()):
            self.ends_jobs = True
            self._tell_agents({"type": "shutdown"})
            await self._provider.wait_for_end(connected=set(self._outboxes))
        else:
            await self._provider.stop()
        if not self.failed:
            self._write_again_s = 0.0
            if not self._write_down():
                log.error("%d events had no room on the disk", len(self._unwritten))
        if self.ends_jobs:
            self.room.remove()
        self.store.close()

    async def _run(self) -> None:
        try:
            while True:
                self.turn()
                self._kick.clear()
                # Not wait_for: where both come at once, that one forgets that it was cancelled.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._sleep_s()):
                        await self._kick.wait()
        except StoreLostError:
            return  # it has given up
        except Exception as error:
            # What is in memory and what is on disk may differ now: only a restart is safe.
            log.critical(
                "the controller stops; jobs go on, and a restart takes over", exc_info=True
            )
            self.give_up(str(error))

    async def _watch_room(self) -> None:
        """Look at the room on the disk, and have a turn taken that may find some."""
        while True:
            await asyncio.sleep(ROOM_EVERY_S)
            if self.room.look() or self._unwritten:
                self._kick.set()

    def _sleep_s(self) -> float | None:
        if self._unwritten or self.ends_jobs:
            return None
        if self._awaits():
            return max(0.0, self._await_until_s - self._clock.now_s())
        state, times = self.state, list(self.state.backoff.values())
        if state.wake_at_s is not None and not self.room.is_tight:
            times.append(state.wake_at_s)
        if self._policy_retry_at_s is not None and not self.room.is_tight:
            times.append(self._policy_retry_at_s)
        if state.decision_needed and not self.room.is_tight:
            times.append(self._paced_until_s)
        times += [at_s for _, at_s in self._time_limits()]
        return max(0.0, min(times) - self._clock.now_s()) if times else None

    def turn(self) -> None:
        """One decision, if one is due, and everything that follows from it."""
        if self._write_again_s and not self._write_down():
            return
        if not (self.ends_jobs or self._awaits()):
            self._advance()
        self._write_down()

    def _apply(self, event: Event) -> None:
        """Apply an event, and note whether a decision can wait for more of its kind."""
        state = self.state
        called, state.decision_needed = state.decision_needed, False
        super()._apply(event)
        if state.decision_needed and not isinstance(event, JobSubmitted):
            self._calls_at_once = True
        state.decision_needed |= called

    def _awaits(self) -> bool:
        """Whether agents have yet to tell which jobs ended while there was no controller."""
        return bool(self._awaited) and self._clock.now_s() < self._await_until_s

    def _advance(self) -> None:
        state, now_s = self.state, self._clock.now_s()
        for row in [row for row, at_s in state.backoff.items() if at_s <= now_s]:
            self._note(RetryDue(now_s, row))
        for row, at_s in self._time_limits():
            if at_s <= now_s:
                self._note(StopRequested(now_s, row, JobState.TIMEOUT))
        if not self.room.is_tight:
            self._decide_if_due(now_s)
        commands = diff(state)
        if self.room.is_tight:  # what runs may end or take its turn, nothing begins
            commands = [each for each in commands if not isinstance(each, Launch)]
        for command in commands:
            self._note(CommandSent(now_s, command))
            self._once_written.append(partial(self._dispatch, command))
        for command in commands:
            self._write_sharers(command.row, now_s)

    def _decide_if_due(self, now_s: float) -> None:
        state, retry_at_s = self.state, self._policy_retry_at_s
        woken = state.wake_at_s is not None and state.wake_at_s <= now_s
        if woken:
            for row in list(state.active):
                if len(state.sizes(row)) > 1 or state.spec[row].adapt is not None:
                    self._write_progress(row, now_s)
        called = state.decision_needed and (self._calls_at_once or self._paced_until_s <= now_s)
        if called or woken or (retry_at_s is not None and retry_at_s <= now_s):
            self._decide(now_s)
            self._calls_at_once = False
            took_s = self._clock.now_s() - now_s
            self._paced_until_s = now_s + took_s + min(PACE * took_s, MOST_PACE_S)

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
        self._unwritten.append(event)
        self._log_warnings(event)

    def _log_warnings(self, event: DecisionTaken) -> None:
        """Log what the policy warns of for the first time: policies are pure, and can't do it."""
        told: dict[str, list[int]] = {}
        for row in event.notes.warnings if event.notes is not None else ():
            for since_s, warning in self.state.notes.warned.get(row, {}).values():
                if since_s >= event.at_s:
                    told.setdefault(warning, []).append(row)
        for warning, rows in told.items():
            log.warning("%s: %s", jobs_text(self.state.ids(rows)), warning)

    def turns(self, row: int) -> Turns | None:
        """Who takes turns where the job lives, if the policy tells that."""
        if row not in self.state.active:
            return None
        try:
            return self._policy.turns(View(self.state, self._clock.now_s(), self._policy), row)
        except Exception:  # a policy is anybody's code
            log.exception("policy %s can't tell whose turn it is", identity(self._policy))
            return None

    def _time_limits(self) -> list[tuple[int, float]]:
        """(row, time) at which each running job with a limit will have run for that long."""
        state = self.state
        limits = []
        for row, limit_s in self._limits_s.items():
            since_s = state.since_s[row]
            if row not in state.active or since_s < 0:
                continue
            # While an agent has yet to tell whether the job has run on, nobody knows how long.
            if self._awaited.isdisjoint(self._names(row)):
                limits.append((row, since_s + limit_s - state.service_s[row]))
        return limits

    # -- agents --------------------------------------------------------------------------------

    async def serve_agent(self, channel: Channel) -> None:
        """Talk to one agent until its connection ends.

        Raises AgentError for one whose account of its node is not sound, after it has been told
        what is wrong: nothing of that account counts.
        """
        try:
            hello, curves = await self._hear_hello(channel)
        except AgentError as error:
            await channel.send(json.dumps({"type": "rejected", "error": str(error)}))
            raise
        node = hello["node"]
        outbox: asyncio.Queue[Message | bytes] = asyncio.Queue()
        self._outboxes[node], self._agents[node] = outbox, hello.get("agent")
        sender = asyncio.create_task(self._send_outbox(channel, outbox))
        try:
            for curve in curves:
                self._note_curve(curve, self._clock.now_s())
            self._greet(hello)
            while True:
                frame = await channel.receive()
                if isinstance(frame, bytes):
                    pass_piece_on(self, node, frame)
                else:
                    self._hear(node, decode(frame))
        finally:
            sender.cancel()
            if self._outboxes.get(node) is outbox:
                del self._outboxes[node], self._agents[node]

    async def _hear_hello(self, channel: Channel) -> tuple[Message, list[Message]]:
        """What an agent begins with: its hello, and the curves that it told before. AgentError."""
        curves = []
        while (hello := decode(await channel.receive()))["type"] == "curve":
            check_curve(hello)
            curves.append(hello)
        check_hello(hello, self._provider.names)
        node, agent = hello["node"], hello.get("agent")
        known = self._agents.get(node)
        if agent is not None and known is not None and agent != known:
            raise AgentError(f"node: another agent of {node} is connected; a node has one")
        return hello, curves

    async def _send_outbox(self, channel: Channel, outbox: asyncio.Queue[Message | bytes]) -> None:
        while True:
            message = await outbox.get()
            await channel.send(message if isinstance(message, bytes) else json.dumps(message))

    def _greet(self, hello: Message) -> None:
        """Take an agent's account of its node, mend what differs, repeat what it may lack."""
        state, now_s, node = self.state, self._clock.now_s(), hello["node"]
        known, gpu_type = state.node_index.get(node), hello.get("gpu_type", "")
        if known is not None and state.nodes[known].alive:
            before = state.nodes[known]
            same = (before.num_gpus, before.kind, before.gpu_type)
            if same != (hello["num_gpus"], hello["kind"], gpu_type):
                for event in node_left(state, node, now_s, NODE_CHANGED):
                    self._note(event)
        if known is None or not state.nodes[known].alive:
            gpus, gb = (hello["num_gpus"], hello["kind"], gpu_type), hello.get("memory_gb", 0.0)
            self._note(NodeJoined(now_s, node, *gpus, memory_gb=gb))
        attempts = self._disown_foreign(node, hello["attempts"])
        for attempt in attempts:
            row = self.rows.get(attempt["job_id"])
            if row is not None and self._is_present(node, row, attempt["attempt"]):
                self._note_last_report(row, attempt)
                self._write_progress(row, now_s)
        findings = reconcile(state, node, attempts, now_s, self._losses, self._last_node)
        for event in findings.events:
            self._note(event)
        repeated = [
            command
            for command in state.outstanding
            if command is not None and node_of(state, command) == node
        ]
        self._awaited.discard(node)
        # What is known now is on disk before anything is said.
        say = self._outboxes[node].put_nowait
        self._once_written.append(partial(say, {"type": "welcome", "epoch": state.epoch}))
        for message in findings.forget + findings.kill + findings.drop:
            self._once_written.append(partial(say, message))
        for name, message in findings.left:
            self._tell_once_written(name, message)
        if self.ends_jobs:
            self._once_written.append(partial(say, {"type": "shutdown"}))
            repeated = []
        for command in repeated:
            self._once_written.append(partial(self._dispatch, command))
        self.turn()

    def _disown_foreign(self, node: str, attempts: list[Message]) -> list[Message]:
        """The attempts on a node that are of this log; the agent is told to end the others."""
        own = []
        for message in attempts:
            if not self.is_foreign(message):
                own.append(message)
                continue
            about = {key: message[key] for key in ("job_id", "attempt", "launch")}
            self.tell(node, {"type": "disown", **about})
            if message["type"] in ("alive", "arriving"):
                folder = self._folder.attempt(node, about["job_id"], about["attempt"])
                notice.warning(
                    "attempt %s of a job %s runs on node %s, and this event log knows nothing of "
                    "it: it is ended; what it has left is in %s",
                    *(about["attempt"], about["job_id"], node, folder),
                )
        return own

    def _hear(self, node: str, message: Message) -> None:
        """Take note of one message from a node's agent; what is out of date is passed over."""
        kind, now_s = message["type"], self._clock.now_s()
        if kind in ("done", "failed"):
            self._command_answered(message, now_s)
            return
        if kind in ("fetch", "fetched"):
            pass_on(self, node, message)
            return
        if kind == "curve":
            self._note_curve(message, now_s)
            return
        if kind == "set_aside":
            notice.warning("node %s: %s", node, message["what"])
            return
        if self.is_foreign(message):  # it is being ended
            return
        row = self.rows.get(message["job_id"])
        if not self._is_present(node, row, message["attempt"]):
            if kind in ("ended", "lost"):  # known, but maybe not written down yet
                self._tell_once_written(node, {**message, "type": "forget"})
                self._write_down()
            return
        assert row is not None
        if kind in ("ended", "lost"):
            self._note_end(row, node, message, now_s)
        else:
            self._note_report(row, message, now_s)

    def _note_end(self, row: int, node: str, message: Message, now_s: float) -> None:
        """An attempt has ended or is lost: written down, and its agents told so."""
        others = [name for name in self._names(row) if name != node]
        self._note_last_report(row, message)
        self._write_progress(row, now_s)
        self._write_sharers(row, now_s)
        stopped = self.ends_jobs and (message["type"] == "lost" or message["stop_asked"])
        if stopped and row not in self.state.stop_outcome:
            self._note(attempt_lost(self.state, row, now_s, SHUT_DOWN))
        else:
            for end in end_of_attempt(self.state, row, node, message, now_s, self._losses):
                self._note(end)
        self._tell_once_written(node, {**message, "type": "forget"})
        for other in others:  # it was on its way there, or had just come from there
            self._tell_once_written(other, {**message, "type": "drop"})
        self.turn()

    def _names(self, row: int) -> list[str]:
        """The nodes that may have the job's attempt; see :func:`~.recovery.seats`."""
        return [self.state.nodes[index].name for index in seats(self.state, row)]

    def _is_present(self, node: str, row: int | None, attempt: int) -> bool:
        """Whether what this node says of an attempt is about the one that there is."""
        if row is None or attempt != self.state.attempt[row]:
            return False
        return self.state.has_processes(row) and node in self._names(row)

    def _command_answered(self, message: Message, now_s: float) -> None:
        command_id = message["command_id"]
        row = next((r for r in self.state.unsettled if self._outstanding_id(r) == command_id), None)
        if row is None:
            return
        command = self.state.outstanding[row]
        if "job_id" in message and (
            message["job_id"] != self.state.spec[row].job_id or self.is_foreign(message)
        ):  # numbers of commands begin anew with another log, or go back with an older copy
            return
        if message["type"] == "failed":
            if not isinstance(command, Retune):  # which says nothing of how launches go
                self._failures[row] = self._failures.get(row, 0) + 1
            self._early_sizes.pop(row, None)
            retry_at_s = now_s + RETRY_S * self._failures.get(row, 1)
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
            former = self.state.home[row]
            self._note(JobResumed(at_s, row))
            self._note_early_size(row, now_s)
            if isinstance(command, Migrate) and former is not None:
                for name, message in self._drops(row, former, command.allocation):
                    self._tell_once_written(name, message)
                self.turn()  # first on disk that it is elsewhere
        elif isinstance(command, Resize):
            self._failures.pop(row, None)
            self._write_progress(row, now_s)
            self._note(JobResized(now_s, row, command.allocation))
        elif isinstance(command, Retune):
            self._write_progress(row, now_s)
            self._note(JobRetuned(now_s, row, command.batch))

    def _outstanding_id(self, row: int) -> int | None:
        command = self.state.outstanding[row]
        return command.command_id if command is not None else None

    # -- commands ------------------------------------------------------------------------------

    def _dispatch(self, command: Command) -> None:
        """Send a command to its node; if the agent is away it is repeated at its next hello.

        One that is no longer awaited is not sent: it may have waited for room on the disk.
        """
        if self._outstanding_id(command.row) != command.command_id:
            return
        home, held = self.state.home[command.row], self.state.held[command.row]
        if isinstance(command, Stop) and home is not None and held is not None:
            for name, message in self._drops(command.row, held, home):
                self.tell(name, message)
        self.tell(node_of(self.state, command) or "", command_message(self, command))

    def _drops(self, row: int, place: Allocation, other: Allocation) -> list[tuple[str, Message]]:
        """What has nothing of the job kept where it is not, or is not going to, any more."""
        about = {"job_id": self.state.spec[row].job_id, "attempt": self.state.attempt[row]}
        left = set(place.nodes()) - set(other.nodes())
        return [(self.state.nodes[index].name, {"type": "drop", **about}) for index in left]

    def _tell_once_written(self, node: str, message: Message) -> None:
        """Tell an agent something at the end of the next turn: by then it is on disk."""
        self._once_written.append(partial(self.tell, node, message))

    def _tell_agents(self, message: Message) -> None:
        for outbox in self._outboxes.values():
            outbox.put_nowait(message)
