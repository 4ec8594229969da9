"""The processes on this node of an attempt that another node's agent has.

A guest starts its processes, passes on what their sessions say, and does what the attempt's agent
says, as :mod:`rota.live.agent.abroad` tells it. What they run, and how much of the CPU cores they
may use, is told by the controller. Its record is in the attempt's folder here, so that the next
agent finds the processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent.attempt_report import Account
from rota.live.agent.claim import claim
from rota.live.agent.devices import Devices
from rota.live.agent.launching import OF_A_GANG, look_at_script, record_of
from rota.live.agent.network import Meeting, interface_of, reach
from rota.live.agent.pausing import STOP_TIMEOUT_S
from rota.live.agent.post import Key, Post, Word
from rota.live.agent.processes import LOOK_AGAIN_S, tag_of
from rota.live.agent.pulses import beat_of
from rota.live.agent.rank import Rank
from rota.live.agent.record import Record, json_of
from rota.live.agent.world import World
from rota.live.wire import GANG_SECRET, Message

STOP_POLL_S = 0.005
LEAVE_S = 1.0  # for a process that is not needed any more to end by itself
MEETING_S = 120.0  # that a port to meet at stays open

log = logging.getLogger("rota.agent")


class Guest:
    """What one attempt of another agent has here. ``tell`` gives that agent something.

    ``fork`` starts a process by a request that ``requests`` makes from the record, the folder, and
    the slot with its GPU and environment. ``prepare`` makes the folder that they run in.
    """

    worker_pids = ()  # of a flow job, which is on one node

    def __init__(
        self,
        record: Record,
        folder: Path,
        tell: Callable[[Message], object],
        fork: Callable[[dict[str, Any]], Awaitable[int]],
        requests: Callable[..., list[dict[str, Any]]],
        prepare: Callable[[Record, Path], Awaitable[object]],
        world: World,
    ) -> None:
        self.record, self.folder = record, folder
        self.is_over = False
        self._tell, self._fork, self._requests = tell, fork, requests
        self._prepare, self._world = prepare, world
        self._ranks: dict[int, Rank] = {}
        self._meeting: Meeting | None = None
        self._address = ""
        self._starts = False  # a process, which may be there or not
        self._stopping: set[int] = set()  # slots whose processes are being stopped
        self._words: asyncio.Queue[Message] = asyncio.Queue()
        self._task = world.spawn(self._obey_all())

    @property
    def ended(self) -> bool | None:
        """None until it is over."""
        return True if self.is_over else None

    @property
    def ranks(self) -> list[Rank]:
        """Its processes."""
        return list(self._ranks.values())

    @property
    def host(self) -> str:
        """The node whose agent has the attempt."""
        return self.record.host or ""

    @property
    def about(self) -> Message:
        """The attempt, for a message."""
        about: Message = {"job_id": self.record.job_id, "attempt": self.record.attempt}
        return about if self.record.launch is None else about | {"launch": self.record.launch}

    @property
    def is_alive(self) -> bool:
        """True if a process is there."""
        return any(rank.alive for rank in self._ranks.values())

    @property
    def _is_of_earlier_boot(self) -> bool:
        return self.record.boot_id not in (None, self._world.boot_id())

    def save(self) -> None:
        """Write the record down before acting on it. Raises OSError."""
        draft = self.folder / "attempt.json.new"
        draft.write_text(json.dumps(json_of(self.record)))
        draft.replace(self.folder / "attempt.json")

    def save_if_there_is_room(self) -> None:
        """Write the record if there is room: the controller repeats what it has told."""
        with contextlib.suppress(OSError):
            self.save()

    def adopt(self) -> None:
        """Find the processes that an earlier agent started."""
        rebooted = self._is_of_earlier_boot
        for slot in self.record.members:
            rank = self._ranks[slot] = self._world.new_rank(slot, self.folder)
            if rebooted:
                rank.find_after_reboot()
            else:
                rank.find()
            if rank.alive:
                rank.watch(partial(self._ended, rank))
                rank.go_on()
            self._clear_away(rank)

    # -- as the attempt's agent says -----------------------------------------------------------

    def do(self, body: Message) -> None:
        """Do something after what was asked for before."""
        self._words.put_nowait(body)

    async def _obey_all(self) -> None:
        while True:
            body = await self._words.get()
            try:
                await self._obey(body)
            except Exception:  # the words after it count all the same
                log.exception("a word about job %s is passed over", self.record.job_id)

    async def _obey(self, body: Message) -> None:
        what = body["do"]
        if what == "prepare":
            await self._answer("prepared", self._make_ready(body))
        elif what == "meet":
            await self._answer("met", self._meet(body))
        elif what == "start":
            await self._answer("started", self._start(body), slot=body["slot"])
        elif what == "look":
            self._tell({"said": "seen", "slots": [self._seen(r) for r in self._ranks.values()]})
        elif (rank := self._ranks.get(body["slot"])) is not None:
            self._order(rank, what, body)

    def _order(self, rank: Rank, what: str, body: Message) -> None:
        if what == "send":
            message = body["message"]
            if message["type"] == "cpus":  # only the controller knows what they may use here
                message = message | {"millicores": self.record.millicores}
            rank.send(message)
        elif what == "signal":
            self._stopping.discard(rank.index)
            if body.get("grace_s") is not None:
                rank.ask_to_end(body["grace_s"], body["left_s"])
            elif body["number"] == signal.SIGCONT:
                rank.go_on()
            else:  # an older agent asks all processes at once
                rank.signal(signal.Signals(body["number"]))
        elif what == "stop":
            self._stopping.add(rank.index)
            deadline_s = self._world.boottime_s() + STOP_TIMEOUT_S
            self._stop(rank, int(body["spared"]), deadline_s)
        elif what == "leave":
            rank.send({"type": "leave"})
            self._world.later(LEAVE_S, rank.signal, signal.SIGKILL)

    async def _answer(self, said: str, work: Awaitable[Message], **fields: Any) -> None:
        try:
            told = await work
        except Exception as error:  # any error must be reported
            if not isinstance(error, AgentError):
                log.exception("job %s: %s", self.record.job_id, said)
            told = {"error": str(error)}
        self._tell({"said": said, **fields, **told})

    async def _make_ready(self, body: Message) -> Message:
        """Have everything ready for processes, and open a port to find out who reaches it."""
        self._address = str(body["address"])
        self.record.address = self._address
        interface_of(self._address)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.save()
        await self._prepare(self.record, self.folder)
        self._close_meeting()
        self._meeting = Meeting(self._address)
        self._world.later(MEETING_S, self._close_meeting)
        return {"port": self._meeting.port}

    async def _meet(self, body: Message) -> Message:
        error = await reach([(str(n), str(a), int(p)) for n, a, p in body["places"]])
        return {"error": error} if error else {}

    def _close_meeting(self) -> None:
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None

    async def _start(self, body: Message) -> Message:
        slot, gpu = int(body["slot"]), int(body["gpu"])
        environment = {name: str(body["env"][name]) for name in OF_A_GANG}
        if GANG_SECRET in body["env"]:  # an agent of an earlier version has none
            environment[GANG_SECRET] = str(body["env"][GANG_SECRET])
        if self.is_over or slot in self._ranks:
            raise AgentError(f"process {slot} can't be started: there was one, or it is over")
        if self._ranks and self._is_of_earlier_boot:
            raise AgentError(f"process {slot} can't be started: the machine has started anew")
        environment["GLOO_SOCKET_IFNAME"] = interface_of(self._address)
        environment["NCCL_SOCKET_IFNAME"] = environment["GLOO_SOCKET_IFNAME"]
        record = self.record
        record.boot_id = self._world.boot_id()  # it may have been prepared before a reboot
        record.members, record.gpus = [*record.members, slot], [*record.gpus, gpu]
        record.slots = max(record.slots, slot + 1)
        record.generation = int(body["generation"])
        self.save()
        (request,) = self._requests(
            record, self.folder, [slot], [gpu], step=body["step"], adopt={slot: environment}
        )
        rank = self._ranks[slot] = self._world.new_rank(slot, self.folder)
        self._starts = True
        try:
            await rank.start(self._fork, request)
        except (AgentError, OSError):
            await rank.abandon()
            rank.gone = True
            raise
        finally:
            self._starts = False
        rank.watch(partial(self._ended, rank))
        if self.is_over:
            rank.signal(signal.SIGKILL)
        return {}

    def _stop(self, rank: Rank, spared: int, deadline_s: float) -> None:
        """Stop the processes of a rank, and say so, unless they are to go on by then."""
        if rank.index not in self._stopping or not rank.alive:
            return
        if rank.stop(spared) or self._world.boottime_s() > deadline_s:
            self._stopping.discard(rank.index)
            told = {"said": "stopped", "slot": rank.index, "unstopped": rank.unstopped}
            self._tell(told)
        else:
            self._world.later(STOP_POLL_S, self._stop, rank, spared, deadline_s)

    # -- for the attempt's agent ---------------------------------------------------------------

    def joined(self, slot: int, writer: asyncio.StreamWriter, line: bytes, session: int) -> bool:
        """A process opened a session. False if another one of it is open."""
        rank = self._ranks[slot]
        if not rank.opened(writer, session):
            return False
        told = {"said": "joined", "slot": slot, "line": line.decode(), "session": rank.session}
        self._tell(told)
        return True

    def heard(self, slot: int, line: bytes) -> None:
        """A process with a session says something."""
        self._tell({"said": "heard", "slot": slot, "line": line.decode()})

    def left(self, slot: int, writer: asyncio.StreamWriter) -> None:
        """A connection closed."""
        if self._ranks[slot].closed(writer):
            self._tell({"said": "left", "slot": slot})

    def begin_anew(self) -> None:
        """The attempt's agent has started anew: have all sessions closed, as those there are.

        What it was told of them is lost, and processes may hold because an earlier agent asked for
        it. They connect again, and say how they are.
        """
        for rank in self._ranks.values():
            if rank.writer is not None:
                rank.writer.close()

    def _seen(self, rank: Rank) -> Message:
        beat = beat_of(self.folder, rank.index) if rank.alive else None
        told = None
        if beat is not None:
            age_s = self._world.monotonic_s() - beat.since_s
            told = (beat.phase, age_s, beat.computed_s, beat.samples)
        seen = {"slot": rank.index, "alive": rank.alive, "exit": exit_of(rank), "beat": told}
        return seen | {"began": not rank.never_started}

    def _ended(self, rank: Rank) -> None:
        rank.close()
        rank.gone = True
        rank.read_exit()
        self._clear_away(rank)
        self._tell({"said": "ended", "slot": rank.index, "exit": exit_of(rank)})

    def _clear_away(self, rank: Rank) -> None:
        """Kill what a vanished shim has left behind."""
        tag = tag_of(self.record.secret, rank.name)
        if rank.gone and self._world.kill_remains([], [tag]):
            self._world.later(LOOK_AGAIN_S, self._clear_away, rank)

    def _kill_remains(self) -> int:
        """Kill what vanished shims have left behind. Returns the number of processes."""
        gone = [rank for rank in self._ranks.values() if rank.gone]
        tags = [tag_of(self.record.secret, rank.name) for rank in gone]
        return self._world.kill_remains([], tags) if tags else 0

    # -- the end -------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill all processes; none of them that is being started begins any more."""
        for rank in self._ranks.values():
            rank.signal(signal.SIGKILL)

    async def end(self) -> None:
        """Kill all processes; returns when none is left, with the record put away."""
        self.is_over = True
        self._close_meeting()
        while self._starts or self.is_alive or self._kill_remains():
            self.kill()
            await asyncio.sleep(LOOK_AGAIN_S)
        self._task.cancel()
        with contextlib.suppress(OSError):
            (self.folder / "attempt.json").rename(self.folder / "ended.json")


