"""Conversations with agents: their accounts, answers and reports, and commands to them."""

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from rota import __version__
from rota.errors import AgentError
from rota.folder import MEMBERSHIP
from rota.live.controller.dispatch import command_message, node_of
from rota.live.controller.gangs import Gangs
from rota.live.controller.journal import Journal
from rota.live.controller.leases import MARGIN_S, SILENT_S, Leases
from rota.live.controller.outboxes import Outbox, process_of
from rota.live.controller.questions import Questions
from rota.live.controller.record import CLAIM_S, Host, NodeClaim, Record
from rota.live.controller.recovery import (
    NODE_CHANGED,
    RETRY_S,
    SHUT_DOWN,
    attempt_lost,
    end_of_attempt,
    has_copy,
    parking_failed,
    reconcile,
    seats,
)
from rota.live.controller.relay import pass_on, pass_piece_on
from rota.live.controller.supply import Supply
from rota.live.controller.telemetry import Telemetry
from rota.live.controller.tickets import Tickets
from rota.live.wire import VERSION, Message, clock, decode
from rota.live.wire.frames import Parts, frames_of
from rota.live.wire.messages import FROM_AGENT, MAX_SENTENCE, check_from_agent
from rota.model.allocation import Allocation
from rota.model.commands import (
    Command,
    Launch,
    Migrate,
    Park,
    Resize,
    Resume,
    Retune,
    SetCpus,
    Stop,
    Suspend,
)
from rota.model.events import (
    CommandFailed,
    CpusSet,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResized,
    JobResumed,
    JobRetuned,
    JobSuspended,
    NodeAddressChanged,
    NodeCpusChanged,
    NodeJoined,
    NodeReachable,
)
from rota.model.job import JobState
from rota.store.members import Members

AFFINITY = "affinity"  # holds jobs to whole CPU cores
NOT_HELD = "not held"  # to their CPU cores: jobs of agents that do not tell by what
IF_COPIED = (
    f"If its folder is a copy of that machine's, remove {MEMBERSHIP} in it, and join with a new "
    "line of `rota node invite` under another name"
)
SPANS = 3  # since this version of their messages the ranks of gangs over several nodes meet as now

log = logging.getLogger("rota.controller")
notice = logging.getLogger("rota.notice")  # shown to whoever has started `rota up` as well


class Channel(Protocol):
    """One agent's connection."""

    async def receive(self) -> str | bytes: ...
    async def send(self, data: str | bytes) -> None: ...


