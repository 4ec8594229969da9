"""The agent of one node: the only thing that starts, pauses, continues and kills workers there.

It calls the controller, obeys its commands, and answers with what it observes. Nothing calls it but
agents of other machines that a job moves to, for its state, by a ticket of the controller.
Every command can be repeated without harm. When the controller is gone its jobs go on; when the
agent is gone the next one adopts them. It never starts an attempt of a job while another may live.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import platform
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rota import __version__
from rota.errors import AgentError, NeverStartsError, shortage_of
from rota.folder import Folder, remove_homeless
from rota.live.agent import failed_start
from rota.live.agent.abroad import LOOK_S
from rota.live.agent.answers import answer
from rota.live.agent.attempt import Attempt
from rota.live.agent.claim import claim
from rota.live.agent.cleaning import remove_cleaned
from rota.live.agent.controller_link import ControllerLink
from rota.live.agent.cpu_groups import Groups
from rota.live.agent.cpus import LOOK_EVERY_S as LOOK_AT_CPUS_S
from rota.live.agent.cpus import WHOLE, Cpus, Part
from rota.live.agent.cuda_checkpoint import Checkpoints, Driver, NvidiaDriver
from rota.live.agent.devices import Devices
from rota.live.agent.endpoint import Endpoint
from rota.live.agent.entering import FolderLooks
from rota.live.agent.filling import Filling, ways_of
from rota.live.agent.guest import Guest, Guests
from rota.live.agent.identity import begin
from rota.live.agent.inheritance import inherit
from rota.live.agent.island_link import IslandLink
from rota.live.agent.launching import (
    Starter,
    gang_requests,
    look_at_script,
    rank_requests,
    record_of,
)
from rota.live.agent.logs import Logs
from rota.live.agent.memory import HostMemory
from rota.live.agent.meter import Meter
from rota.live.agent.method import STOP_GRACE_S, grace_of
from rota.live.agent.moves import Moves
from rota.live.agent.network import interface_of
from rota.live.agent.ordering import Ordering
from rota.live.agent.piece_server import PieceServer
from rota.live.agent.post import Key, Post
from rota.live.agent.processes import LOOK_AGAIN_S
from rota.live.agent.record import Record, record_from
from rota.live.agent.seat import FlowSeat
from rota.live.agent.snapshots import Snapshots
from rota.live.agent.sockets import Sockets
from rota.live.agent.states import State
from rota.live.agent.vitals import Vitals
from rota.live.agent.watchman_link import WatchmanLink
from rota.live.agent.workdir import OWN, thin
from rota.live.agent.world import World
from rota.live.agent.zygote_link import ZygoteLink
from rota.live.wire import VERSION, Message, clock, decode, pack, unpack
from rota.live.wire.lease import Lease, lease_file
from rota.live.wire.messages import from_worker
from rota.live.wire.peer import peer_of
from rota.live.wire.places import is_far, renamed
from rota.live.wire.procfs import SPARE
from rota.live.wire.questions import Clean, ask_of
from rota.live.wire.shortages import Shortages

PROGRESS_EVERY_S = 0.25
CURVES_EVERY_S = 0.1
SAVE_AGAIN_S = 1.0
USAGE_EVERY_S = 10.0  # of attempts that do not report
ADOPTION_S = 3.0  # for adopted workers to say hello
VITALS_EVERY_S = 5.0
BEAT_S = 1.0
LOOK_AT_FOLDER_S = 0.5
LOOK_AT_ISLAND_S = 0.5
LOOK_OUTSIDE_S = 5.0
HOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
SHORT_S = 1.0  # before what a shortage has ended begins again
FAREWELL_S = 5.0  # for the controller to record the last ends


def build() -> str:
    """The versions of the agent's program, which a controller is told."""
    versions = [f"rota {__version__}", f"Python {platform.python_version()}"]
    with contextlib.suppress(PackageNotFoundError):
        versions.append(f"torch {version('torch')}")
    return ", ".join(versions)


BUILD = build()

log = logging.getLogger("rota.agent")


def _remove_homeless() -> None:
    """Remove what clusters whose state folders are gone have left outside of these."""
    for folder in remove_homeless():
        log.info("removed %s, whose state folder is gone", folder)


def about(message: Message) -> Message:
    """The attempt that a command is about."""
    return {key: message[key] for key in ("job_id", "attempt", "launch") if key in message}


