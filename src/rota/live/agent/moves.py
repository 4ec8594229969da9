"""Attempts that move between this node and others."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent.attempt import Attempt
from rota.live.agent.attempt_report import SPANS, Account
from rota.live.agent.claim import claim, release
from rota.live.agent.devices import Devices
from rota.live.agent.direct_link import fetch_directly
from rota.live.agent.launching import visible_gpus
from rota.live.agent.migrate_in import MARK, Arrival
from rota.live.agent.migrate_out import Departure
from rota.live.agent.processes import LOOK_AGAIN_S, started_at
from rota.live.agent.record import Record, record_from
from rota.live.agent.states import State
from rota.live.wire import Message, tags

PARK = "park"  # the kind of a command that brings an attempt here to wait

log = logging.getLogger("rota.agent")

Key = tuple[str, int]
Send = Callable[[Message, bytes], None]


class Moves:
    """Attempts that arrive at this node, and attempts that leave it.

    ``attempts`` are the node's; ``make`` builds one from its record and folder; ``place`` gives it
    its cores, and returns those to bind its slots to; ``send`` gives the controller a message, with
    raw bytes if there are any, ``spawn`` starts a task, and ``prepare`` makes the folder that an
    attempt runs in if that is its own.
    """

    def __init__(
        self,
        folder: Folder,
        node: str,
        devices: Devices,
        attempts: dict[Key, Attempt],
        make: Callable[[Record, Path], Attempt],
        place: Callable[[Attempt, Message], list[int]],
        send: Send,
        spawn: Callable[[Any], asyncio.Task[Any]],
        prepare: Callable[[Record, Path], Awaitable[object]],
    ) -> None:
        self._folder = folder
        self._node = node
        self._devices = devices
        self._attempts = attempts
        self._make = make
        self._place = place
        self._send = send
        self._spawn = spawn
        self._prepare = prepare
        self._arrivals: dict[Key, Arrival] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._links: dict[Key, asyncio.Task[None]] = {}
        self._ending: dict[Key, set[asyncio.Task[None]]] = {}  # over, and not yet gone from disk
        self._departures: dict[Key, Departure] = {}

    @property
    def keys(self) -> set[Key]:
        """The attempts that are on their way here."""
        return set(self._arrivals)

    @property
    def arrivals(self) -> list[Message]:
        """Attempts on their way here, for the controller to compare."""
        return [
            {"type": "arriving", **_about(key, arrival.launch)}
            for key, arrival in self._arrivals.items()
        ]

    def adopt(self) -> None:
        """Find what an earlier agent was fetching; the controller says whether to continue."""
        for file in self._folder.node(self._node).glob(f"jobs/*/*/{MARK}"):
            key = (file.parent.parent.name, int(file.parent.name))
            if key in self._attempts:
                file.unlink()
                continue
            try:
                found = json.loads(file.read_text())
                source, launch = str(found["source"]), found.get("launch")
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                source, launch = "", None
            self._arrivals[key] = self._arrival(key, source, launch)

    # -- coming --------------------------------------------------------------------------------

    def arrive(self, message: Message) -> None:
        """Bring an attempt here, to continue or, if it is to be parked, to wait suspended.

        ``done`` or ``failed`` follows. Raises AgentError.
        """
        key = (message["job_id"], message["attempt"])
        if message["source"] == self._node:
            raise AgentError(f"the state of job {key[0]} is on this node, {self._node}, already")
        known = self._attempts.get(key)
        if known is not None and _is_left_over(known, message):
            self.leave(key)
            known = None
        if known is not None and known.ended is not None:
            self._send(known.ended, b"")
            return
        if known is not None:
            try:
                self._carry_on(known, message)
            except AgentError as error:
                if not known.is_guest:
                    raise
                known.ending.could_not_go_on(str(error))
            return
        for other in self._attempts.values():
            if other.job_id == key[0] and other.ended is None:
                raise AgentError(f"attempt {other.number} of job {key[0]} may still be alive here")
        arrival = self._arrivals.get(key)
        source, launch = message["source"], message.get("launch")
        if arrival is None or (arrival.source, arrival.launch) != (source, launch):
            self.call_off(key)
            arrival = self._arrivals[key] = self._arrival(key, source, launch)
        arrival.epoch = message["epoch"]
        if key not in self._running:
            self._running[key] = self._spawn(self._fetch(key, arrival, message))

    def heard(self, message: Message, piece: bytes = b"") -> None:
        """An answer from the node that an attempt comes from."""
        arrival = self._arrivals.get((message["job_id"], message["attempt"]))
        if arrival is not None:
            arrival.heard(message, piece)

    def take_ticket(self, message: Message) -> None:
        """Fetch the pieces of an attempt directly, by this ticket; without one, no longer."""
        key = (message["job_id"], message["attempt"])
        self._hang_up(key)
        arrival = self._arrivals.get(key)
        if arrival is not None and message["ticket"] is not None:
            self._links[key] = self._spawn(fetch_directly(arrival, message))

    def _hang_up(self, key: Key) -> None:
        if (link := self._links.pop(key, None)) is not None:
            link.cancel()

    def call_off(self, key: Key) -> None:
        """Remove everything of an attempt that was on its way here."""
        self._hang_up(key)
        task, arrival = self._running.pop(key, None), self._arrivals.pop(key, None)
        if arrival is None:
            return
        if task is None:
            arrival.discard()
            return
        self._let_end(key, task, arrival.discard)
        task.cancel()

    def still_has(self, job_id: str) -> bool:
        """True if processes of an attempt of the job that has left may still be there."""
        return any(key[0] == job_id for key in self._ending)

    def call_all_off(self) -> None:
        """Remove everything that was on its way here."""
        for key in list(self._arrivals):
            self.call_off(key)

    def _arrival(self, key: Key, source: str, launch: str | None) -> Arrival:
        folder = self._folder.attempt(self._node, *key)
        arenas = self._folder.arenas(self._node)
        checkpoints = self._folder.checkpoints(key[0])
        return Arrival(
            source, *key, folder, arenas, checkpoints, lambda told: self._send(told, b""), launch
        )

    async def _fetch(self, key: Key, arrival: Arrival, message: Message) -> None:
        command_id = message["command_id"]
        if key in self._ending:
            await asyncio.wait(self._ending[key])
        try:
            for what in claim(self._folder, self._node, message):
                log.warning("%s", what)
                self._send({"type": "set_aside", "what": what} | _about(key, arrival.launch), b"")
            record = record_from(await arrival.run())
            await self._prepare(record, arrival.folder)
            attempt = self._settle(arrival, record, message["gpus"])
        except (AgentError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("job %s.%s did not arrive: %s", *key, error)
            self._running.pop(key, None)
            self.call_off(key)
            failed = {"type": "failed", "command_id": command_id, "error": str(error)}
            self._send(failed | _about(key, arrival.launch), b"")
            return
        del self._running[key], self._arrivals[key]
        self._hang_up(key)
        took_s = time.monotonic() - arrival.began_s
        size, direct = arrival.received_bytes, arrival.direct_bytes
        text = "job %s.%s: %d bytes from %s in %.3f s, %d of them directly"
        log.info(text, *key, size, arrival.source, took_s, direct)
        try:
            self._carry_on(attempt, message)
        except AgentError as error:
            attempt.ending.could_not_go_on(str(error))

    def _carry_on(self, attempt: Attempt, message: Message) -> None:
        """Let an attempt that is here continue, or wait, as the command says. Raises AgentError."""
        if message["kind"] == PARK:
            attempt.pausing.stay(message["command_id"])
            return
        cores = self._place(attempt, message)
        attempt.pausing.resume(message["command_id"], message["gpus"], cores)
        attempt.tuning.keep(message.get("batch"))

    def _settle(self, arrival: Arrival, record: Record, gpus: list[int]) -> Attempt:
        """Make an attempt of what has arrived: suspended, with its state in arenas of this node."""
        cooperative = record.movable
        record.source = arrival.source  # where the state lies as well, until this node has it
        record.parked = None
        record.secret = tags.new_secret(self._folder.node(self._node))
        record.gpus = gpus
        record.visible = visible_gpus(gpus, self._devices, everything=cooperative)
        record.movable = self._devices.kind == "cpu" or cooperative
        attempt = self._make(record, arrival.folder)
        attempt.save()
        (arrival.folder / MARK).unlink(missing_ok=True)
        self._attempts[arrival.job_id, arrival.number] = attempt
        attempt.adopt()
        if attempt.ended is not None:
            raise AgentError(f"the state of job {attempt.job_id} was damaged on its way")
        return attempt

    def refused(self, attempt: Account) -> None:
        """An attempt that arrived could not continue here: it still exists at its source."""
        key = (attempt.job_id, attempt.number)
        self._attempts.pop(key, None)
        self._clear(key, attempt)

    # -- going ---------------------------------------------------------------------------------

    async def answer(self, question: Message) -> None:
        """Answer another node's question through the controller, or send it a piece."""
        about = {key: question[key] for key in ("job_id", "attempt")}
        reply, piece = await self.reply((about["job_id"], about["attempt"]), question)
        self._send({"type": "fetched", "node": question["asker"], **about, **reply}, piece)

    async def reply(self, key: Key, question: Message) -> tuple[Message, bytes]:
        """The reply to another node's question about an attempt, and a piece if it asks for one."""
        attempt = self._attempts.get(key)
        try:
            if attempt is None or attempt.ended is not None:
                raise AgentError(f"node {self._node} has no trace of job {key[0]}")
            if attempt.spans:
                raise AgentError(f"job {key[0]} can't move: {SPANS}")
            departure = self._departures.setdefault(
                key, Departure(attempt, self._folder.checkpoints(key[0]))
            )
            return await departure.answer(question)
        except (AgentError, OSError) as error:
            return {"error": str(error)}, b""

    def leave(self, key: Key) -> None:
        """The attempt is elsewhere: remove it here, and fetch nothing more of it."""
        self.call_off(key)
        if (departure := self._departures.pop(key, None)) is not None:
            departure.over()
        attempt = self._attempts.pop(key, None)
        if attempt is not None:
            attempt.ending.vanish(State.MOVED)
            self._clear(key, attempt)

    def _clear(self, key: Key, attempt: Account) -> None:
        """Remove the folder of an attempt, once the processes that write into it are gone."""
        shims = [rank.shim for rank in attempt.ranks if rank.alive]
        alive = {shim: began for shim in shims if (began := started_at(shim)) is not None}

        async def wait() -> None:
            # Ranks that are being forked are abandoned, by the task that forks them.
            while attempt.tasks or any(started_at(s) == began for s, began in alive.items()):
                await asyncio.sleep(LOOK_AGAIN_S)

        if alive or attempt.tasks:  # each shim writes down how its worker has ended
            self._let_end(key, self._spawn(wait()), partial(release, attempt.folder))
        else:
            release(attempt.folder)

    def _let_end(self, key: Key, task: asyncio.Task[None], then: Callable[[], None]) -> None:
        """Run ``then`` after a task; until then, nothing else begins to arrive under this key."""
        tasks = self._ending.setdefault(key, set())
        tasks.add(task)

        def ended(_: object) -> None:
            tasks.remove(task)
            if not tasks:
                del self._ending[key]
            then()

        task.add_done_callback(ended)


def _is_left_over(known: Attempt, message: Message) -> bool:
    """True if an attempt that is to come here was left from its last stay on this node."""
    if known.record.source is not None or known.state != State.SUSPENDED:
        return False
    is_repeated = message["kind"] == PARK and known.record.parked == message["command_id"]
    return not is_repeated


def _about(key: Key, launch: str | None) -> Message:
    about: Message = {"job_id": key[0], "attempt": key[1]}
    return about if launch is None else about | {"launch": launch}