class AgentSessions:
    """One conversation with each connected agent. Their reports go to the journal.

    ``awaited`` are nodes whose agents have yet to report what became of their jobs. With
    ``ends_jobs`` all jobs and agents are to end.
    """

    def __init__(
        self,
        record: Record,
        journal: Journal,
        telemetry: Telemetry,
        questions: Questions,
        supply: Supply,
        members: Members,
        leases: Leases,
        tickets: Tickets,
        turn: Callable[[], None],
    ) -> None:
        self._record, self._journal, self._telemetry = record, journal, telemetry
        self._questions, self._members, self._leases = questions, members, leases
        self._supply, self._turn, self._state = supply, turn, record.state
        self._tickets = tickets
        self._outboxes = record.outboxes
        self._failures: dict[int, int] = {}  # of launches, one after another, by row
        self._num_connections = 0  # so far
        self._latest: dict[str, int] = {}  # by node: the number of the latest that has said hello
        self.gangs = Gangs(record, self._tell_once_written, self._has_stopped, self._repeat)
        self.own_reach = ""  # the address of this machine for others, if they can call
        self.awaited: set[str] = set()
        self.ends_jobs = False

    def end_jobs(self) -> None:
        """Tell all agents, present and future ones, to end their jobs and themselves."""
        self.ends_jobs = True
        self._outboxes.tell_all({"type": "shutdown"})

    async def serve_agent(self, channel: Channel, member: str = "", address: str = "") -> None:
        """Talk to one agent until its connection ends.

        ``member`` is the node for which an agent that has joined has shown its token, and
        ``address`` where it calls from; "" for an agent of this machine.
        Raises AgentError if its account of its node has a fault, after telling it the fault:
        nothing of that account counts.
        """
        self._num_connections += 1
        number = self._num_connections
        parts = Parts()
        try:
            hello, curves = await self._hear_hello(channel, parts, member, address)
            self._check_latest(hello["node"], number)
        except (AgentError, OSError) as error:
            if member not in self._outboxes.queues:
                self._note_ended(member, error)
            if isinstance(error, OSError):
                raise
            await channel.send(json.dumps({"type": "rejected", "error": str(error)}))
            raise
        node = hello["node"]
        outbox = self._outboxes.open(node, process_of(hello))
        sender = asyncio.create_task(self._send_outbox(channel, outbox))
        try:
            for curve in curves:
                self._note_curve(node, curve, self._record.now_s())
            self._greet(hello, address)
            self._questions.came(node)
            while True:
                if (frame := parts.whole(await self._next_frame(channel, member))) is None:
                    continue
                if self._outboxes.queues.get(node) is not outbox:
                    raise AgentError(f"node: this connection of {node} is no longer in use")
                if isinstance(frame, bytes):
                    pass_piece_on(self._record, node, frame)
                else:
                    self._hear(node, decode(frame))
        except (AgentError, OSError) as error:
            if self._outboxes.queues.get(node) is outbox:
                self._note_ended(node, error)
            raise
        finally:
            sender.cancel()
            self._outboxes.close(node, outbox)
            self._questions.left(node)

    def _note_ended(self, node: str, error: Exception) -> None:
        """Keep the reason why a node's connection has ended, for the lists of nodes."""
        if node:
            why = (str(error) or "it broke")[:MAX_SENTENCE]
            self._record.disconnected[node] = self._record.now_s(), why

    async def _hear_hello(
        self, channel: Channel, parts: Parts, member: str, address: str
    ) -> tuple[Message, list[Message]]:
        """Receive an agent's hello, and the curves sent before it. Raises AgentError."""
        curves, hello = [], None
        while hello is None:
            if (frame := parts.whole(await channel.receive())) is None:
                continue
            hello = decode(frame)
            if hello["type"] == "curve":
                check_from_agent(hello)
                curves.append(hello)
                hello = None
        if hello["type"] != "hello":
            wanted = "hello, after curves"
            raise AgentError(f"type: {hello['type']!r:.80} can't be used; it must be {wanted}")
        _check_version(hello)
        check_from_agent(hello)
        self._check_place(hello["node"], member)
        self._supply.check(hello)
        if self._supply.is_given_up(hello):
            await channel.send(json.dumps({"type": "shutdown"}))
            raise AgentError(f"node: {hello['node']} was given up, and its agent is to end")
        self._check_machine(hello, member, address)
        if member:
            await self._end_what_runs_on_other_devices(channel, hello)
        return hello, curves

    def _check_machine(self, hello: Message, member: str, address: str) -> None:
        """Refuse an agent whose node another agent or machine has. Raises AgentError."""
        node, agent = hello["node"], process_of(hello)
        known = self._outboxes.agents.get(node)
        is_other = bool(member) and self._is_other_machine(hello)
        if is_other:
            self._note_claim(node, address)
        if agent is not None and known is not None and agent != known:
            copied = f". {IF_COPIED}" if is_other else ""
            raise AgentError(f"node: another agent of {node} is connected; a node has one{copied}")
        if is_other:
            lasts_s = self._leases.lasts_s + MARGIN_S
            end = f"has not been heard for {lasts_s:g} s" if lasts_s < math.inf else "is removed"
            raise AgentError(
                f"node: {node} is another machine, or this one before it was started anew. Jobs "
                f"may run there until it {end}; this agent waits. {IF_COPIED}"
            )

    async def _end_what_runs_on_other_devices(self, channel: Channel, hello: Message) -> None:
        """Refuse an agent that offers other devices than before while it has jobs on those.

        It is told to end them; they start anew once it has. Raises AgentError.
        """
        if not self._has_changed(hello):
            return
        going_on = [each for each in hello["attempts"] if each["type"] in ("alive", "arriving")]
        for each in going_on:
            about = {"job_id": each["job_id"], "attempt": each["attempt"]}
            await channel.send(json.dumps({"type": "kill", **about, "why": NODE_CHANGED}))
        for each in hello.get("guests", []):
            about = {"job_id": each["job_id"], "attempt": each["attempt"]}
            await channel.send(json.dumps({"type": "drop", **about}))
        if count := len(going_on) + len(hello.get("guests", [])):
            raise AgentError(
                f"num_gpus: node {hello['node']} offers other devices than before; its {count} "
                f"job{'s'[: count != 1]} there end first"
            )

    def _has_changed(self, hello: Message) -> bool:
        """True if a node that is there offers other devices than before."""
        index = self._state.node_index.get(hello["node"])
        if index is None or not self._state.nodes[index].alive:
            return False
        before = self._state.nodes[index]
        now = hello["num_gpus"], hello["kind"], hello.get("gpu_type", "")
        return (before.num_gpus, before.kind, before.gpu_type) != now

    async def _next_frame(self, channel: Channel, member: str) -> str | bytes:
        """The next frame of an agent. Raises AgentError if one of another machine falls silent."""
        if not member:
            return await channel.receive()
        presence, before_s = self._leases.presence, -1.0
        while presence.absent_s != before_s:  # messages that came meanwhile are yet to be read
            before_s = presence.absent_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENT_S):
                    return await channel.receive()
            presence.at(clock.boottime_s())
        raise AgentError(f"node: {member} has not been heard for {SILENT_S:g} s")

    def _check_place(self, node: str, member: str) -> None:
        """Refuse an agent that has not shown its node's token. Raises AgentError."""
        if member in self._members.leaving:
            raise AgentError(f"node: {member} was removed from this cluster")
        if member and node != member:
            raise AgentError(f"node: {node!r:.80} can't be used; this agent's token is {member}'s")
        if not member and node in self._members.names:
            raise AgentError(f"node: {node} is a machine that has joined, and shows its own token")

    def _is_other_machine(self, hello: Message) -> bool:
        """True if jobs of the node may run on another machine than the one that says hello.

        Until the node is lost they may run on the machine that had the node last, in the same boot.
        An older agent has not told its machine. Where leases last for ever a new boot is let in.
        """
        node = hello["node"]
        before = self._record.hosts.get(node)
        if before is None or not before.machine or self._is_lost(node):
            return False
        lives_on = hello.get("boot_id", "") == before.boot_id or self._leases.lasts_s == math.inf
        return not (lives_on and hello.get("machine", "") == before.machine)

    def _note_claim(self, node: str, address: str) -> None:
        """Take note of another machine that says it is a node, and tell of it once."""
        now_s, last = self._record.now_s(), self._record.claims.get(node)
        self._record.claims[node] = NodeClaim(address, now_s)
        if last is None or last.address != address or now_s - last.at_s >= CLAIM_S:
            notice.warning("node %s: another machine, at %s, says that it is this node; it waits "
                           "until the node is lost", node, address)  # fmt: skip

    def _check_latest(self, node: str, number: int) -> None:
        """Refuse a hello that arrives after that of a later connection. Raises AgentError.

        Its agent has left that connection already; it must not replace the one in use.
        """
        if self._latest.get(node, 0) > number:
            raise AgentError(f"node: a later connection of {node} has said hello already")
        self._latest[node] = number

    async def _send_outbox(self, channel: Channel, outbox: Outbox) -> None:
        while True:
            message = await outbox.get()
            try:
                frames = frames_of(message)
            except AgentError as error:
                log.error("not sent: %s", error)
                continue
            for frame in frames:
                await channel.send(frame)

    def _greet(self, hello: Message, address: str) -> None:
        """Take an agent's account of its node, mend differences, repeat what it may lack."""
        state, now_s, node = self._state, self._record.now_s(), hello["node"]
        known, gpu_type = state.node_index.get(node), hello.get("gpu_type", "")
        reach = address or self.own_reach if hello.get("wire", 1) >= SPANS else ""
        machine = hello.get("machine", ""), hello.get("boot_id", "")
        if self._has_changed(hello):
            self._journal.lose_node(node, now_s, NODE_CHANGED)
        if known is None or not state.nodes[known].alive:
            gpus, gb = (hello["num_gpus"], hello["kind"], gpu_type), hello.get("memory_gb", 0.0)
            host = (hello.get("millicores", 0), hello.get("host_memory_gb", 0.0))
            place = address, hello.get("build", ""), reach
            joined = NodeJoined(now_s, node, *gpus, "", 0, gb, *host, *place, *machine)
            self._journal.note(joined._replace(whole_cores=hello.get("held_by") == AFFINITY))
        else:
            if "millicores" in hello:
                self._note_cpus(node, hello, now_s)
            if (address, reach) != (self._record.hosts[node].address, state.nodes[known].reach):
                self._journal.note(NodeAddressChanged(now_s, node, address, reach))
        if state.node_index[node] in state.unreachable:
            self._journal.note(NodeReachable(now_s, node))
        self._record.heard_s[node] = now_s
        self._record.claims.pop(node, None)
        self._record.hosts[node] = Host(address, hello.get("build", ""), reach, *machine)
        self._record.held_by[node] = hello.get("held_by") or NOT_HELD
        attempts = self._disown_foreign(node, hello["attempts"])
        for attempt in attempts:
            row = self._record.rows.get(attempt["job_id"])
            if row is not None and self._is_present(node, row, attempt["attempt"]):
                self._catch_up(node, attempt, now_s)
                self._telemetry.note_last_report(row, attempt)
                self._telemetry.write_progress(row, now_s)
        rows = self._record.on_node.rows(state.node_index[node])
        last_node = self._record.last_node
        findings = reconcile(state, node, attempts, now_s, self._record.losses, last_node, rows)
        self._record.process_counts.conflicts += len(findings.kill) + len(findings.drop)
        for event in findings.events:
            self._journal.note(event)
        repeated = [
            command
            for row in rows
            if (command := state.outstanding[row]) is not None and node_of(state, command) == node
        ]
        self.awaited.discard(node)
        # What is known now is on disk before anything is said.
        listens = self._tickets.came(node, address, hello.get("data_port"))
        welcome = {"type": "welcome", "epoch": state.epoch, "reach": reach, **listens}
        self._tell_once_written(node, welcome)
        for message in findings.forget + findings.kill + findings.drop:
            self._tell_once_written(node, message)
        for name, message in findings.left:
            self._tell_once_written(name, message)
        guests = hello.get("guests", [])
        self.gangs.check_guests(node, guests)
        going_on = [each for each in attempts if each["type"] in ("alive", "arriving")]
        there = {(each["job_id"], each["attempt"]) for each in (*going_on, *guests)}
        self.gangs.came(node, there)
        if self.ends_jobs:
            self._tell_once_written(node, {"type": "shutdown"})
            repeated = []
        # What is to be killed may go on from here on, if its lease was over.
        self._journal.once_written.append(partial(self._renew_lease, node, hello))
        for command in repeated:
            self._journal.once_written.append(partial(self.dispatch, command))
        for row in self._tickets.leaving(node):
            self._journal.once_written.append(partial(self._tickets.give, row))
        self._turn()

    def _renew_lease(self, node: str, message: Message) -> None:
        """Answer an agent that asks for its node's lease to be renewed."""
        if (asked_s := message.get("asked_s")) is None:
            return
        if not self._members.stays(node):
            return
        self._leases.renew(node, clock.boottime_s())
        lasts_s = self._leases.lasts_s if self._leases.lasts_s < math.inf else None
        lease = {"type": "lease", "asked_s": asked_s, "lasts_s": lasts_s}
        self._outboxes.tell(node, lease | {"now_s": self._record.now_s()})

    def _disown_foreign(self, node: str, attempts: list[Message]) -> list[Message]:
        """The attempts on a node that belong to this log; the agent is told to end the others."""
        own = []
        for message in attempts:
            if not self._record.is_foreign(message):
                own.append(message)
                continue
            about = {key: message[key] for key in ("job_id", "attempt", "launch")}
            self._outboxes.tell(node, {"type": "disown", **about})
            if message["type"] in ("alive", "arriving"):
                notice.warning(
                    "attempt %s of a job %s runs on node %s, and this event log knows nothing of "
                    "it: it is ended; what it has left stays there, and the agent's log says where",
                    *(about["attempt"], about["job_id"], node),
                )
        return own

    def _hear(self, node: str, message: Message) -> None:
        """Handle one message from a node's agent; out-of-date messages are ignored.

        So are messages about what is not on this node, and kinds that a newer agent may tell.
        Raises AgentError for a message that does not match its declaration.
        """
        check_from_agent(message)
        kind, now_s = message["type"], self._record.now_s()
        self._record.heard_s[node] = now_s
        if kind == "beat":
            if self._is_lost(node):  # its jobs may have started elsewhere: they must not go on
                raise AgentError(f"node: {node} is lost by now, and is to say hello anew")
            self._renew_lease(node, message)
            return
        if kind not in FROM_AGENT:
            return
        if kind in ("done", "failed"):
            self._command_answered(node, message, now_s)
            return
        if kind == "answer":
            self._questions.answered(node, message)
            return
        if kind in ("fetch", "fetched"):
            pass_on(self._record, node, message)
            return
        if kind == "relay":
            self.gangs.pass_on(node, message)
            return
        if kind == "gone":
            self.gangs.gone(node, message)
            return
        if kind == "curve":
            self._note_curve(node, message, now_s)
            return
        if kind == "cores":
            self._note_cores(node, message, now_s)
            return
        if kind == "vitals":
            self._record.vitals[node] = message
            return
        if kind == "set_aside":
            notice.warning("node %s: %s", node, message["what"])
            return
        if self._record.is_foreign(message):  # the attempt is being ended
            return
        row = self._record.rows.get(message["job_id"])
        if not self._is_present(node, row, message["attempt"]):
            if kind in ("ended", "lost"):  # known, but maybe not written down yet
                self._tell_once_written(node, {**message, "type": "forget"})
                self._journal.write_down()
            return
        assert row is not None
        if kind in ("ended", "lost"):
            self._note_end(row, node, message, now_s)
        else:
            self._telemetry.note_report(row, message, now_s)

    def _note_curve(self, node: str, message: Message, now_s: float) -> None:
        """Keep a trial's reports, if its attempt was on this node last or may be there now."""
        row = self._record.rows.get(message["job_id"])
        if row is None:
            return
        last = self._record.node_of(row, message["attempt"])
        if last == node or self._is_present(node, row, message["attempt"]):
            self._telemetry.note_curve(message, now_s)

    def _note_cores(self, node: str, message: Message, now_s: float) -> None:
        """Write down that a node has other cores, or tell how jobs are held to theirs now."""
        before = self._record.held_by.get(node)
        self._record.held_by[node] = message["held_by"]
        if message["held_by"] != before:
            text = "node %s: jobs are held to their CPU cores by %s now: %s"
            notice.warning(text, node, message["held_by"], message.get("why", ""))
        if self._note_cpus(node, message, now_s):
            self._turn()

    def _note_cpus(self, node: str, message: Message, now_s: float) -> bool:
        """Write down that a node has other cores, or holds jobs to them otherwise; True if so."""
        known = self._state.nodes[self._state.node_index[node]]
        has = (message["millicores"], message.get("held_by") == AFFINITY)
        if has == (known.millicores, known.whole_cores):
            return False
        self._journal.note(NodeCpusChanged(now_s, node, *has))
        return True

    def _note_end(self, row: int, node: str, message: Message, now_s: float) -> None:
        """Write down that an attempt has ended or is lost, and tell its agents."""
        self._catch_up(node, message, now_s)
        if has_copy(self._state, row, node):
            self._journal.note(parking_failed(self._state, row, now_s, message))
            self._tell_once_written(node, {**message, "type": "forget"})
            self._turn()
            return
        others = [name for name in self.seats_of(row) if name != node]
        self._telemetry.note_last_report(row, message)
        self._telemetry.write_progress(row, now_s)
        self._telemetry.write_sharers(row, now_s)
        stopped = self.ends_jobs and (message["type"] == "lost" or message["stop_asked"])
        if stopped and row not in self._state.stop_outcome:
            self._journal.note(attempt_lost(self._state, row, now_s, SHUT_DOWN))
        else:
            for end in end_of_attempt(self._state, row, node, message, now_s, self._record.losses):
                self._journal.note(end)
        self._tell_once_written(node, {**message, "type": "forget"})
        for other in others:  # the job was moving there, or had just moved from there
            self._tell_once_written(other, {**message, "type": "drop"})
        self._turn()

    def seats_of(self, row: int) -> list[str]:
        """The nodes that may have the job's attempt; see :func:`~.recovery.seats`."""
        return [self._state.nodes[index].name for index in seats(self._state, row)]

    def _is_present(self, node: str, row: int | None, attempt: int) -> bool:
        """True if this node's report is about the job's present attempt."""
        if row is None or attempt != self._state.attempt[row]:
            return False
        return self._state.has_processes(row) and node in self.seats_of(row)

    def _catch_up(self, node: str, message: Message, now_s: float) -> None:
        """Write down the command that the attempt carried out last, if its answer was lost."""
        if (done := message.get("done")) is not None:
            keys = ("job_id", "attempt", "launch")
            about: Message = {key: message[key] for key in keys if key in message}
            self._command_answered(node, {"type": "done", **about, **done}, now_s)

    def _command_answered(self, node: str, message: Message, now_s: float) -> None:
        command_id = message["command_id"]
        rows = self._record.on_node.rows(self._state.node_index.get(node))
        row = next((row for row in rows if self._outstanding_id(row) == command_id), None)
        command = self._state.outstanding[row] if row is not None else None
        if row is None or command is None or node_of(self._state, command) != node:
            return
        if "job_id" in message and (
            message["job_id"] != self._state.spec[row].job_id or self._record.is_foreign(message)
        ):  # numbers of commands begin anew with another log, or go back with an older copy
            return
        if message["type"] == "failed":
            self._note_failed(row, command, message, now_s)
        else:
            self._note_done(row, command, message, now_s)

    def _note_failed(self, row: int, command: Command, message: Message, now_s: float) -> None:
        """Write down that a command has failed; it ends the job if that can never start."""
        if isinstance(command, Park):
            self._journal.note(parking_failed(self._state, row, now_s, message))
            return
        self._telemetry.forget_early_size(row)
        is_launch = isinstance(command, Launch) and row not in self._state.stop_outcome
        if is_launch and message.get("obstacle"):  # a job that was told to stop ends as told
            self._failures.pop(row, None)
            why = f"it can't be started: {message['error']}"
            self._journal.note(JobFinished(now_s, row, JobState.FAILED, None, why))
            self._turn()
            return
        if not isinstance(command, Retune | SetCpus):  # they say nothing about launches
            self._failures[row] = self._failures.get(row, 0) + 1
        retry_at_s = now_s + RETRY_S * self._failures.get(row, 1)
        failed = CommandFailed(now_s, row, command.command_id, message["error"], retry_at_s)
        self._journal.note(failed)

    def _note_done(self, row: int, command: Command, message: Message, now_s: float) -> None:
        """Write down that a command was carried out."""
        if isinstance(command, Resize | Retune | SetCpus) and row in self._state.stop_outcome:
            return  # it is to end, and a Stop follows
        # Agents say when it happened; never before the command, never after now.
        at_s = min(max(message["at_s"], self._state.changed_s[row]), now_s)
        if isinstance(command, Launch):
            self._failures.pop(row, None)
            self._journal.note(JobLaunched(at_s, row, command.attempt))
        elif isinstance(command, Suspend):
            self._telemetry.write_progress(row, now_s)
            stopped_s = min(message.get("stopped_s", at_s), at_s)
            how = message.get("exit_code"), message.get("saved")
            self._journal.note(JobSuspended(at_s, row, stopped_s, *how))
        elif isinstance(command, Resume | Migrate):
            self._failures.pop(row, None)
            former = self._state.home[row]
            self._journal.note(JobResumed(at_s, row))
            self._telemetry.note_early_size(row, now_s)
            if isinstance(command, Migrate):
                self._leave(row, former, command.allocation)
        elif isinstance(command, Park):
            former = self._state.home[row]
            self._journal.note(JobParked(at_s, row))
            self._leave(row, former, command.allocation)
        elif isinstance(command, Resize):
            self._failures.pop(row, None)
            self._telemetry.write_progress(row, now_s)
            at_s = max(at_s, self._state.since_s[row])
            self._journal.note(JobResized(at_s, row, command.allocation))
        elif isinstance(command, Retune):
            self._telemetry.write_progress(row, now_s)
            self._journal.note(JobRetuned(now_s, row, command.batch))
        elif isinstance(command, SetCpus):
            self._journal.note(CpusSet(now_s, row, command.millicores))

    def _leave(self, row: int, former: Allocation | None, place: Allocation) -> None:
        """Have a job's former nodes drop it, once it is on disk that the job is elsewhere."""
        if former is not None:
            for name, message in self._drops(row, former, place):
                self._tell_once_written(name, message)
            self._turn()

    def _outstanding_id(self, row: int) -> int | None:
        command = self._state.outstanding[row]
        return command.command_id if command is not None else None

    # -- commands ------------------------------------------------------------------------------

    def dispatch(self, command: Command) -> None:
        """Send a command to its node; if the agent is away, it is repeated at its next hello.

        A command that is no longer awaited is not sent: it may have waited for room on the disk.
        """
        if self._outstanding_id(command.row) != command.command_id:
            return
        if isinstance(command, Launch) and not self.gangs.may_launch(command.row):
            return  # it is repeated when it may be
        home = self._state.home[command.row]
        other = self._state.held[command.row] or self._state.parking.get(command.row)
        if isinstance(command, Stop) and home is not None and other is not None:
            for name, message in self._drops(command.row, other, home):
                self._outboxes.tell(name, message)
        self._outboxes.tell(
            node_of(self._state, command) or "", command_message(self._record, command)
        )
        if isinstance(command, Migrate | Park):
            self._tickets.give(command.row)

    def _has_stopped(self, node: str) -> bool:
        """True if no process of jobs runs on a node: it is lost, or its lease is over."""
        return self._is_lost(node) or (
            node in self._members.names and self._leases.is_over(node, clock.boottime_s())
        )

    def _is_lost(self, node: str) -> bool:
        index = self._state.node_index.get(node)
        return index is None or not self._state.nodes[index].alive

    def _repeat(self, row: int) -> None:
        """Send a job's launch again, should one wait."""
        if isinstance(command := self._state.outstanding[row], Launch):
            self._journal.once_written.append(partial(self.dispatch, command))
            self._journal.kick.set()

    def _drops(self, row: int, place: Allocation, other: Allocation) -> list[tuple[str, Message]]:
        """A ``drop`` of the job's attempt for each node of ``place`` that ``other`` lacks."""
        about = {"job_id": self._state.spec[row].job_id, "attempt": self._state.attempt[row]}
        left = set(place.nodes()) - set(other.nodes())
        return [(self._state.nodes[index].name, {"type": "drop", **about}) for index in left]

    def _tell_once_written(self, node: str, message: Message) -> None:
        """Send an agent a message at the end of the next turn, when its cause is on disk."""
        self._journal.once_written.append(partial(self._outboxes.tell, node, message))


def _check_version(hello: Message) -> None:
    """Refuse an agent whose messages may mean something else. Raises AgentError."""
    theirs = hello.get("wire", 1)
    if isinstance(theirs, int) and abs(theirs - VERSION) > 1:
        older = "this controller" if theirs > VERSION else "the agent"
        raise AgentError(
            f"wire: the agent of node {hello.get('node')!r:.80} ({hello.get('build')!s:.80}) "
            f"speaks version {theirs}, and this controller (rota {__version__}) version "
            f"{VERSION}; only versions next to each other understand each other: upgrade {older}, "
            "and jobs are taken over"
        )
