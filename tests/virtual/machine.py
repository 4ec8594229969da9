"""Machines in virtual time: their processes, the messages between them, and all that can be lost.

Agents and controllers are Rota's own. What they start is a :class:`Program`, which keeps to what
workers and their shims do: a shim writes down its pid before it starts the worker and how that has
ended, in real files, and stops the worker while the lease of its node is over; a worker with a
session holds at a boundary when it is asked to. Messages arrive in order, after any delay, or not
at all once an end of their connection is gone; between two hosts none arrives while the way is cut.
"""

import asyncio
import contextvars
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, permutations
from pathlib import Path
from typing import Any

from rota.live.watchman import EARLY_S
from rota.live.wire import VACATED, decode, encode
from rota.live.wire.lease import Lease
from rota.train.fence import LOOK_S

from .loop import RUNNING, Process, VirtualLoop

CLOSED = object()
TICK_S = 1e-6  # between two messages: the loop keeps no order among equal times
NETWORK = contextvars.Context()  # belongs to no process: what is on its way arrives
BOOTED_S = 1e6  # of the head's CLOCK_BOOTTIME, and by the cluster's clock, when the loop begins
HEAD = "n0"  # the controller's host; the agents of its own nodes are there, too
SHARDS = 8
FIRST_PID = 1 << 23  # which the kernel gives to nobody


class Wire:
    """One direction of a connection, from one host to another."""

    def __init__(self, machine: "Machine", way: tuple[str, str]) -> None:
        self._machine, self.way = machine, way
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._last_s = 0.0
        self._waiting: deque[Any] = deque()  # until the way is open
        self._is_read = True
        self._is_reset = False
        self.closed = False

    def put(self, item: Any) -> None:
        if self.closed:
            return
        self.closed = item is CLOSED
        loop = self._machine.loop
        self._last_s = max(self._last_s + TICK_S, loop.time() + self._machine.delay())
        loop.call_at(self._last_s, self._arrive, item, context=NETWORK)

    def _arrive(self, item: Any) -> None:
        if not self._is_reset or item is CLOSED:
            self._waiting.append(item)
        if self.way in self._machine.cut:
            self._machine.held_up.append(self)
        else:
            self.let_through()

    def let_through(self) -> None:
        """What was sent again until now arrives, unless the way is cut once more."""
        while self._is_read and self._waiting and self.way not in self._machine.cut:
            self._queue.put_nowait(self._waiting.popleft())

    def close(self, host: str | None) -> None:
        """Close this direction; ``host`` closes it at an end that it has, and None at both."""
        if host == self.way[1] != self.way[0]:  # who closes it reads no more, whatever is cut
            self.closed, self._is_read = True, False
            self._machine.loop.call_soon(self._queue.put_nowait, CLOSED, context=NETWORK)
        elif not self.closed:
            if self._waiting and self._machine.random.random() < 0.5:
                self._waiting.clear()  # nothing of what was to be sent again arrives
                self._is_reset = True
            self.put(CLOSED)

    async def get(self) -> Any:
        item = await self._queue.get()
        if item is CLOSED:
            self._queue.put_nowait(CLOSED)  # and so it stays
        return item

    def get_nowait(self) -> Any:
        return self._queue.get_nowait()

    @property
    def empty(self) -> bool:
        return self._queue.empty()


class Connection:
    """Two wires, each end of which belongs to a process."""

    def __init__(self, machine: "Machine", one: Process, other: Process) -> None:
        self.to_one = Wire(machine, (other.host, one.host))
        self.to_other = Wire(machine, (one.host, other.host))
        self.ends = (one, other)
        machine.connections.append(self)

    def close(self, host: str | None = None) -> None:
        """Close it, on one of its hosts or, without a name, the running process's."""
        running = RUNNING.get()
        if host is None and running is not None:
            host = running.host
        self.to_one.close(host)
        self.to_other.close(host)

    def falls_silent(self) -> None:
        """Nothing is sent any more, and nobody is told."""
        self.to_one.closed = self.to_other.closed = True