class Agent:
    """One node's devices and the attempts on them."""

    def __init__(
        self,
        folder: Folder,
        node: str,
        devices: Devices,
        endpoint: Endpoint,
        host_memory_bytes: int | None = None,
        driver: Driver | None = None,
        log_limit_bytes: int | None = None,
        is_in_place: Callable[[], bool] = lambda: True,
        world: World | None = None,
        groups: Groups | None = None,
        part: Part = WHOLE,
        data_port: int | None = None,
        ends: bool | None = None,
    ) -> None:
        self.folder = folder
        self.node = node
        self.devices = devices
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self._world = world or World()
        self._identity = begin(folder.node(node))
        self._stays = endpoint.stays
        self._ends = not endpoint.stays if ends is None else ends  # when it is told to shut down
        self._lease = Lease(lease_file(folder.node(node))) if endpoint.stays else None
        self._world.lease = self._lease
        self._watchman = None
        if self._lease is not None:
            trees = groups.trees if groups is not None else []
            self._watchman = WatchmanLink(folder.node(node), node, self._lease.path, trees)
        self.is_removed = False  # from its cluster
        self._is_in_place = is_in_place  # tells if the state folder is still the same
        self._sockets = Sockets(folder, node, self._serve_worker)
        self._shortages = Shortages(log)
        self._looks = FolderLooks()
        self._arenas = folder.arenas(node)
        self._memory = HostMemory(self.attempts.values, host_memory_bytes)
        self._checkpoints = None
        if devices.kind == "cuda":
            self._checkpoints = Checkpoints(driver or NvidiaDriver(), devices.ids)
        self._cpus = Cpus(self._present, devices, self._world, groups, part)
        self._filling = Filling(
            self.attempts.values,
            self._notify,
            ways_of(groups),
            cores_stand_for_gpus=devices.kind == "cpu",
        )
        self._meter = Meter(devices, self.attempts.values)
        gpus = devices.ids if devices.kind == "cuda" else ()
        self._vitals = Vitals(gpus, self._meter.readings)
        self._logs = Logs(folder.node(node), self._present, log_limit_bytes)
        memory_bytes = int(devices.memory_gb * 1e9) or HOST_BYTES // max(1, devices.num_gpus)
        self._island = IslandLink(
            folder.island(node),
            folder.node(node) / "island.log",
            devices.num_gpus,
            memory_bytes,
            devices.kind,
            self._has_called,
            None if self._lease is None else self._lease.path,
        )
        self._ordering = Ordering(self.attempts.values, self._island, devices.num_gpus, self._spawn)
        self._snapshots = Snapshots(folder, node, endpoint.address)
        self._zygote = ZygoteLink(str(folder.node(node) / "zygote.log"))
        self._epoch = 0
        self._reach = ""  # the address at which other nodes find this one, if they do
        self._post = Post(self._notify)
        self._guests = Guests(
            folder,
            node,
            devices,
            self.attempts.values,
            self._post,
            self._zygote.fork,
            self._requests,
            self._snapshots.prepare,
            self._world,
            self._notify,
        )
        self._moves = Moves(
            folder,
            node,
            devices,
            self.attempts,
            self._attempt,
            self._place,
            self._send,
            self._spawn,
            self._snapshots.prepare,
        )
        self._pieces = PieceServer(data_port, self._moves.reply, self._spawn)
        self._ending = asyncio.Event()
        self._link = ControllerLink(
            endpoint, self._greeting, self._heard, self._is_busy, self._ending, self._leave
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._disowned: set[Attempt] = set()  # of another event log, and being ended

    async def run(self) -> None:
        """Serve until told to shut down, or until there is neither a controller nor a job."""
        SPARE.keep()
        self._shortages.watch(asyncio.get_running_loop())
        self._held = self.folder.hold()
        self._arenas = self.folder.arenas(self.node)  # again: what nobody held may have gone
        threading.Thread(target=_remove_homeless, daemon=True).start()  # a disk may never answer
        await self._sockets.open()
        if self._watchman is not None:
            self._keep(self._watchman.run)
        self._spawn(self._start_zygote())
        if self._checkpoints is not None:  # now, because it takes a moment to find out
            log.info("CUDA checkpoints: %s", self._checkpoints.refusal or "available")
        await self._adopt_island()
        self._adopt_all()
        await self._island.dismiss_others({e.seat.key for e in self.attempts.values() if e.seat})
        self._moves.adopt()
        self._cpus.adopt()
        self._keep(self._logs.run)
        self._remove_orphans()
        self._spawn(asyncio.to_thread(remove_cleaned, self.folder, self.node))
        await self._wait_for_hellos()
        self._keep(self._link.run)
        self._keep(self._tell_progress)
        self._keep(self._tell_curves)
        self._keep(self._save_again)
        self._keep(self._watch_folder)
        self._keep(self._watch_outside)
        self._keep(self._watch_cpus)
        self._keep(self._tell_vitals)
        if self._stays:
            self._keep(self._tell_that_it_lives)
        self._keep(self._watch_island)
        self._keep(self._look_abroad)
        self._keep(self._meter.run)
        self._keep(self._filling.run)
        self._keep(self._ordering.run)
        await self._ending.wait()
        self._sockets.close()
        self._pieces.close()
        await self._memory.close()
        tasks = [*self._tasks, *(t for each in self.attempts.values() for t in each.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._logs.close()
        self._cpus.close()
        await self._zygote.close()
        await self._island.close(ends=not self._is_busy())
        if self._watchman is not None:
            await self._watchman.close()
        with contextlib.suppress(OSError):
            self._arenas.rmdir()
        self._held.close()
        self.folder.leave()

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _keep(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Spawn what goes on for as long as the agent does; begin again after a shortage."""

        async def go_on() -> None:
            while True:
                try:
                    return await work()
                except (OSError, RuntimeError) as error:
                    if not self._shortages.tell("the agent can't look after its jobs", error):
                        raise
                await asyncio.sleep(SHORT_S)

        self._spawn(go_on())

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._shortages.tell("a task of the agent failed", error):
            log.error("a task of the agent failed", exc_info=error)

    def _check_in_place(self) -> None:
        """Raises AgentError if another agent may have this node by now."""
        if not self._is_in_place():
            raise AgentError(f"{self.folder.path} is gone, or another folder: this agent ends")

    async def _watch_folder(self) -> None:
        """End, with every job here, once the state folder is replaced: no agent can adopt them."""
        while self._is_in_place():
            await asyncio.sleep(LOOK_AT_FOLDER_S)
        log.error("%s is gone, or another folder: ending with all jobs", self.folder.path)
        await self._shut_down(grace_s=STOP_GRACE_S)

    async def _watch_outside(self) -> None:
        """Make sockets, and folders outside of the state folder, anew once they are removed.

        A cleaner of temporary files may remove old sockets; host memory may be emptied when its
        user logs out. Attempts whose state was there are lost.
        """
        while True:
            await asyncio.sleep(LOOK_OUTSIDE_S)
            try:
                await self._sockets.look()
                if not self._arenas.exists():
                    log.warning("%s was removed: it is made anew", self._arenas)
                before, self._held = self._held, self.folder.hold()
                before.close()
                self._arenas = self.folder.arenas(self.node)
            except OSError as error:  # no room for a folder: it may be there the next time
                log.warning("%s: %s", error.filename, error.strerror)
            for attempt in self.attempts.values():
                attempt.vacating.look()

    async def _watch_cpus(self) -> None:
        """Tell the controller when the node's cores are others, or jobs are held otherwise."""
        while True:
            await asyncio.sleep(LOOK_AT_CPUS_S)
            if self._cpus.look():
                self._notify({"type": "cores", **self._cpus.told(), "why": self._cpus.why})

    async def _tell_vitals(self) -> None:
        """Tell the controller of the use of the node's machine, again and again."""
        while True:
            await asyncio.sleep(VITALS_EVERY_S)
            self._notify({"type": "vitals", **self._vitals.read()})

    async def _tell_that_it_lives(self) -> None:
        """Tell a controller of another machine so, again and again: a cut cable tells nothing."""
        while True:
            await asyncio.sleep(BEAT_S)
            self._notify({"type": "beat", "asked_s": clock.boottime_s()})

    async def _look_abroad(self) -> None:
        """Ask how processes on other nodes are, and say again what their agents may not know."""
        while True:
            await asyncio.sleep(LOOK_S)
            for key, attempt in self.attempts.items():
                if attempt.record.nodes and attempt.ended is None:
                    attempt.abroad.look()
                    self._post.keep(key, attempt.abroad.partners)
            self._post.again()

    async def _adopt_island(self) -> None:
        """Find the host of flow jobs that an earlier agent has left."""
        if self.folder.island(self.node).exists():
            await self._island.adopt()

    async def _watch_island(self) -> None:
        """Take note of what the workers of flow jobs do."""
        while True:
            await asyncio.sleep(LOOK_AT_ISLAND_S)
            seats = {each.seat.key: each.seat for each in self.attempts.values() if each.seat}
            if seats:
                others = {r.seat for each in self.attempts.values() for r in each.ranks if r.seat}
                jobs = {key: key.partition(".")[0] for key in seats.keys() | others}
                if not self._island.connected:
                    await self._island.adopt()
                told = {each.key: each for each in await self._island.look()}
                for key, seat in seats.items():
                    if key in told:
                        seat.seen(told[key], jobs)
                    else:
                        seat.unseen()

    def _has_called(self, key: str) -> None:
        """The program of a flow job whose workers have no GPUs has called something."""
        for attempt in self.attempts.values():
            if attempt.seat is not None and attempt.seat.key == key:
                attempt.seat.called()

    async def _start_zygote(self) -> None:
        """Start the zygote before the first job. If that fails, the first launch tries again."""
        try:
            await self._zygote.start()
        except AgentError as error:
            log.warning("%s", error)

    # -- workers -------------------------------------------------------------------------------

    def _adopt_all(self) -> None:
        for file in sorted(self.folder.node(self.node).glob("jobs/*/*/attempt.json")):
            try:
                record = record_from(json.loads(file.read_text()))
                if record.host is not None:
                    self._guests.adopt(record, file.parent)
                    continue
                attempt = self._attempt(record, file.parent)
                attempt.adopt()
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                if shortage_of(error) is not None:
                    raise  # its processes may live: this agent ends, and the next one tries again
                # Damaged, by a full disk perhaps: the controller will hear that it is lost.
                log.exception("%s can't be read and is put aside", file)
                file.rename(file.with_name("damaged.json"))
                continue
            if attempt.state == State.REFUSED:
                continue
            self.attempts[attempt.job_id, attempt.number] = attempt
            log.info("adopted job %s.%s: %s", attempt.job_id, attempt.number, attempt.state)

    def _remove_orphans(self) -> None:
        """Remove the arenas of attempts that are over."""
        known = {f"{job_id}-{number}" for job_id, number in self.attempts.keys() | self._moves.keys}
        on_disk = self.folder.node(self.node).glob("jobs/*/*/*.arena*")
        for file in [*self._arenas.iterdir(), *on_disk]:
            if file.name.rpartition("-")[0] not in known:
                try:
                    file.unlink(missing_ok=True)
                except OSError as error:  # a folder, or whatever else it may be
                    log.warning("%s is not Rota's, and stays: %s", file, error.strerror)

    async def _wait_for_hellos(self) -> None:
        deadline = asyncio.get_running_loop().time() + ADOPTION_S
        while any(a.state == State.ADOPTED and not a.spans for a in self.attempts.values()):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        for attempt in self.attempts.values():
            attempt.settle()

    async def _serve_worker(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        attempt, rank = None, 0
        try:
            first = await reader.readline()
            hello = from_worker(first)
            if (guest := self._guests.of((hello["job_id"], hello["attempt"]))) is not None:
                await self._serve_guest(guest, hello["rank"], first, reader, writer)
                return
            attempt = self.attempts[hello["job_id"], hello["attempt"]]
            rank = hello["rank"]
            attempt.joined(rank, writer, hello, peer_of(writer.get_extra_info("socket")).pid)
            while line := await reader.readline():
                message = from_worker(line)
                if attempt.ranks[rank].writer is writer:  # and not one beside it
                    attempt.heard(rank, message)
        except (AgentError, KeyError, IndexError, TypeError, ValueError, OSError) as error:
            log.warning("a worker's connection ended: %r", error)
        finally:
            if attempt is not None and rank < len(attempt.ranks):
                attempt.left(rank, writer)
            writer.close()

    async def _serve_guest(
        self,
        guest: Guest,
        slot: int,
        hello: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass on what a process of another agent's attempt says."""
        session = peer_of(writer.get_extra_info("socket")).pid
        is_heard = guest.joined(slot, writer, hello, session)
        try:
            while line := await reader.readline():
                if is_heard:
                    guest.heard(slot, line)
        finally:
            guest.left(slot, writer)

    # -- the controller ------------------------------------------------------------------------

    def _greeting(self) -> list[Message]:
        """The hello to a controller, and what else it may not know.

        Reports of trials come before the hello, because ended attempts are dropped with it.
        """
        self._check_in_place()
        self._epoch = 0  # the controller has gone back with an older copy of its log, maybe
        hello = {
            "type": "hello",
            "node": self.node,
            "num_gpus": self.devices.num_gpus,
            "kind": self.devices.kind,
            "gpu_type": self.devices.gpu_type,
            "memory_gb": self.devices.memory_gb,
            **self._cpus.told(),
            **self._identity._asdict(),
            "build": BUILD,
            "wire": VERSION,
            "data_port": self._pieces.listen(self._link.own_address),
            "asked_s": clock.boottime_s(),
            "attempts": [
                *(attempt.observed() for attempt in self.attempts.values()),
                *self._moves.arrivals,
            ],
            "guests": [guest.about for guest in self._guests.all()],
        }
        messages: list[Message | None] = [each.curve_report() for each in self.attempts.values()]
        messages.append(hello)
        for attempt in self.attempts.values():
            if attempt.ended is not None:
                continue
            messages += [attempt.model_report(), attempt.memory(), attempt.tuning.report()]
            messages.append(attempt.planned_report())
            messages.append(attempt.seat.report() if attempt.seat is not None else None)
            if attempt.progress:
                messages.append(attempt.report())
            if attempt.elastic is not None:
                messages.append(attempt.size_report())  # ranks may have been lost meanwhile
        return [message for message in messages if message is not None]

    def _heard(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self._moves.heard(*unpack(frame))
        else:
            self._obey(decode(frame))

    def _present(self) -> list[Attempt | Guest]:
        return [*self.attempts.values(), *self._guests.all()]

    def _is_busy(self) -> bool:
        alive = (attempt.ended is None for attempt in self.attempts.values())
        return bool(self._disowned) or bool(self._guests.all()) or any(alive)

    def _notify(self, message: Message) -> None:
        self._link.tell(message)

    def _send(self, message: Message, piece: bytes) -> None:
        """Tell the controller something for another node, raw bytes after it if there are any."""
        if not piece:
            self._notify(message)
        else:
            self._link.tell(pack(message, piece))

    async def _tell_progress(self) -> None:
        """Pass new reports and phases on; of jobs that do not report, their use now and then."""
        told: dict[tuple[str, int], tuple[Any, str | None, float]] = {}
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            now_s = clock.now_s()
            for key, attempt in self.attempts.items():
                phase = attempt.phase
                last, phase_before, at_s = told.setdefault(key, (attempt.progress, phase, now_s))
                silent = attempt.state == State.RUNNING and now_s - at_s > USAGE_EVERY_S
                if silent or last is not attempt.progress or phase != phase_before:
                    told[key] = (attempt.progress, phase, now_s)
                    self._notify(attempt.report())
            told = {key: value for key, value in told.items() if key in self.attempts}

    async def _tell_curves(self) -> None:
        """Pass on trials' reports sooner than others, because their searches wait for them."""
        while True:
            await asyncio.sleep(CURVES_EVERY_S)
            for attempt in self.attempts.values():
                if attempt.ended is None:
                    attempt.tell_curve()

    async def _save_again(self) -> None:
        """Write the records for which the disk had no room."""
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            for attempt in self.attempts.values():
                if attempt.unsaved and attempt.ended is None:
                    with contextlib.suppress(OSError):
                        attempt.save()

    # -- obeying -------------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        kind = message["type"]
        if kind == "welcome":
            self._epoch = max(self._epoch, message["epoch"])
            self._pieces.begin(message.get("certificate"), message.get("key"))
            self._reach = message.get("reach", "")
        elif kind == "command":
            self._spawn(self._carry_out(message))
        elif kind == "forget":
            self._forget(message["job_id"], message["attempt"])
        elif kind == "kill":
            key = (message["job_id"], message["attempt"])
            self._moves.call_off(key)
            if key in self.attempts and message.get("cancelled"):
                self.attempts[key].stop(0.0)
            elif key in self.attempts:
                self.attempts[key].kill(message.get("why"))
            self._answer_for(message)
        elif kind == "disown":
            self._disown(message)
        elif kind == "guest":
            if (guest := self._guests.expect(message)) is not None:
                self._cpus.give(guest, message["millicores"])
        elif kind == "drop":
            key = (message["job_id"], message["attempt"])
            self._guests.expect_no_more(key)
            if self._guests.of(key) is not None:
                self._spawn(self._guests.end(key))
            else:
                self._moves.leave(key)
            self._answer_for(message)
        elif kind == "relay":
            self._hear_other(message)
        elif kind == "fetch" and message["epoch"] >= self._epoch:
            self._spawn(self._moves.answer(message))
        elif kind == "fetched":
            self._moves.heard(message)
        elif kind == "ticket":
            # After the command before it, which is carried out in a task.
            asyncio.get_running_loop().call_soon(self._moves.take_ticket, message)
        elif kind == "admit":
            self._pieces.admit((message["job_id"], message["attempt"]), message["ticket"])
        elif kind == "ask":
            self._spawn(self._answer(message))
        elif kind == "rejected":
            raise AgentError(f"the controller rejects this agent: {message['error']}")
        elif kind == "lease":
            if self._lease is not None:
                lasts_s = message["lasts_s"]
                self._lease.renew(math.inf if lasts_s is None else message["asked_s"] + lasts_s)
            if "now_s" in message:
                self._set_clock(message["asked_s"], message["now_s"])
        elif kind == "removed":
            self._leave()
        elif kind == "shutdown":
            self._spawn(self._shut_down(ends=self._ends))

    # -- gangs over several nodes --------------------------------------------------------------

    def _tell_node(
        self, attempt: Attempt, node: str, body: Message, *, can_wait: bool = False
    ) -> None:
        key = (attempt.job_id, attempt.number)
        if not (can_wait and self._post.is_awaited(node, key)):
            self._post.tell(node, about(attempt.about("relay")), body)

    def _hear_other(self, message: Message) -> None:
        """A word of another node's agent, about an attempt that it or this one has."""
        if (word := self._post.receive(message)) is None:
            return
        attempt = self.attempts.get(word.key)
        try:
            if attempt is not None:
                if word.anew:
                    attempt.abroad.is_anew(word.node)
                if word.body is not None:
                    attempt.abroad.hear(word.node, word.body)
                return
            self._guests.hear(word, message)
        except (AgentError, OSError, KeyError, TypeError, ValueError) as error:
            log.warning("a word of node %s is passed over: %r", word.node, error)

    def _answer_for(self, message: Message) -> None:
        """Tell the controller, if it asks, once nothing is left here of an attempt of a gang."""
        if message.get("answers"):
            self._spawn(self._tell_gone((message["job_id"], message["attempt"]), about(message)))

    async def _tell_gone(self, key: Key, told: Message) -> None:
        while self._guests.of(key) is not None or (
            (attempt := self.attempts.get(key)) is not None and attempt.ended is None
        ):
            await asyncio.sleep(LOOK_AGAIN_S)
        self._notify({"type": "gone", **told})

    def _places(self, attempt: Attempt, message: Message) -> list[int]:
        """The places that a command means, by the nodes of the attempt's record."""
        record, nodes = attempt.record, message.get("nodes", [])
        if not nodes:
            return list(message["gpus"])
        names = [each["name"] for each in nodes]
        if names[0] != self.node:
            raise AgentError(f"node {names[0]} would have the attempt, and this is {self.node}")
        record.nodes = record.nodes or nodes[:1]
        known = [each["name"] for each in record.nodes]
        record.nodes += [each for each in nodes if each["name"] not in known]
        return renamed(message["gpus"], names, [each["name"] for each in record.nodes])

    def _set_clock(self, asked_s: float, now_s: float) -> None:
        """Go by the controller's clock, should the two machines' have drifted apart.

        Processes of jobs that have begun keep theirs.
        """
        before_s = clock.ahead_s()
        ahead_s = clock.corrected_ahead_s(before_s, asked_s, now_s, clock.boottime_s())
        if ahead_s != before_s:
            log.info("the clock is set by %+.3f s, to the controller's", ahead_s - before_s)
            clock.follow(ahead_s)
            with contextlib.suppress(OSError):
                clock.keep_ahead_s(self.folder.node(self.node) / "clock.json", ahead_s)

    def _leave(self) -> None:
        """End with all jobs: the cluster has removed this node, and may run them elsewhere."""
        log.error("node %s is no longer part of its cluster: ending with all jobs", self.node)
        self.is_removed = True
        self._spawn(self._shut_down(grace_s=STOP_GRACE_S))

    async def _answer(self, message: Message) -> None:
        """Tell the controller what it asks about files of this node."""
        ask = ask_of(message)
        if isinstance(ask.question, Clean):
            await self._let_go(ask.question.job_id)
        self._notify(await answer(self.folder, self.node, ask, self._looks))
        if isinstance(ask.question, Clean):
            self._snapshots.set_needless_aside()
            await asyncio.to_thread(remove_cleaned, self.folder, ask.question.node)

    async def _let_go(self, job_id: str) -> None:
        """Wait for a while until the controller has heard of the end of a job's attempts."""
        deadline = asyncio.get_running_loop().time() + FAREWELL_S
        while any(key[0] == job_id for key in self.attempts):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _carry_out(self, message: Message) -> None:
        try:
            self._check_in_place()
            if message["epoch"] < self._epoch:
                raise AgentError(f"command of epoch {message['epoch']}; it is now {self._epoch}")
            done = CARRIED_OUT[message["kind"]](self, message)
            if done is not None:
                await done
        except Exception as error:  # any error must be reported to the controller
            shortage = shortage_of(error)
            in_a_line = isinstance(error, AgentError) or shortage is not None
            what, why = f"{message['kind']} of job {message['job_id']}", shortage or str(error)
            log.warning("%s failed: %s", what, why, exc_info=None if in_a_line else error)
            failed = {"type": "failed", "command_id": message["command_id"], "error": why}
            if isinstance(error, NeverStartsError):
                failed["obstacle"] = error.obstacle
            self._notify(failed | about(message))

    def _of(self, message: Message) -> Attempt | None:
        """The attempt that a command is about, if it runs here; else tells the controller."""
        attempt = self.attempts.get((message["job_id"], message["attempt"]))
        if attempt is None or attempt.launch_mark != message.get("launch", attempt.launch_mark):
            error = "the node has no trace of it"
            self._notify({"type": "lost", **about(message), "error": error, "started": True})
        elif attempt.ended is not None:
            self._notify(attempt.ended)
        else:
            return attempt
        return None

    def _suspend(self, message: Message) -> None:
        if (attempt := self._of(message)) is not None:
            vacate = message.get("vacate", False)
            attempt.pausing.suspend(message["command_id"], vacate=vacate)

    def _resume(self, message: Message) -> None:
        if (attempt := self._of(message)) is not None:
            gpus = attempt.record.gpus if attempt.spans else message["gpus"]
            attempt.pausing.resume(message["command_id"], gpus, self._place(attempt, message))
            attempt.tuning.keep(message.get("batch"))

    def _resize(self, message: Message) -> None:
        if (attempt := self._of(message)) is not None:
            if attempt.seat is not None:
                attempt.seat.resize(message["command_id"], message["gpus"])
                return
            if attempt.elastic is None:
                raise AgentError(f"job {attempt.job_id} has a fixed number of GPUs")
            attempt.elastic.resize(message["command_id"], self._places(attempt, message))
            attempt.tuning.keep(message.get("batch"))
            self._cpus.give(attempt, message.get("millicores"))

    def _retune(self, message: Message) -> None:
        if (attempt := self._of(message)) is not None:
            attempt.tuning.tune(message["command_id"], message.get("batch"))

    def _set_cpus(self, message: Message) -> None:
        if (attempt := self._of(message)) is not None:
            self._cpus.give(attempt, message["millicores"])
            attempt.done(message["command_id"])

    def _place(self, attempt: Attempt, message: Message) -> list[int]:
        """Give an attempt that goes on its cores; those to bind its slots to, if any."""
        self._cpus.give(attempt, message.get("millicores"))
        held = attempt.record.millicores is not None or attempt.spans
        return [] if held else self.devices.cores_of(message["gpus"])

    def _stop(self, message: Message) -> None:
        if (attempt := self._of(message)) is not None:
            attempt.stop()

    def _fetch(self, message: Message) -> None:
        self._moves.arrive(message)

    async def _launch(self, message: Message) -> None:
        job_id, number = message["job_id"], message["attempt"]
        done = {"type": "done", "command_id": message["command_id"], **about(message)}
        # One may have the same number, and they still have their devices.
        while self._disowned or self._moves.still_has(job_id):
            await asyncio.sleep(LOOK_AGAIN_S)
        known = self.attempts.get((job_id, number))
        if known is not None and known.state == State.STARTING:
            return  # the answer follows when it has started
        if known is not None:
            self._notify(known.ended or done | {"at_s": known.record.launched_s})
            return
        for other in self.attempts.values():
            if other.job_id == job_id and other.ended is None:
                raise AgentError(f"attempt {other.number} of job {job_id} may still be alive here")
        folder = self.folder.attempt(self.node, job_id, number)
        for what in claim(self.folder, self.node, message):
            log.warning("%s", what)
            self._notify({"type": "set_aside", "what": what} | about(message))
        folder.mkdir(parents=True, exist_ok=True)
        failed_start.raise_if_known(folder)
        refusal = self._checkpoints.refusal if self._checkpoints is not None else None
        record = record_of(message, self.devices, refusal, self.folder.node(self.node))
        attempt = self._attempt(record, folder)
        attempt.tuning.keep(message.get("batch"))
        attempt.save()
        self.attempts[job_id, number] = attempt
        try:
            record = attempt.record
            if former := record.program.get("resume_from"):
                await self._inherit(attempt, former)
            if (tree := await self._snapshots.prepare(record, folder)) is not None:
                look_at_script(record, tree, self.devices)
                attempt.save()
            await attempt.abroad.open_to(record.gpus)
            requests = self._requests(record, folder, record.members, record.gpus)
            if attempt.seat is not None:
                await attempt.seat.take(requests, self._cpus.place(record))
            await attempt.launch(self._zygote.fork, requests)
        except (AgentError, OSError, ValueError) as error:
            (folder / "attempt.json").unlink(missing_ok=True)
            if attempt.seat is not None:
                await attempt.seat.abandon()
            if attempt in self._disowned:  # its end is not reported
                self._disowned.remove(attempt)
                return
            del self.attempts[job_id, number]
            failed_start.keep(folder, error)
            raise
        with contextlib.suppress(OSError):  # it runs, and its record was written before its start
            attempt.save()
        self._notify(attempt.registration())
        self._notify(attempt.ended or done | {"at_s": attempt.record.launched_s})

    async def _inherit(self, attempt: Attempt, former: str) -> None:
        """Copy a former job's checkpoints; give up once the attempt is told to end."""
        called_off = threading.Event()

        def goes_on() -> bool:
            return not (attempt.stopping or called_off.is_set())

        try:
            copy = partial(inherit, goes_on=goes_on, is_shared=not self._stays)
            await asyncio.to_thread(copy, self.folder, former, attempt.job_id)
        finally:  # a thread goes on when the task that waits for it is cancelled
            called_off.set()

    def _attempt(self, record: Record, folder: Path) -> Attempt:
        starter = Starter(self._zygote.fork, self._requests)
        seat = partial(FlowSeat, link=self._island, devices=self.devices)
        attempt = Attempt(record, folder, self._notify, starter, self._arenas, self._world, seat)
        attempt.usage = partial(self._meter.usage, attempt)
        attempt.holders = partial(self._meter.holders, attempt)
        attempt.at_rest = self._memory.look
        attempt.checkpointing.node = self._checkpoints
        attempt.refused = self._moves.refused
        attempt.abroad.tell = partial(self._tell_node, attempt)
        return attempt

    def _requests(
        self, record: Record, folder: Path, slots: list[int], gpus: list[int], **options: Any
    ) -> list[dict[str, Any]]:
        where = (folder, self.devices, self._sockets.path)
        place, memory_bytes = self._cpus.place(record), self._memory_left(record)
        no_warm = self._zygote.no_warm()
        options = {"place": place, "memory_bytes": memory_bytes, "no_warm": no_warm} | options
        if any(map(is_far, (*gpus, *record.gpus))):
            return gang_requests(record, *where, slots, gpus, **options)
        requests = rank_requests(record, *where, slots, gpus, **options)
        with contextlib.suppress(AgentError):  # others can't find this node: it has no gangs
            for request in requests if self._reach else ():
                request["env"]["ROTA_INTERFACE"] = interface_of(self._reach)
        return requests

    def _memory_left(self, record: Record) -> int | None:
        """What foreground attempts leave of each GPU's memory to a background one; None: no bound.

        One of which nothing is known yet is taken to need half of it.
        """
        if not (record.background and self.devices.memory_gb):
            return None
        left = dict.fromkeys(record.gpus, int(self.devices.memory_gb * 1e9))
        for attempt in self.attempts.values():
            if attempt.record.background or attempt.ended is not None:
                continue
            used = self._meter.usage(attempt).get("memory_most_bytes")
            for gpu in left.keys() & set(attempt.record.gpus):
                left[gpu] -= left[gpu] // 2 if used is None else min(left[gpu], used)
        return min(left.values())

    def _forget(self, job_id: str, number: int) -> None:
        attempt = self.attempts.get((job_id, number))
        if attempt is not None and attempt.ended is not None:
            del self.attempts[job_id, number]
            self._post.keep((job_id, number), [])
            with contextlib.suppress(OSError):  # else the next agent finds it again
                (attempt.folder / "attempt.json").rename(attempt.folder / "ended.json")
            if (own := attempt.folder / OWN).is_dir():
                self._spawn(asyncio.to_thread(thin, own))

    def _disown(self, message: Message) -> None:
        """End an attempt that the controller's log does not know, without reporting it."""
        key = (message["job_id"], message["attempt"])
        attempt = self.attempts.get(key)
        if attempt is None or attempt.launch_mark != message["launch"]:
            self._moves.call_off(key)
            return
        del self.attempts[key]
        said = (
            "attempt %s of job %s is of another event log: it is ended; what it has left is in %s"
        )
        log.warning(said, key[1], key[0], attempt.folder)
        attempt.notify = lambda _: None
        self._disowned.add(attempt)
        attempt.stop()
        self._spawn(self._end_disowned(attempt))

    async def _end_disowned(self, attempt: Attempt) -> None:
        while attempt.ended is None or any(rank.alive for rank in attempt.ranks):
            if attempt not in self._disowned:  # never started
                return
            await asyncio.sleep(LOOK_AGAIN_S)
        with contextlib.suppress(OSError):
            (attempt.folder / "attempt.json").rename(attempt.folder / "ended.json")
        self._disowned.discard(attempt)

    async def _shut_down(self, *, ends: bool = True, grace_s: float | None = None) -> None:
        """End every process of every job here, then if it ``ends`` this agent.

        Each job has its own grace, unless ``grace_s`` is given.
        """
        self._moves.call_all_off()
        for attempt in list(self.attempts.values()):  # one that has just come here leaves
            attempt.stop(grace_s)
        graces_s = [grace_of(guest.record.program) for guest in self._guests.all()]
        after_s = grace_s if grace_s is not None else max(graces_s, default=0.0)
        self._spawn(self._guests.end_all(after_s))  # the time that their attempts have
        while self._is_busy():
            await asyncio.sleep(0.02)
        if not ends:
            return
        deadline = asyncio.get_running_loop().time() + FAREWELL_S
        while self.attempts and self._link.connected:  # until the controller has recorded every end
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        self._ending.set()


# What an agent does with each kind of command. What it returns, if anything, is awaited.
CARRIED_OUT: dict[str, Callable[[Agent, Message], Coroutine[Any, Any, None] | None]] = {
    "launch": Agent._launch,
    "suspend": Agent._suspend,
    "resume": Agent._resume,
    "migrate": Agent._fetch,
    "park": Agent._fetch,
    "resize": Agent._resize,
    "retune": Agent._retune,
    "setcpus": Agent._set_cpus,
    "stop": Agent._stop,
}
