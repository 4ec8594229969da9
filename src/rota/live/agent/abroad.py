"""The processes of an attempt that are on other nodes than its agent, by their nodes' agents.

Each agent there has a :class:`~rota.live.agent.guest.Guest`, which does as it is told from here. To
all others, a process of these is a :class:`FarRank`: like any rank, but its answers take a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from rota.errors import AgentError
from rota.live.agent.network import Meeting, reach
from rota.live.agent.rank import Rank, is_exit
from rota.live.agent.record import Record
from rota.live.wire import PULSE, Message
from rota.live.wire.messages import from_worker
from rota.live.wire.places import is_far, node_and_gpu

PREPARE_S = 120.0  # for another node to have everything ready: a snapshot may have to be fetched
START_S = 120.0  # for a process to be there
LOOK_S = 0.5  # between two looks at the processes


class Tell(Protocol):
    """Tells the agent of another node something."""

    def __call__(self, node: str, body: Message, *, can_wait: bool = False) -> object:
        """Tell it; what ``can_wait`` is left out while something else is on its way."""


class FarRank(Rank):
    """A process on another node."""

    is_far = True

    def __init__(self, index: int, folder: Path, abroad: Abroad, node: str) -> None:
        super().__init__(index, folder)
        self.node = node
        self._abroad = abroad
        self._begun = False
        self._asked_to_stop = False
        self._asked_to_spare = 0
        self._has_stopped = False
        self._ended: Callable[[], object] | None = None

    @property
    def alive(self) -> bool:
        """True if it has been started, and has not been told to have ended."""
        return self._begun and self.exit is None and not self.gone

    @property
    def last_printed(self) -> bytes:
        """The last that it has printed, as its agent told with its failure."""
        return str((self.exit or {}).get("last", "")).encode()

    def opened(self, writer: Any, session: int) -> bool:
        """A process has opened a session there; its agent tells of one at a time."""
        self.writer, self.session = writer, session
        return True

    def send(self, message: Message) -> None:
        """Send a message to the worker, if it is connected."""
        if self.writer is not None:
            self._tell({"do": "send", "message": message})

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and all its descendants."""
        if self.alive:
            self.unstopped = 0
            self._asked_to_stop = self._has_stopped = False
            self._tell({"do": "signal", "number": int(number)})

    def go_on(self) -> None:
        """Have the worker and all its descendants go on, as on this node."""
        self.signal(signal.SIGCONT)

    def ask_to_end(self, grace_s: float, left_s: float | None = None) -> None:
        """Have the program asked to end, as on this node."""
        if self.alive:
            self._asked_to_stop = self._has_stopped = False
            number = int(signal.SIGTERM)
            self._tell({"do": "signal", "number": number, "grace_s": grace_s, "left_s": left_s})

    def stop(self, spared: int = 0) -> bool:
        """Have the worker and all its descendants stopped; True once they are."""
        if self.alive and not self._asked_to_stop:
            self._asked_to_stop, self._asked_to_spare = True, spared
            self._tell({"do": "stop", "spared": spared})
        return self._has_stopped or not self.alive

    def has_stopped(self, unstopped: int) -> None:
        """All but so many processes, another user's, are stopped."""
        if self._asked_to_stop:
            self._has_stopped, self.unstopped = True, unstopped

    def is_let_go_on(self, *, frozen: bool) -> None:
        """A new agent has let it go on: it is stopped again if it is ``frozen``, or was to be."""
        if frozen or self._asked_to_stop:
            self._asked_to_stop = self._has_stopped = False
            self.stop(self._asked_to_spare)

    def below(self, spared: int = 0) -> set[int]:
        """None: processes of another node have no numbers here."""
        return set()

    def give_grace(self) -> None:
        """Nothing: such attempts are stopped."""

    def take_grace_back(self) -> None:
        """Nothing, as :meth:`give_grace`."""

    async def start(self, fork: Callable[[dict[str, Any]], Any], request: Any) -> None:
        """Have the process started by its agent. Raises AgentError."""
        self._begun = True
        await self._abroad.start(self, request)

    async def abandon(self) -> None:
        """Have the process killed, started or not."""
        self.let_go()

    def find(self) -> None:
        """Take it for alive until its agent says otherwise."""
        self._begun = True

    def find_after_reboot(self) -> None:
        """This machine's reboot is none of its own; the others of its gang have ended."""
        self._begun = True
        self.let_go()

    def read_exit(self) -> None:
        """Go by what its agent has told."""
        if self.exit is not None:
            self.gone = False

    def watch(self, ended: Callable[[], object]) -> None:
        """Call ``ended`` when it is told to have ended, or at once if it was."""
        self._ended = ended
        if not self.alive:
            asyncio.get_running_loop().call_soon(ended)

    def close(self) -> None:
        """Watch no more."""
        self._ended = None

    def has_ended(self, told: Any, *, began: bool = True) -> None:
        """Its agent tells that it has ended, and how, if that is known, or that it never began."""
        if self.alive:
            self.never_started = not began
            self.exit = told if is_exit(told) else None
            self.gone = self.exit is None
            if self._ended is not None:
                self._ended()

    def let_go(self) -> None:
        """Have it ended for good: it counts as gone from now on."""
        self._tell({"do": "leave"})
        if self.alive:
            self.gone = True
            if self._ended is not None:
                asyncio.get_running_loop().call_soon(self._ended)

    def _tell(self, body: Message) -> None:
        self._abroad.tell(self.node, {"slot": self.index} | body)


