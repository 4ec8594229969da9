"""Nodes of a Ray cluster: each belongs to a placement group of its own, and to a detached actor.

The actor starts an agent as nobody's child, or finds the one that an actor before it has started.
Group and actor have the name of their node, in a namespace of Ray that has the name of the cluster.
Ray is asked by a process of its own, one request after another, at most one a second.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from rota.live.provider.book import Book

PACE_S = 1.0  # between two requests
CALL_S = 60.0  # for Ray to answer
FORCE_S = 120.0  # to end all by force
AGAIN_S = 10.0  # to give back what is still there, and to start an actor that is not
IN_ORDER = (0, 5)  # the exit codes of an agent that was told to end, or is not wanted
LAST_WORDS_BYTES = 8192
DRIVER = "rota.live.provider.ray_driver"

log = logging.getLogger("rota.provider")


class RayError(Exception):
    """Ray can't be asked, or has refused: the reason in its own words, and what to do.

    ``is_silence``: it did not answer, and may do so later.
    """

    def __init__(self, text: str, *, is_silence: bool = False) -> None:
        super().__init__(text)
        self.is_silence = is_silence


class RayDriver:
    """The process that speaks with Ray: started when it is needed, and anew when it has died.

    ``address`` is that of Ray's head, or None for what RAY_ADDRESS says or this machine is a node
    of; ``token`` the path of the file with the cluster's token, if it has one. ``head`` is the
    address of the head as Ray itself tells it once it is connected, and "" before. Calls block, one
    at a time.
    """

    def __init__(self, address: str | None, token: str | None, cluster: str) -> None:
        self.address, self.token, self.cluster = address, token, cluster
        self.head = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: IO[str] | None = None
        self._said: IO[bytes] | None = None
        self._one = threading.Lock()

    def connect(self) -> None:
        """Connect to Ray, unless it is connected. Raises RayError."""
        with self._one:
            self._connect()

    def call(self, do: str, timeout_s: float = CALL_S, **words: Any) -> Any:
        """The answer to a request. Raises RayError."""
        with self._one:
            self._connect()
            assert self._lines is not None
            with contextlib.suppress(OSError):  # it has died: there is no answer
                self._lines.write(json.dumps({"do": do} | words) + "\n")
                self._lines.flush()
            return self._answer(timeout_s)

    def close(self) -> None:
        """End the process; what it was asked for stays. A call that goes on raises RayError."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _connect(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        own, others = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is collected
        with others:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", DRIVER),
                    *(self.address or "", self.cluster, str(others.fileno())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                env=self._environment(),
                pass_fds=[others.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is for the controller
            )
        self._channel = own
        self._lines = own.makefile("rw")
        try:
            self.head = self._answer(CALL_S)
        except RayError:
            self.close()
            raise

    def _answer(self, timeout_s: float) -> Any:
        assert self._lines is not None
        self._channel.settimeout(timeout_s)
        try:
            line = self._lines.readline()
        except TimeoutError:
            self.close()
            raise RayError(f"no answer in {timeout_s:g} s", is_silence=True) from None
        except OSError:
            line = ""
        if not line.endswith("\n"):  # it has died, perhaps within a line
            self.close()
            words = self._last_words() or "the process that speaks with it has died"
            raise RayError(words, is_silence=True)
        told = json.loads(line)
        if "error" in told:
            words = told["error"]
            if told["is_silence"] and "oken" in (said := self._last_words()):
                words = f"{said}: {words}"  # Ray tells of a wrong token there alone
            raise RayError(words, is_silence=told["is_silence"])
        return told["value"]

    def _last_words(self) -> str:
        """The last line that Ray has written."""
        assert self._said is not None
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        lines = self._said.read().decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last.rpartition("] ")[2]

    def _environment(self) -> dict[str, str]:
        own = {key: each for key, each in os.environ.items() if not key.startswith("ROTA_")}
        own |= {
            "RAY_NUM_REDIS_GET_RETRIES": "3",  # a second each
            "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        if self.token is not None:
            own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self.token}
            own.pop("RAY_AUTH_TOKEN", None)
        return own


class Claim(NamedTuple):
    """A node's placement group, as Ray told it last; ``words`` are Ray's own about it."""

    id: str
    state: str
    words: str
    host: str


class Groups:
    """Placement groups of the nodes in ``book``, of ``gpus`` GPUs or of whole nodes.

    ``agent`` are the arguments of Python that run an agent, but for the name of its node; ``home``
    is the state folder on the nodes. ``file`` keeps the hosts of agents, and by what they are let
    in. ``pace_s`` is the time between two requests.
    """

    def __init__(
        self,
        book: Book,
        driver: RayDriver,
        agent: Sequence[str],
        home: str,
        file: Path,
        *,
        gpus: int | None = None,
        pace_s: float = PACE_S,
    ) -> None:
        self.book, self.pace_s = book, pace_s
        self._driver, self._agent, self._home = driver, list(agent), home
        self._started, self._gpus = Started(file), gpus
        self._claims: dict[str, Claim] = {}
        self._actors: dict[str, str] = {}
        self._hosts: dict[str, dict[str, Any]] = {}
        self._lost: set[str] = set()  # the nodes whose groups are gone, or are elsewhere
        self._surely_over: set[str] = set()  # their agents have ended with all jobs
        self._start_s: dict[str, float] = {}  # when to start an actor that is not there yet,
        self._back_s: dict[str, float] = {}  # and to give back what is there still

    def begin(self) -> None:
        """Note again what the last controller had asked for, and has not heard of."""
        self.book.recall()
        self.book.note_unheard(())

    def close(self) -> None:
        """End a request that goes on."""
        self._driver.close()

    async def leave(self) -> None:
        """Nothing: there are groups and actors alone."""

    # -- what is known -------------------------------------------------------------------------

    def about(self, name: str) -> str:
        """The group and the actor by the beginnings of their ids in `ray list`, and the host."""
        claim = self._claims.get(name)
        if claim is None:
            return "Ray"
        actor = f", actor {self._actors[name][:12]}" if name in self._actors else ""
        at = self._hosts.get(claim.host, {}).get("address")
        return f"Ray placement group {claim.id[:12]}{actor}" + (f", on {at}" if at else "")

    def leaves_s(self, name: str) -> float | None:
        """None: Ray has no deadlines."""
        return None

    def wants_back(self, name: str) -> bool:
        """False: Ray asks nobody to go."""
        return False

    def why(self, name: str) -> str:
        """Ray's words about a group that waits."""
        if said := self.book.why(name):
            return said
        claim = self._claims.get(name)
        if claim is None:
            return "Ray was asked for it"
        if claim.host:
            return f"{self.about(name)}: its agent has yet to connect"
        return f"Ray: {claim.words}, {self.book.held(self._has_place)}"

    def is_placed(self, name: str) -> bool:
        """True if an agent was started, which has yet to call this controller."""
        return name in self._started.hosts

    def _has_place(self, name: str) -> bool:
        return name in self._claims and bool(self._claims[name].host)

    def _may_run(self, name: str) -> bool:
        """True if processes may live on a node, as far as is known."""
        if name in self._surely_over or name not in self._started.hosts:
            return False
        return self.book.may_run(name)

    # -- what is asked -------------------------------------------------------------------------

    async def turn(self) -> None:
        """Make at most one request of Ray: whatever is due first."""
        book, now_s = self.book, self.book.clock()
        is_due = book.is_look_due(self.pace_s, is_quiet=not self._lost)
        if book.trouble:
            if is_due:
                await self._look()
        elif names := book.to_ask():
            await self._ask(names)
        elif back := self._to_give_back(now_s):
            await self._give_back(back, now_s)
        elif name := self._to_start(now_s):
            self._start_s[name] = now_s + AGAIN_S
            await self._start_agent(name)
        elif is_due:
            await self._look()

    async def _call(self, do: str, **words: Any) -> Any:
        """The answer; None if there is none. Raises RayError if it is a refusal."""
        try:
            told = await asyncio.to_thread(self._driver.call, do, **words)
        except RayError as error:
            if not error.is_silence:
                raise
            self.book.heard(str(error))
            return None
        self.book.heard()
        self.book.content(do)
        return told

    async def _ask(self, names: list[str]) -> None:
        """Ask for what was noted. Ray knows a name once: what it has is not asked for again.

        Without an answer Ray may have some of it: the next look tells.
        """
        self.book.asked.ask(names)
        self.book.look_soon()
        try:
            if await self._call("ask", names=names, gpus=self._gpus) is not None:
                return
        except RayError as error:
            self.book.fail(f"Ray refuses it: {error}")
        self.book.unheard.update(names)

    def _to_give_back(self, now_s: float) -> list[str]:
        """The nodes with a group or an actor that nobody needs."""
        gone = self.book.given_up.keys() | self._lost
        return [
            name
            for name in self._claims
            if now_s >= self._back_s.get(name, 0.0)
            and (name in self._surely_over or (name in gone and not self._holds(name, now_s)))
        ]

    def _holds(self, name: str, now_s: float) -> bool:
        """True if the group of a node that is given up or lost is kept for its jobs yet."""
        if name in self._lost:  # else Ray would have it somewhere else
            return self._is_in_place(name) and self._may_run(name)
        return now_s < self.book.given_up[name] or self._may_run(name)

    def _is_in_place(self, name: str) -> bool:
        """True if a node's group is on the host where its agent was started."""
        claim = self._claims.get(name)
        if claim is None or claim.state != "CREATED":
            return False
        return claim.host == self._started.hosts.get(name)

    async def _give_back(self, names: list[str], now_s: float) -> None:
        """Kill agents that live yet, and give back; what is there still is tried again later."""
        self._back_s |= dict.fromkeys(names, now_s + AGAIN_S)
        self.book.look_soon()
        try:
            await self._call("give_back", names=names)
        except RayError as error:
            self.book.complain("give_back", f"Ray can't take nodes back: {error}")

    def _to_start(self, now_s: float) -> str | None:
        """A node with a place and without an actor."""
        return next(
            (
                name
                for name, claim in self._claims.items()
                if claim.state == "CREATED"
                and claim.host
                and name not in self._actors
                and name not in self.book.given_up.keys() | self._lost | self._surely_over
                and now_s >= self._start_s.get(name, 0.0)
            ),
            None,
        )

    async def _start_agent(self, name: str) -> None:
        """Have an actor start the agent of a node, or find it: on this host, and on no other."""
        if name not in self._started.hosts:
            self._started.add(name, self._claims[name].host, self.book.admission.admit(name))
        host, admitted = self._started.hosts[name], self._started.admitted[name]
        words = {"home": self._home, "agent": [*self._agent, "--home", self._home]}
        self.book.look_soon()
        try:
            why_none = await self._call("start", name=name, host=host, admitted=admitted, **words)
        except RayError as error:  # an earlier request was late, or the group has just gone
            log.info("no actor for %s: %s", name, error)
            return
        if not why_none:
            return
        text = f"{self.about(name)} (node {name}): its actor can't begin: {why_none}"
        if name in self.book.lived:  # the agent needs none
            self.book.complain("start", text)
        else:
            self.book.fail(text)
            self._lost.add(name)

    async def _look(self) -> None:
        doubted = {
            name: host
            for name, host in self._started.hosts.items()
            if name in self._lost and name not in self._surely_over
        }
        try:
            told = await self._call("look", doubted=doubted, home=self._home)
        except RayError as error:
            self.book.complain("look", f"Ray can't be looked at: {error}")
            told = None
        self.book.looks()
        if told is not None:
            self._note(told)

    def _note(self, told: Mapping[str, Any]) -> None:
        """Take note of what Ray tells."""
        self.book.note_look()
        self._hosts = told["hosts"]
        self._claims = {name: Claim(**each) for name, each in told["groups"].items()}
        self._actors = {name: each["id"] for name, each in told["agents"].items()}
        self._surely_over |= set(told["over"])
        for name, each in told["agents"].items():
            self._note_agent(name, each["state"])
        for name in set(self._started.hosts) - self._lost - self._surely_over:
            self._note_claim(name)
        now_s = self.book.clock()
        shut_out = self._lost | {name for name, at_s in self.book.given_up.items() if now_s >= at_s}
        asked = self.book.asked
        may_run = {name for name in asked.names if self._may_run(name)}
        self.book.note_unheard(self._claims)
        gone = self.book.settle(self._claims.keys() | may_run)
        for kept in (self._lost, self._surely_over):
            kept.difference_update(gone)
        for kept_s in (self._start_s, self._back_s):
            for name in gone & kept_s.keys():
                del kept_s[name]
        self._started.keep(asked.names)
        self.book.admission.keep([name for name in asked.names if name not in shut_out])

    def _note_agent(self, name: str, state: Mapping[str, Any] | None) -> None:
        """Take note of what the actor of a node tells of its agent; None: it does not answer."""
        if state is None or state["is_alive"] or state["code"] is None:
            return
        if state["code"] in IN_ORDER:
            self._surely_over.add(name)
        if name not in self.book.given_up and name not in self._lost:
            said = f": {state['words']}" if state["words"] else ""
            text = f"{self.about(name)} (node {name}): its agent has ended"
            if name in self.book.lived:
                self.book.tell(f"{text} with exit code {state['code']}{said}")
            else:
                self.book.fail(f"{text}, before it was connected{said}")
            self._lost.add(name)

    def _note_claim(self, name: str) -> None:
        """Take note of a group that is gone, or that Ray has somewhere else."""
        if self._is_in_place(name):
            return
        claim, host = self._claims.get(name), self._started.hosts[name]
        self._lost.add(name)
        if name not in self.book.given_up:
            at = self._hosts.get(host, {})
            if claim is None:
                why = "its placement group was removed"
            elif at.get("is_alive"):
                why = f"its placement group is {claim.state}"
            else:
                why = f"Ray has lost its host {at.get('address', host)}: {at.get('words')}"
            self.book.tell(f"node {name}: {why}")


class Started:
    """The hosts on which agents were started, by name of their node, kept in ``file``.

    A name is started on one host alone: its agent may live there though Ray has it elsewhere.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.hosts: dict[str, str] = {}
        self.admitted: dict[str, str] = {}
        if file.exists():
            kept = json.loads(file.read_text())
            self.hosts, self.admitted = kept["hosts"], kept["admitted"]

    def add(self, name: str, host: str, admitted: str) -> None:
        """Write down where an agent is about to be started, and by what it is let in.

        Raises OSError.
        """
        self._write(self.hosts | {name: host}, self.admitted | {name: admitted})

    def keep(self, names: Collection[str]) -> None:
        """Forget all but these."""
        if self.hosts.keys() - set(names):
            hosts = {name: each for name, each in self.hosts.items() if name in names}
            admitted = {name: each for name, each in self.admitted.items() if name in names}
            with contextlib.suppress(OSError):  # a full disk: the next controller forgets them
                self._write(hosts, admitted)
            self.hosts, self.admitted = hosts, admitted

    def _write(self, hosts: dict[str, str], admitted: dict[str, str]) -> None:
        draft = self._file.with_name(f"{self._file.name}.new")
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as text:
            json.dump({"hosts": hosts, "admitted": admitted}, text)
            text.flush()
            os.fsync(text.fileno())
        draft.replace(self._file)
        self.hosts, self.admitted = hosts, admitted