def exit_of(rank: Rank) -> Message | None:
    """How a process has ended, if that is known; of a failed one with the last that it printed."""
    if rank.exit is None or not rank.exit["code"]:
        return rank.exit
    return rank.exit | {"last": rank.last_printed.decode(errors="replace")}


class Guests:
    """The guests of one node, by their attempts.

    ``attempts`` are the node's own; ``post`` has words for other agents, ``notify`` tells the
    controller something. The others are as for :class:`Guest`.
    """

    def __init__(
        self,
        folder: Folder,
        node: str,
        devices: Devices,
        attempts: Callable[[], Collection[Account]],
        post: Post,
        fork: Callable[[dict[str, Any]], Awaitable[int]],
        requests: Callable[..., list[dict[str, Any]]],
        prepare: Callable[[Record, Path], Awaitable[Path | None]],
        world: World,
        notify: Callable[[Message], object],
    ) -> None:
        self._folder, self._node, self._devices = folder, node, devices
        self._attempts, self._post, self._notify = attempts, post, notify
        self._fork, self._requests, self._prepare, self._world = fork, requests, prepare, world
        self._guests: dict[Key, Guest] = {}
        self._told: dict[Key, Message] = {}  # what the controller has told of each

    def of(self, key: Key) -> Guest | None:
        """The guest of an attempt, if there is one."""
        return self._guests.get(key)

    def all(self) -> list[Guest]:
        """All guests."""
        return list(self._guests.values())

    def expect(self, message: Message) -> Guest | None:
        """The controller tells of an attempt that may have processes here: its guest, if any."""
        key = message["job_id"], message["attempt"]
        self._told[key] = message
        return self._guests.get(key)

    def expect_no_more(self, key: Key) -> None:
        """Have no more processes of an attempt, and kill those that there are."""
        self._told.pop(key, None)
        if (guest := self._guests.get(key)) is not None:
            guest.kill()  # now: the node's lease may be renewed next

    def adopt(self, record: Record, folder: Path) -> None:
        """Find a guest that an earlier agent has left."""
        self._guest(record, folder).adopt()

    def hear(self, word: Word, message: Message) -> None:
        """A word of another node's agent, which has the attempt; ``message`` brought it.

        Raises AgentError, OSError, KeyError, TypeError, ValueError.
        """
        guest, body = self._guests.get(word.key), word.body or {}
        about: Message = {
            name: message[name] for name in ("job_id", "attempt", "launch") if name in message
        }
        if body.get("do") == "prepare" and (guest is None or guest.is_over):
            try:
                guest = self._receive(word, about)
            except (AgentError, OSError) as error:
                self._post.tell(word.node, about, {"said": "prepared", "error": str(error)})
                return
        if guest is None:
            if body.get("do") == "look":
                self._post.tell(word.node, about, {"said": "unknown"})
        elif guest.host == word.node:
            if word.anew:
                guest.begin_anew()
            if word.body is not None:
                guest.do(word.body)

    def _receive(self, word: Word, about: Message) -> Guest:
        """Make a guest of an attempt that is being launched. Raises AgentError, OSError."""
        job_id, number = word.key
        told = self._told.get(word.key)
        if told is None or told["host"] != word.node:
            raise AgentError(f"the controller has told node {self._node} of no such attempt")
        living = (each for each in self._attempts() if each.ended is None)
        others = [each.number for each in living if each.job_id == job_id]
        others += [other for other_id, other in self._guests if other_id == job_id]
        if others:
            raise AgentError(f"attempt {others[0]} of job {job_id} may still be alive here")
        for what in claim(self._folder, self._node, told):
            log.warning("%s", what)
            self._notify({"type": "set_aside", "what": what} | about)
        told = told | {"at_s": self._world.now_s()}
        record = record_of(told, self._devices, None, self._folder.node(self._node))
        record.host = word.node
        record.slots, record.members, record.gpus = 0, [], []
        return self._guest(record, self._folder.attempt(self._node, job_id, number))

    def _guest(self, record: Record, folder: Path) -> Guest:
        guest = self._guests[record.job_id, record.attempt] = Guest(
            record,
            folder,
            lambda body: self._post.tell(guest.host, guest.about, body),
            self._fork,
            self._requests,
            self._make_folder,
            self._world,
        )
        return guest

    async def _make_folder(self, record: Record, folder: Path) -> None:
        if (tree := await self._prepare(record, folder)) is not None:
            look_at_script(record, tree, self._devices)

    async def end(self, key: Key) -> None:
        """End a guest, unless it is being ended; returns when nothing of it is left."""
        guest = self._guests.get(key)
        if guest is not None and not guest.is_over:
            await guest.end()
            del self._guests[key]
            self._post.keep(key, [])

    async def end_all(self, after_s: float) -> None:
        """End all that are there now, after a while in which their agents may do so."""
        keys = list(self._guests)
        await asyncio.sleep(after_s if keys else 0.0)
        for key in keys:
            await self.end(key)