class Wire:
    """A session on another node, in place of a connection."""

    def __init__(self, rank: FarRank) -> None:
        self._rank = rank

    def is_closing(self) -> bool:
        """False: its agent tells when it is closed."""
        return False

    def close(self) -> None:
        """Nothing: there is none to close."""


class Sessions(Protocol):
    """Takes what sessions say, wherever they are."""

    ranks: list[Rank]

    def joined(self, index: int, writer: Any, hello: Message, session: int = 0) -> None:
        """A process opened a session."""

    def heard(self, index: int, message: Message) -> None:
        """A process with a session says something."""

    def left(self, index: int, writer: Any) -> None:
        """A session was closed."""


class Abroad:
    """What an attempt has on other nodes.

    ``tell`` gives the agent of one of them something, unless the last that it was given is not
    confirmed yet and that can wait. ``sessions`` is the attempt.
    """

    def __init__(self, record: Record, folder: Path) -> None:
        self._record, self._folder = record, folder
        self.tell: Tell = _to_nobody
        self.sessions: Sessions
        self._ready: dict[str, asyncio.Future[Message]] = {}  # by node: its answer to "prepare"
        self._met: dict[str, asyncio.Future[Message]] = {}  # likewise, to "meet"
        self._opening: list[str] = []  # nodes that are to have processes in a moment
        self._starting: dict[int, asyncio.Future[Message]] = {}  # by slot

    @property
    def nodes(self) -> list[str]:
        """The other nodes that have processes of the attempt."""
        far = (r for r in self.sessions.ranks if isinstance(r, FarRank) and r.alive)
        return sorted({rank.node for rank in far})

    @property
    def partners(self) -> set[str]:
        """The other nodes that have processes, or are getting ready for some."""
        return {*self.nodes, *self._ready, *self._met, *self._opening}

    async def open_to(self, gpus: Iterable[int]) -> None:
        """Have the nodes of these GPUs ready, if there are any without the attempt's processes.

        Raises AgentError.
        """
        at = {node_and_gpu(gpu)[0] for gpu in gpus if is_far(gpu)}
        wanted = [self._record.nodes[each]["name"] for each in sorted(at)]
        self._opening = wanted
        if not set(self.nodes).issuperset(wanted):
            await self.prepare([*wanted, *(name for name in self.nodes if name not in wanted)])

    def call_off(self, error: str) -> None:
        """Wait no longer for what other nodes are to get ready or start."""
        for asked in (self._ready, self._met, self._starting):
            for future in asked.values():
                if not future.done():
                    future.set_exception(AgentError(error))
                    future.exception()  # nobody may be waiting for it any more

    def rank(self, slot: int) -> FarRank:
        """The process of a slot that is on another node."""
        node = self._record.nodes[self._record.far[str(slot)]]["name"]
        return FarRank(slot, self._folder, self, node)

    # -- starting ------------------------------------------------------------------------------

    async def prepare(self, nodes: list[str]) -> None:
        """Have everything ready on other nodes, and see that all nodes reach each other.

        Raises AgentError, which names the node or the pair.
        """
        own, addresses = self._record.nodes[0], {}
        for each in self._record.nodes:
            addresses[each["name"]] = each["address"]
            if each["name"] in (own["name"], *nodes) and not each["address"]:
                raise AgentError(f"node {each['name']} has no address at which others find it")
        for each in self._record.nodes:
            if each["name"] in nodes:
                self._ready[each["name"]] = asyncio.get_running_loop().create_future()
                self.tell(each["name"], {"do": "prepare", "address": each["address"]})
        meeting = Meeting(own["address"])
        try:
            ports = await self._answers(self._ready, "did not get ready")
            places = [(node, addresses[node], int(told["port"])) for node, told in ports.items()]
            places.append((own["name"], own["address"], meeting.port))
            for node in nodes:
                self._met[node] = asyncio.get_running_loop().create_future()
                others = [place for place in places if place[0] != node]
                self.tell(node, {"do": "meet", "places": others})
            if error := await reach(places[:-1]):
                raise AgentError(f"node {own['name']}: {error}")
            await self._answers(self._met, "did not try to reach the others")
        finally:
            meeting.close()
            self._met.clear()

    async def _answers(
        self, asked: dict[str, asyncio.Future[Message]], what: str
    ) -> dict[str, Message]:
        try:
            soon = asyncio.FIRST_EXCEPTION
            done, late = await asyncio.wait(asked.values(), timeout=PREPARE_S, return_when=soon)
            errors = [error for future in done if (error := future.exception()) is not None]
            if errors:
                raise errors[0]
            if late:
                silent = next(node for node, future in asked.items() if future in late)
                raise AgentError(f"node {silent} {what} within {PREPARE_S:.0f} s")
            return {node: future.result() for node, future in asked.items()}
        finally:
            asked.clear()

    async def start(self, rank: FarRank, request: Message) -> None:
        """Have a process started. Raises AgentError."""
        told = self._starting[rank.index] = asyncio.get_running_loop().create_future()
        self.tell(rank.node, {"do": "start", "slot": rank.index, **request})
        try:
            async with asyncio.timeout(START_S):
                await told
        except TimeoutError:
            raise AgentError(f"node {rank.node} did not start its process in time") from None
        finally:
            self._starting.pop(rank.index, None)
            self._opening = []

    # -- what other agents say -----------------------------------------------------------------

    def look(self) -> None:
        """Ask how the processes are."""
        for node in self.nodes:
            self.tell(node, {"do": "look"}, can_wait=True)

    def is_anew(self, node: str) -> None:
        """A node's agent has started anew: it tells of the sessions once more."""
        frozen = self._record.frozen and self._record.suspended_s is not None
        for rank in self.sessions.ranks:
            if isinstance(rank, FarRank) and rank.node == node:
                if rank.writer is not None:
                    self.sessions.left(rank.index, rank.writer)
                rank.is_let_go_on(frozen=frozen)

    def hear(self, node: str, body: Message) -> None:
        """A word of another node's agent. Raises AgentError, KeyError, TypeError, ValueError."""
        said = body["said"]
        for kind, asked in (("prepared", self._ready), ("met", self._met)):
            if said == kind and node in asked:
                _settle(asked[node], node, body)
        if said == "seen":
            self._see(node, {told["slot"]: told for told in body["slots"]})
            return
        if said == "unknown":
            self._see(node, {})
            return
        if "slot" not in body:
            return
        if (rank := self._rank_of(node, body["slot"])) is not None:
            self._hear_of(rank, said, body)

    def _hear_of(self, rank: FarRank, said: str, body: Message) -> None:
        if said == "started":
            if (future := self._starting.get(rank.index)) is not None:
                _settle(future, rank.node, body)
        elif said == "joined":
            hello = from_worker(body["line"].encode())
            self.sessions.joined(rank.index, Wire(rank), hello, int(body["session"]))
        elif said == "left":
            if rank.writer is not None:
                self.sessions.left(rank.index, rank.writer)
        elif said == "heard":
            if rank.writer is not None:
                self.sessions.heard(rank.index, from_worker(body["line"].encode()))
        elif said == "stopped":
            rank.has_stopped(int(body["unstopped"]))
        elif said == "ended":
            rank.has_ended(body["exit"])

    def _rank_of(self, node: str, slot: int) -> FarRank | None:
        ranks = self.sessions.ranks
        rank = ranks[slot] if 0 <= slot < len(ranks) else None
        return rank if isinstance(rank, FarRank) and rank.node == node else None

    def _see(self, node: str, slots: dict[int, Message]) -> None:
        """Note how all processes on a node are; one that is not told of has never been there."""
        for rank in list(self.sessions.ranks):
            if not isinstance(rank, FarRank) or rank.node != node or rank.index in self._starting:
                continue
            if (told := slots.get(rank.index)) is None:
                rank.has_ended(None, began=False)
            else:
                self._see_one(rank, told)

    def _see_one(self, rank: FarRank, told: Message) -> None:
        """Note how a process is: its pulse, as if it beat here, or its end."""
        if not told["alive"]:
            rank.has_ended(told["exit"], began=told.get("began", True))
        elif (beat := told["beat"]) is not None:
            phase, age_s, computed_s, samples = beat
            since_s = asyncio.get_running_loop().time() - age_s
            with contextlib.suppress(OSError):
                path = self._folder / f"rank{rank.index}.pulse"
                path.write_bytes(PULSE.pack(phase, since_s, computed_s, samples))


def _settle(future: asyncio.Future[Message], node: str, told: Message) -> None:
    """Take an answer of a node, or the error that it tells."""
    if not future.done():
        if error := told.get("error"):
            future.set_exception(AgentError(f"node {node}: {error}"))
            future.exception()  # nobody may be waiting for it any more
        else:
            future.set_result(told)


def _to_nobody(node: str, body: Message, *, can_wait: bool = False) -> None:
    """An attempt without an agent has nobody to tell."""