class Reader:
    """As much of a StreamReader as an agent uses for its workers."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def readline(self) -> bytes:
        item = await self._wire.get()
        return b"" if item is CLOSED else item


class Writer:
    """As much of a StreamWriter as an agent uses for its workers."""

    def __init__(self, connection: Connection, peer: int) -> None:
        self._connection, self.peer = connection, peer

    def write(self, line: bytes) -> None:
        self._connection.to_one.put(decode(line))

    def get_extra_info(self, name: str) -> "Writer":
        """Itself as its socket, which takes the least descriptor that is no standard stream."""
        return self

    def fileno(self) -> int:
        return 3

    def is_closing(self) -> bool:
        return self._connection.to_one.closed

    def close(self) -> None:
        self._connection.close()


class Socket:
    """A socket on which an agent listens for workers."""

    def __init__(self, owner: Process, handler: Callable[..., Any]) -> None:
        self.owner, self.handler = owner, handler

    def close(self) -> None:
        self.owner = Process("nobody")
        self.owner.alive = False


class BrokenGroupError(Exception):
    """A process group lacks one of its ranks."""


class Group:
    """A process group: ranks that add up their gradients, and vote."""

    def __init__(self, machine: "Machine", size: int) -> None:
        self.size = size
        self.members: list[Program] = []
        self._cut: set[tuple[str, str]] = machine.cut
        self._votes: dict[int, dict[int, bool]] = {}
        self._changed = asyncio.Event()

    def joined(self, program: "Program") -> None:
        self.members.append(program)
        program.group, program.num_votes, program.entered = self, 0, -1
        self.change()

    def change(self) -> None:
        """Let those look again who wait for the others."""
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def is_broken(self) -> bool:
        return self.is_connected and any(
            p.group is not self or not p.process.alive for p in self.members
        )

    @property
    def is_connected(self) -> bool:
        """True if the hosts of all its members reach each other."""
        return self._cut.isdisjoint(permutations({p.process.host for p in self.members}, 2))

    @property
    def is_complete(self) -> bool:
        """True if all that are to be members are there and reach each other."""
        return len(self.members) >= self.size and self.is_connected

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something holds for all that are to be members. Raises BrokenGroupError."""
        while not (self.is_complete and true()):
            if self.is_broken:
                raise BrokenGroupError
            await self._changed.wait()

    async def agree(self, program: "Program", vote: bool) -> bool:
        """Whether all members vote for it. Raises BrokenGroupError."""
        votes = self._votes.setdefault(program.num_votes, {})
        program.num_votes += 1
        votes[program.slot] = vote
        self.change()
        await self.until(lambda: len(votes) == self.size)
        return all(votes.values())


class Meeting:
    """An open port, in place of :class:`rota.live.agent.network.Meeting`."""

    def __init__(self, machine: "Machine", address: str) -> None:
        running = RUNNING.get()
        assert running is not None
        self.port, self._machine = machine.port(), machine
        machine.meetings[address, self.port] = running

    def close(self) -> None:
        self._machine.meetings = {
            place: owner for place, owner in self._machine.meetings.items() if place[1] != self.port
        }


class Asking:
    """SIGTERM for the program of a shim, in place of :class:`rota.live.agent.asking.Asking`."""

    def __init__(self, machine: "Machine", shim: int) -> None:
        self._machine, self._shim = machine, shim

    def begin(self) -> None:
        self._machine.signal_below(self._shim, 15)

    def look(self, now_s: float) -> None:
        """Nothing: a program has started nobody."""

    def ask_all(self) -> None:
        """Nothing, as :meth:`look`."""


class Waking:
    """A worker that goes on, in place of :class:`rota.live.agent.waking.Waking`."""

    def __init__(self, machine: "Machine", shim: int, waiting: object) -> None:
        self._machine, self._shim = machine, shim

    def step(self, now_s: float) -> bool:
        self._machine.signal_below(self._shim, 18)
        return True

    def close(self) -> None:
        """Nothing: all go on at once."""


class Machine:
    """Everything below agents and controllers; ``harm`` is what happened that never may.

    There is one ``HEAD``, and any number of other hosts, each with a clock and a life of its own.
    """

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.cut: set[tuple[str, str]] = set()  # ways between hosts on which nothing arrives
        self._cuts = Counter[tuple[str, str]]()  # how often each is cut
        self.held_up: list[Wire] = []
        self.hosts = {HEAD: "10.0.0.1"}  # and their addresses
        self.boots: dict[str, int] = {}
        self.kernels: dict[str, str] = {}  # hosts that are containers on another one
        self.asleep: dict[str, list[Callable[[], object]]] = {}  # what is to be done on waking
        self.booted_s = {HEAD: -BOOTED_S}  # by the loop's clock
        self.wrong_s: dict[str, float] = {}  # by which clocks of hosts are ahead of the cluster's
        self.meetings: dict[tuple[str, int], Process] = {}  # by address and port
        self.random = random.Random(seed)
        self.programs: list[Program] = []
        self.sockets: dict[str, Socket] = {}
        self.connections: list[Connection] = []
        self.checkpoints: dict[str, int] = {}  # steps that jobs have saved by themselves
        self.finished: dict[tuple[str, int], set[int]] = {}  # slots that have done all their steps
        self.harm: list[str] = []
        self.is_rough = True
        self.said: list[Any] = []  # by and to workers, for who looks for the cause of a failure
        self.groups: dict[tuple[str, str], Group] = {}  # by job, and port of their meeting place
        self._pids = count(FIRST_PID)
        self._ports = count(4000)
        self._watches: dict[int, list[tuple[Callable[[], object], contextvars.Context]]] = {}

    def delay(self) -> float:
        """How long something takes that may take long, now and then."""
        draw = self.random.random()
        return draw * (0.02 if draw < 0.9 or not self.is_rough else 3.0)

    def later(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call something, whoever has died by then."""
        at_s = self.loop.time() + self.delay()
        self.loop.call_at(at_s, call, *arguments, context=NETWORK)

    def pid(self) -> int:
        return next(self._pids)

    def port(self) -> int:
        return next(self._ports)

    def group(self, program: "Program", port: int | str, size: int) -> Group:
        """The group of those that meet at a port."""
        return self.groups.setdefault((program.job_id, str(port)), Group(self, size))

    def now_s(self) -> float:
        """The cluster's time."""
        return BOOTED_S + self.loop.time()

    def boottime_s(self) -> float:
        """CLOCK_BOOTTIME of the host of the running process."""
        return self.loop.time() - self.booted_s.get(_here(), -BOOTED_S)

    def ahead_s(self) -> float:
        """By how much a host takes the cluster's time to be ahead of its CLOCK_BOOTTIME."""
        return self.now_s() - self.boottime_s() + self.wrong_s.get(_here(), 0.0)

    def follow(self, ahead_s: float) -> None:
        """Set the clock of a host."""
        self.wrong_s[_here()] = ahead_s - self.now_s() + self.boottime_s()

    def boot_id(self) -> str:
        host = self.kernels.get(_here(), _here())
        return f"{self.boots.get(host, 0):04}-{host}"

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC of the running process, which does not pass while its machine sleeps."""
        running = RUNNING.get()
        return self.loop.time() - (0.0 if running is None else running.slept_s)

    def die(self, process: Process) -> None:
        """SIGKILL: nothing of it goes on, and its connections close."""
        self._is_gone(process)
        for connection in self.connections:
            if process in connection.ends:
                connection.close(process.host)
        self.connections = [c for c in self.connections if process not in c.ends]

    def _is_gone(self, process: Process) -> None:
        process.alive = False
        for group in self.groups.values():
            if any(program.process is process for program in group.members):
                group.change()

    # -- hosts -----------------------------------------------------------------------------------

    def add_host(self, host: str) -> None:
        """Another host, which was booted some time ago; its clock may be wrong."""
        self.hosts[host] = f"10.0.0.{len(self.hosts) + 1}"
        self.booted_s[host] = -self.random.uniform(10.0, 2 * BOOTED_S)
        self.wrong_s[host] = self.random.choice([0.0, 0.0, 3600.0, -3600.0])

    def sever(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let nothing through on these ways between hosts."""
        self._cuts.update(ways)
        self.cut.update(self._cuts)

    def mend(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let everything through: first of all what has waited."""
        self._cuts.subtract(ways)
        self._cuts = +self._cuts
        self.cut.intersection_update(self._cuts)
        held_up, self.held_up = self.held_up, []
        for wire in held_up:
            if wire.way in self.cut:
                self.held_up.append(wire)
            else:
                self.later(wire.let_through)
        for group in self.groups.values():
            group.change()

    def all_ways(self, host: str) -> Iterator[tuple[str, str]]:
        """The ways between a host and all others."""
        for other in self.hosts:
            if other != host:
                yield from ((host, other), (other, host))

    def lose_power(self, host: str, agent: Process) -> None:
        """Nothing on a host goes on, and nothing is told to anybody."""
        self.sever(self.all_ways(host))
        self._is_gone(agent)
        for program in self.programs:
            if program.process.host == host:
                self._is_gone(program.process)
                program.shim_alive = program.computes = False
                self._watches.pop(program.shim, None)
        for connection in self.connections:
            if any(end.host == host for end in connection.ends):
                connection.falls_silent()
        self.connections = [c for c in self.connections if all(end.host != host for end in c.ends)]
        self.meetings = {
            place: owner for place, owner in self.meetings.items() if owner.host != host
        }

    def boot(self, host: str) -> None:
        """A host that lost its power has it again."""
        self.boots[host] = self.boots.get(host, 0) + 1
        self.booted_s[host] = self.loop.time() - 5.0
        self.mend(self.all_ways(host))

    def sleep(self, host: str, others: Iterable[Process], seconds: float) -> None:
        """A host sleeps: what runs there, and these processes, do nothing, and no timer goes on."""
        if host in self.asleep:
            return
        self.asleep[host] = []
        there = [program for program in self.programs if program.process.host == host]
        every = [each for p in there for each in (p.process, p.fence, p.watchman)]
        for process in [*others, *every]:
            self.loop.stop_process(process, seconds, sleeps=True)
        # First: the watchman's clock has gone on, and it sees to the shims at once.
        self.loop.call_at(self.loop.time() + seconds - TICK_S, self._wake, host, context=NETWORK)

    def _wake(self, host: str) -> None:
        for program in self.programs:
            if program.process.host == host:
                program.look_at_lease()
        for call in self.asleep.pop(host):
            self.later(call)

    async def reach(self, places: Iterable[tuple[str, str, int]]) -> str:
        """In place of :func:`rota.live.agent.network.reach`."""
        for node, address, port in places:
            other = next(host for host, each in self.hosts.items() if each == address)
            await asyncio.sleep(self.delay())
            if not self.cut.isdisjoint([(_here(), other), (other, _here())]):
                await asyncio.sleep(5.0)
                return f"node {node} at {address} does not answer"
            owner = self.meetings.get((address, port))
            if owner is None or not owner.alive:
                return f"node {node} at {address} can't be reached"
        return ""

    # -- what an agent asks of the kernel and of its zygote --------------------------------------

    async def fork(self, request: dict[str, Any]) -> int:
        await asyncio.sleep(self.delay())
        program = Program(self, request)
        self.programs.append(program)
        self.later(program.begin)
        await asyncio.sleep(self.delay())
        return program.shim

    def _of(self, pid: int) -> "Program | None":
        return next((p for p in self.programs if pid in (p.shim, p.worker)), None)

    def started_at(self, pid: int) -> float | None:
        program = self._of(pid)
        if program is None or program.process.host != _here():
            return None
        alive = program.shim_alive if pid == program.shim else program.process.alive
        return program.began_s if alive else None

    def signal_below(self, shim: int, number: int, spared: int = 0) -> list[int]:
        program = self._of(shim)
        if program is None or program.process.host != _here():
            return []
        if program.process.alive and spared != program.worker:
            program.gets(number)
        return []

    def watch(self, shim: int, ended: Callable[[], object]) -> None:
        context, program = contextvars.copy_context(), self._of(shim)
        if program is None or not program.shim_alive:
            self.loop.call_soon(ended, context=context)
        else:
            self._watches.setdefault(shim, []).append((ended, context))

    def shim_ends(self, program: "Program") -> None:
        program.shim_alive = program.fence.alive = False
        for ended, context in self._watches.pop(program.shim, ()):
            self.loop.call_soon(ended, context=context)

    def kill_remains(
        self, shims: Iterable[int], tags: Iterable[int | None], marks: object = None
    ) -> int:
        wanted, dead = set(tags), set(shims)
        found = [
            program
            for program in self.programs
            if program.process.alive
            and program.process.host == _here()
            and not program.shim_alive
            and (program.tag in wanted or program.shim in dead)
        ]
        for program in found:
            program.ends(-9)
        return len(found)

    async def start_unix_server(self, handler: Callable[..., Any], path: Path, **_: Any) -> Socket:
        owner = RUNNING.get()
        assert owner is not None
        Path(path).touch()
        self.sockets[str(path)] = Socket(owner, handler)
        return self.sockets[str(path)]

    def connect(self, program: "Program") -> Connection | None:
        """A worker's connection to its agent; None if none listens."""
        socket = self.sockets.get(program.env["ROTA_AGENT_SOCKET"])
        if socket is None or not socket.owner.alive:
            return None
        connection = Connection(self, program.process, socket.owner)
        reader, writer = Reader(connection.to_other), Writer(connection, program.worker)
        self.loop.start(socket.owner, socket.handler(reader, writer))
        return connection

    # -- what must hold --------------------------------------------------------------------------

    def check_alone(self, program: "Program") -> None:
        """A program computes: no other process of its job may, but the other ranks of its gang.

        What is left of other attempts is stopped, and not merely idle.
        """
        for other in self.programs:
            if other is program or other.job_id != program.job_id or not other.process.alive:
                continue
            if other.launch == program.launch and other.slot != program.slot:
                continue
            if other.process.host in self.asleep:
                continue
            if other.computes or (other.attempt != program.attempt and not other.is_stopped):
                at_s = self.loop.time()
                self.harm.append(f"{other} computes while {program} begins to, at {at_s:.3f}")
        for other in self.programs:
            there = other.on == program.on and other.job_id != program.job_id
            if there and other.keeps_memory and program.keeps_memory:
                self.harm.append(f"{program} computes on a GPU that {other} keeps memory of")


def _here() -> str:
    """The host of the running process."""
    running = RUNNING.get()
    return HEAD if running is None else running.host


class Program:
    """A worker and its shim. What it is to do is in its command: KIND STEPS."""

    def __init__(self, machine: Machine, request: dict[str, Any]) -> None:
        self.machine, self.env = machine, request["env"]
        self.kind, steps = request["run"].split()
        self.total = int(steps)
        self.folder, self.name, self.tag = Path(request["folder"]), request["name"], request["tag"]
        self.job_id, self.attempt = self.env["ROTA_JOB_ID"], int(self.env["ROTA_ATTEMPT"])
        self.slot, self.world = int(self.env["ROTA_SLOT"]), int(self.env["WORLD_SIZE"])
        self.shim, self.worker = machine.pid(), machine.pid()
        node, name = self.env["ROTA_NODE"], f"{self.job_id}.{self.attempt}[{self.name}]"
        self.process = Process(f"{name}@{node}#{self.worker}", _here())
        self.fence = Process(f"shim of {name}@{node}", _here())
        self.watchman = Process(f"watchman of {name}@{node}", _here())
        self._lease = None if request["lease"] is None else Lease(Path(request["lease"]))
        # Of a gang on several nodes the node of its agent, by its address.
        address = self.env["MASTER_ADDR"]
        first = next((host for host, each in machine.hosts.items() if each == address), node)
        self.launch = (self.attempt, first)
        self.on = (self.process.host, node, self.env.get("CUDA_VISIBLE_DEVICES"))
        self.group: Group | None = None
        self.num_votes = 0  # of its group that it has taken part in
        self.generation = 0
        self.is_newcomer = "ROTA_NEWCOMER" in self.env
        self.shim_alive, self.began_s = True, machine.boottime_s()
        self._ahead_s = machine.ahead_s()  # by its agent's clock of now
        self.span_s = [0.0, 0.0]  # when its shim wrote down that it was there, and its end
        self.computes = self._has_begun = self._is_fenced = False
        self.step = 0
        self.entered = -1  # the step that it has begun
        self._goes_on = asyncio.Event()  # while it is not stopped
        self._goes_on.set()
        self._connection: Connection | None = None
        self._hold_at: int | None = None
        self._gang, self._round = False, None
        self._suspended: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return repr(self.process)

    @property
    def keeps_memory(self) -> bool:
        """True if it is on a GPU, whose memory it took with its first step and can't give up."""
        took = self.entered >= 0 and self.process.alive
        return took and self.kind == "plain" and self.on[-1] is not None

    def now_s(self) -> float:
        """The cluster's time, as it was told."""
        return self._ahead_s + self._boottime_s()

    def _boottime_s(self) -> float:
        booted_s = self.machine.booted_s.get(self.process.host, -BOOTED_S)
        return self.machine.loop.time() - booted_s

    @property
    def is_stopped(self) -> bool:
        """True while nothing of it goes on, or has begun."""
        return not (self._has_begun and self._goes_on.is_set())

    # -- the shim --------------------------------------------------------------------------------

    def begin(self) -> None:
        if self.process.host in self.machine.asleep:
            self.machine.asleep[self.process.host].append(self.begin)
            return
        if not (self.shim_alive or self.process.alive):
            return  # its host has lost its power meanwhile
        claim = self.folder / f"{self.name}.pid"
        try:
            with open(claim, "x") as file:
                told = {"shim": self.shim, "worker": self.worker, "boottime_s": self.began_s}
                told["at_s"] = self.span_s[0] = self.now_s()
                file.write(json.dumps(told))
        except OSError:  # its agent wants it no more, or the folder is gone
            self.process.alive = False
            self.machine.shim_ends(self)
            return
        self._has_begun = True
        if self._lease is not None:
            self.machine.loop.start(self.fence, self._keep_lease(self._lease))
            self.machine.loop.start(self.watchman, self._keep_lease(self._lease))
        task = self.machine.loop.start(self.process, self._main())
        task.add_done_callback(self._check_error, context=NETWORK)

    async def _keep_lease(self, lease: Lease) -> None:
        """Stop the worker while the lease is over, as :class:`rota.train.fence.Fence` does."""
        while True:
            self.look_at_lease()
            await asyncio.sleep(max(lease.left_s - EARLY_S, LOOK_S))

    def look_at_lease(self) -> None:
        """Stop the worker if the lease is over, and let it go on if it was renewed."""
        if self._lease is None or not (self._has_begun and self.process.alive):
            return
        left_s = self._lease.until_s - self._boottime_s()
        if not self.shim_alive:  # the watchman, as :mod:`rota.live.watchman`
            if left_s <= EARLY_S:
                self.ends(-9)
            return
        if left_s <= 0 and not self.is_stopped:
            self._is_fenced = True
            self.gets(19)
        elif left_s > 0 and self._is_fenced:
            self._is_fenced = False
            if not self._is_held():
                self.gets(18)

    def _is_held(self) -> bool:
        """True if its agent has stopped it."""
        held = self.folder / f"{self.name}.held"
        return held.exists() and int(held.read_text()) != self.worker

    def _check_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.machine.harm.append(f"{self}: {task.exception()!r}")

    def ends(self, code: int) -> None:
        """The worker has come to its end; its shim writes that down."""
        if self.process.alive:
            self.computes = False
            self.machine.die(self.process)
            self.machine.later(self._note, code)

    def _note(self, code: int) -> None:
        if self.shim_alive:
            self.span_s[1] = self.now_s()
            told = {"code": code, "at_s": self.span_s[1], "boottime_s": self._boottime_s()}
            if self.folder.exists():
                (self.folder / f"{self.name}.exit").write_text(json.dumps(told))
            self.machine.shim_ends(self)

    def gets(self, number: int) -> None:
        """A signal."""
        if number == 9:
            self.ends(-9)
        elif number == 19:
            self._goes_on.clear()
            self.computes = False
        elif number == 18:
            self._goes_on.set()
        elif number == 15:
            self.machine.loop.start(self.process, self._terminate())

    async def _terminate(self) -> None:
        await self._goes_on.wait()
        if self.kind == "restart":
            await asyncio.sleep(self.machine.delay())
            self.machine.checkpoints[self.job_id] = self.step
            self.ends(0)
        self.ends(-15)

    # -- the worker ------------------------------------------------------------------------------

    async def _main(self) -> None:
        if "ROTA_ADOPT" in self.env:
            try:
                kept = json.loads(Path(self.env["ROTA_ADOPT"]).read_text())
            except FileNotFoundError:  # its agent was told to drop the job while it was forked
                self.ends(1)
                return
            self.step = kept["step"]
            await self._suspend(again=True)
        elif self.kind == "restart":
            self.step = self.machine.checkpoints.get(self.job_id, 0)
        if self.is_newcomer:
            self._connect()
            await self._await_place({"type": "ready"})
        else:
            self.machine.group(self, self.env["MASTER_PORT"], self.world).joined(self)
        while self.step < self.total:
            await self._boundary()
            if self.step >= self.total:
                break
            try:
                await self._compute()
            except BrokenGroupError:
                await self._recover()
        key = (self.job_id, self.attempt)
        self.machine.finished.setdefault(key, set()).add(self.slot)
        self.ends(0)

    async def _compute(self) -> None:
        """One step. No rank ends one that not all have begun: they add up their gradients."""
        group = self.group
        assert group is not None
        await self._goes_on.wait()
        self.entered = self.step
        self.machine.check_alone(self)
        self.computes = True
        group.change()
        await group.until(lambda: all(p.entered >= self.step for p in group.members))
        await asyncio.sleep(self.machine.random.uniform(0.5, 1.5))
        await self._goes_on.wait()
        self.step += 1
        report = {"type": "report", "step": self.step, "total": self.total, "metrics": {}}
        self._send(report | {"at_s": self.now_s(), "step_time_s": 1.0})

    async def _boundary(self) -> None:
        """Between two steps: find the agent again, and hold if it asks for that."""
        await self._goes_on.wait()
        if self.kind not in ("session", "elastic"):
            return
        self._connect()
        while (message := self._poll()) is not None:
            self._obey(message)
        while self._hold_at is not None and self.step >= self._hold_at:
            self.computes = False
            order = await self._agree()
            if order == "offload":
                await self._suspend()
            elif order == "vote":
                await self._change()

    async def _agree(self) -> str:
        """Hold here until all ranks do; what to do then, or nothing but to go on for now."""
        if not self._gang:
            return "offload"
        self._send({"type": "at", "step": self.step, "round": self._round})
        while self._connection is not None and self._hold_at is not None:
            if self._hold_at > self.step:
                return ""
            message = await self._receive()
            if message is CLOSED:
                break
            if message["type"] in ("offload", "vote"):
                self._hold_at = None
                return str(message["type"])
            else:
                self._obey(message)
                if message["type"] == "pause":
                    self._send({"type": "at", "step": self.step, "round": self._round})
        self._hold_at = None  # also if the agent is lost: that calls it off
        return ""

    # -- another group ---------------------------------------------------------------------------

    async def _change(self) -> None:
        """Vote, and go where the agent says, as ``rota.train.member`` does."""
        group = self.group
        assert group is not None
        try:
            await group.agree(self, vote=True)
            self._send({"type": "voted"})
            place = await self._await_vote()
            agreed = await group.agree(self, vote=place is not None)
        except BrokenGroupError:
            await self._recover()
            return
        if place is not None and agreed:
            await self._go(place)
        elif place is not None:
            self._send({"type": "stayed", "generation": place["generation"]})

    async def _await_vote(self) -> dict[str, Any] | None:
        while self._connection is not None:
            message = await self._receive()
            if message is CLOSED or message["type"] == "resume":
                return None
            if not self._hosts(message) and message["type"] in ("form", "standby"):
                return message
        return None

    def _hosts(self, message: dict[str, Any]) -> bool:
        if message["type"] == "host":
            port, generation = self.machine.port(), message["generation"]
            self._send({"type": "hosting", "port": port, "generation": generation})
        return message["type"] == "host"

    def _leaves_group(self) -> None:
        group, self.group, self._hold_at, self.computes = self.group, None, None, False
        if group is not None:
            group.change()

    async def _recover(self) -> None:
        """The group is broken: wait until the agent says who is left, and meet them."""
        if self.kind != "elastic":
            self.ends(1)  # as a program does whose collective has failed
            await asyncio.Event().wait()
        self._leaves_group()
        broken = {"type": "broken", "generation": self.generation, "error": "a rank is gone"}
        await self._await_place(broken)

    async def _await_place(self, state: dict[str, Any]) -> None:
        """Tell the agent, and any that comes after it, in what state this rank is; then obey."""
        told: Connection | None = None
        while True:
            if self._connection is None and not self._connect():
                await asyncio.sleep(0.5)
                continue
            if told is not self._connection:
                told = self._connection
                self._send(state)
            message = await self._receive()
            if message is CLOSED or self._hosts(message):
                continue
            if message["type"] in ("form", "leave", "standby", "park"):
                await self._go(message)
                return
            self._obey(message)

    async def _go(self, place: dict[str, Any]) -> None:
        self._leaves_group()
        if place["type"] == "leave":
            self.ends(0)
            await asyncio.Event().wait()
        elif place["type"] == "standby":
            await self._await_place({"type": "standing_by", "generation": self.generation})
        elif place["type"] == "park":
            await self._await_place({"type": "ready"})
        else:
            await self._meet(place)

    async def _meet(self, place: dict[str, Any]) -> None:
        group = self.machine.group(self, place["port"], place["world"])
        group.joined(self)
        try:
            while not group.is_complete:
                if group.is_broken or self._is_given_up():
                    raise BrokenGroupError
                await asyncio.sleep(0.1)
            self.generation = place["generation"]
            # Who has the state hands it over.
            self.step = max(p.step for p in group.members)
            await group.agree(self, vote=True)
        except BrokenGroupError:
            await self._recover()
            return
        self._send({"type": "formed", "generation": self.generation})

    def _is_given_up(self) -> bool:
        while (message := self._poll()) is not None:
            if message["type"] == "leave":
                self.ends(0)
            elif message["type"] == "give_up":
                return True
            else:
                self._obey(message)
        return False

    async def _suspend(self, *, again: bool = False) -> None:
        self._hold_at, self.computes = None, False
        self._suspended = {"step": self.step, "stopped_s": self.now_s(), "keeps": None}
        if again or self._connection is None:
            self._connect()
        else:
            self._send({"type": "suspended", **self._suspended})
        while True:
            if self._connection is None and not self._connect():
                await asyncio.sleep(0.5)
                continue
            message = await self._receive()
            if message is CLOSED:
                continue
            if message["type"] == "resume":
                break
            if message["type"] == "vacate":
                await asyncio.sleep(self.machine.delay())
                kept = json.dumps({"step": self.step})
                Path(message["path"]).write_text(kept)
                self._send({"type": "written", "round": message["round"], "bytes": len(kept)})
            elif message["type"] == "end":
                self.ends(VACATED)
        self._suspended = None
        self._send({"type": "resumed", "at_s": self.now_s()})

    def _obey(self, message: dict[str, Any]) -> None:
        if message["type"] == "pause":
            self._hold_at, self._gang = self.step, message["gang"]
            self._round = message["round"]
        elif message["type"] == "run_to" and self._hold_at is not None:
            self._hold_at = max(self._hold_at, message["step"])
        elif message["type"] == "resume":
            self._hold_at = None

    def _connect(self) -> bool:
        if self._connection is None:
            self._connection = self.machine.connect(self)
            hello = {"type": "hello", "job_id": self.job_id, "attempt": self.attempt}
            hello |= {"rank": self.slot, "step": self.step, "model": None}
            hello |= {"generation": self.generation}
            hello |= {"shards": SHARDS if self.kind == "elastic" else None}
            hello |= {"suspended": self._suspended is not None, **(self._suspended or {})}
            self._send(hello)
        return self._connection is not None

    def _send(self, message: dict[str, Any]) -> None:
        if self._connection is not None:
            self.machine.said.append((self.machine.loop.time(), self, "says", message))
            self._connection.to_other.put(encode(message))

    def _poll(self) -> dict[str, Any] | None:
        if self._connection is None or self._connection.to_one.empty:
            return None
        return self._taken(self._connection.to_one.get_nowait())

    async def _receive(self) -> Any:
        assert self._connection is not None
        item = await self._connection.to_one.get()
        await self._goes_on.wait()  # it is stopped: what has come lies there
        return self._taken(item) or CLOSED

    def _taken(self, item: Any) -> dict[str, Any] | None:
        self.machine.said.append((self.machine.loop.time(), self, "hears", item))
        if item is CLOSED:
            self._connection = None
            return None
        return item
