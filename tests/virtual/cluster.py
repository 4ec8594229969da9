"""Rota's controller and agents on machines in virtual time, with users, and all that fails."""

import asyncio
import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rota.errors import AgentError, ArenaError, RotaError
from rota.folder import Folder
from rota.live.agent import (
    abroad,
    attempt_report,
    controller_link,
    endpoint,
    guest,
    launching,
    memory,
    migrate_in,
    moves,
    rank,
    restore_from_arena,
    spill_to_arena,
)
from rota.live.agent import agent as agent_module
from rota.live.agent import host as host_module
from rota.live.agent.agent import Agent
from rota.live.agent.attempt import Attempt
from rota.live.agent.devices import Devices
from rota.live.agent.filling import Filling
from rota.live.agent.logs import Logs
from rota.live.agent.meter import Meter
from rota.live.agent.ordering import Ordering
from rota.live.agent.states import State
from rota.live.agent.watchman_link import WatchmanLink
from rota.live.agent.world import World
from rota.live.agent.zygote_link import ZygoteLink
from rota.live.controller import clock as controller_clock
from rota.live.controller.leases import MARGIN_S, Leases
from rota.live.controller.loop import Controller
from rota.live.provider.base import ProvidedNode, Provider
from rota.live.wire import clock
from rota.live.wire.lease import Lease
from rota.live.wire.peer import Peer
from rota.model.commands import Retune, SetCpus
from rota.model.events import AttemptLost, CommandSent, NodeLost
from rota.model.job import Elastic, JobState
from rota.policy.registry import create
from rota.request.jobfile import JobRequest
from rota.store.events import Submission

from .loop import RUNNING, Process, VirtualLoop
from .machine import CLOSED, HEAD, Asking, Connection, Machine, Meeting, Waking
from .restless import Faltering, Restless

ROUGH_S = 60.0  # for so long things fail,
LONGEST_S = 600.0  # and by then every job has ended
MOST_JOBS, MOST_CROWDED = 6, 10
STOPPED_S = 5.0
AGAIN_S = 1.0  # until what was killed is started anew
OPEN_S = 10.0  # for a connection to be opened
ASK_EVERY_S, ASK_OFTEN_S = 8.0, 2.5
# Of connections: the agent or the connection before is not known to be gone yet.
EXPECTED = (
    "is no longer in use",
    "another agent of",
    "a later connection of",
    "has not been heard for",
    "is lost by now",
    "is another machine",
    # Of a policy that is there to fail.
    "it falters",
    "policy faltering fails",
)
ABSENCES = ("", "controller", "machine", "laptop", "copy", "orphan")


class MemoryStore:
    """An event log that survives a controller; what was appended is there, whole."""

    identity = "virtual"

    def __init__(self, joined: Collection[str]) -> None:
        self._members = [(name, "", 0.0) for name in joined]
        self.events: list[Any] = []
        self.submissions: dict[tuple[str, str], Submission] = {}
        self.epoch = 0

    def load(self) -> Iterator[Any]:
        return iter(list(self.events))

    def append(self, events: Any, *, submissions: Any = (), durable: bool = False) -> None:
        self.events += events
        self.submissions |= {(item.user, item.key): item for item in submissions}

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def find_submission(self, user: str, key: str) -> Submission | None:
        return self.submissions.get((user, key))

    def read(self, *_: Any) -> list[Any]:
        """The machines that have joined."""
        return self._members

    def close(self) -> None:
        """It goes on with the next controller."""


class Agents(Provider):
    """Agents are started by the cluster."""

    def __init__(self, names: list[str], joined: Collection[str]) -> None:
        self._names, self._joined = names, joined

    def nodes(self) -> list[ProvidedNode]:
        return [ProvidedNode(name, True, stays=name in self._joined) for name in self._names]


class Joined:
    """The endpoint of a machine that has joined."""

    stays = True

    def address(self) -> endpoint.Address:
        return endpoint.Address("wss://controller", "token", SimpleNamespace())  # type: ignore[arg-type]

    def is_gone(self) -> bool:
        return False


class Channel:
    """The controller's end of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def receive(self) -> Any:
        item = await self._connection.to_other.get()
        if item is CLOSED:
            raise ConnectionError
        return item

    async def send(self, data: Any) -> None:
        self._connection.to_one.put(data)


class AgentEnd:
    """The agent's end of a connection, as a websocket."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection, self.local_address = connection, (address, 0)

    def __aiter__(self) -> "AgentEnd":
        return self

    async def __anext__(self) -> Any:
        item = await self._connection.to_one.get()
        if item is CLOSED:
            raise StopAsyncIteration
        return item

    async def send(self, data: Any) -> None:
        self._connection.to_other.put(data)


class VirtualRank(rank.Rank):
    """A process of the machine in virtual time."""

    def __init__(
        self, machine: Machine, slot: int, folder: Path, life: int, lease: Lease | None
    ) -> None:
        super().__init__(slot, folder, life, lease)
        self._machine = machine

    def watch(self, ended: Callable[[], object]) -> None:
        self._machine.watch(self.shim, ended)


class VirtualWorld(World):
    """What attempts ask of the machine in virtual time; the clocks are the loop's."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def new_rank(self, slot: int, folder: Path, life: int = 0) -> rank.Rank:
        return VirtualRank(self._machine, slot, folder, life, self.lease)

    def started_at(self, pid: int) -> float | None:
        return self._machine.started_at(pid)

    def kill_remains(
        self, shims: Iterable[int], tags: Iterable[int | None], marks: object = None
    ) -> int:
        return self._machine.kill_remains(shims, tags, marks)


class Cluster:
    """One run, drawn from a seed: ``nodes`` of the controller's host, and hosts that ``joined``.

    If it is ``crowded``, there are more jobs than GPUs, and more is asked of jobs and nodes: states
    of suspended jobs leave nodes that are drained. With one of ABSENCES as ``only``, nothing else
    fails.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        policy: str,
        nodes: int = 2,
        joined: int = 0,
        *,
        crowded: bool = False,
        only: str | None = None,
    ) -> None:
        self.loop = VirtualLoop()
        self.machine = Machine(self.loop, seed)
        self.random = self.machine.random
        self.folder = Folder(folder)
        self.policy = policy
        self._most_jobs = MOST_CROWDED if crowded else MOST_JOBS
        self._ask_every_s = ASK_OFTEN_S if crowded else ASK_EVERY_S
        self.has_gpus = seed // len(POLICIES) % 2 == 1  # else slots, which have no memory
        self.names = [f"n{index}" for index in range(nodes + joined)]
        self.joined = self.names[nodes:]
        self.store = MemoryStore(self.joined)
        self.folders = dict.fromkeys(self.names[:nodes], self.folder)
        self.off: set[str] = set()  # hosts without power
        for name in self.joined:
            self.machine.add_host(name)
            self.folders[name] = Folder(folder / "hosts" / name)
        self.controller: Controller | None = None
        self.controller_process = Process("none")
        self.agents: dict[str, Process] = {}
        self.living: dict[str, Agent] = {}  # by node
        self.idle = set[str]()  # jobs that their agents were to tell as idle
        self.rows: dict[str, int] = {}  # of submitted jobs, by key
        self.cancelled: set[int] = set()
        self.harmed: set[str] = set()  # jobs of which a process was killed
        self.kills = 0
        self.complaints: list[str] = []
        self.story: list[str] = []
        self.loop.before_each = self._may_kill
        # Of a step in the life of an agent or a controller, so many end it.
        self._kill_share = self.random.choice([0.0, 0.0005, 0.002])
        self._close_share = self.random.choice([0.0, 1.0])
        self._stop_share = self.random.choice([0.0, 0.1])
        self._harm_share = self.random.choice([0.0, 0.0, 0.05])
        self._cut_share = self.random.choice([0.0, 0.02])
        self.only = only
        if only is not None:
            self._kill_share = self._close_share = self._stop_share = 0.0
            self._harm_share = self._cut_share = 0.0
        self.absence = self.random.choice(ABSENCES) if only is None else only
        self.copies: dict[str, str] = {}  # hosts with copies of others' folders, and whose
        if joined:
            self.lease_s = self.random.choice([8.0, 15.0])
            self._sever_every_s = self.random.choice([10.0, 20.0, 40.0])
            self._power_share = self.random.choice([0.0, 0.3])

    def note(self, what: str) -> None:
        self.story.append(f"{self.loop.time():.3f} {what}")

    # -- faults ----------------------------------------------------------------------------------

    def _may_kill(self, process: Process) -> None:
        rough = self.loop.time() < ROUGH_S and self.only is None
        self.machine.is_rough = rough
        is_ours = process is self.controller_process or process in self.agents.values()
        if rough and is_ours and self.random.random() < self._kill_share:
            self.kills += 1
            self.note(f"{process} is killed")
            self.machine.die(process)

    async def _cut_connections(self) -> None:
        while self.loop.time() < ROUGH_S:
            await asyncio.sleep(0.5)
            for connection in list(self.machine.connections):
                if self.random.random() < self._cut_share:
                    self.note(f"the connection of {connection.ends} is cut")
                    connection.close()
                    self.machine.connections.remove(connection)

    async def _close_nodes(self) -> None:
        """An administrator cordons, drains and enables nodes."""
        while self.loop.time() < ROUGH_S:
            await asyncio.sleep(self.random.expovariate(1 / self._ask_every_s))
            controller = self.controller
            if controller is None or not self.controller_process.alive:
                continue
            if self.random.random() < self._close_share:
                name = self.random.choice(self.names)
                what = self.random.choice(["cordon", "drain", "drain by", "enable"])
                self.note(f"{what} {name}")
                verb, _, by = what.partition(" ")
                within = [self.random.uniform(1.0, 20.0)] if by else []
                with contextlib.suppress(RotaError):
                    getattr(controller.node_api, verb)(name, *within)

    async def _stop_processes(self) -> None:
        """Agents and controllers do nothing for a while, now and then."""
        while self.loop.time() < ROUGH_S:
            await asyncio.sleep(1.0)
            processes = [self.controller_process, *self.agents.values()]
            if self.random.random() < self._stop_share:
                process = self.random.choice(processes)
                seconds = self.random.expovariate(1 / STOPPED_S)
                self.note(f"{process} is stopped for {seconds:.3f} s")
                self.loop.stop_process(process, seconds)

    async def _sever_hosts(self) -> None:
        """Hosts are cut off, wholly or in part, for a moment or past their leases; or are off."""
        while self.loop.time() < ROUGH_S:
            await asyncio.sleep(self.random.expovariate(1 / self._sever_every_s))
            longest_s = self.random.choice([3.0, self.lease_s, 2 * self.lease_s + 10.0])
            seconds = self.random.uniform(0.0, longest_s)
            count = self.random.choice([1, 1, 1, 2])
            hosts = self.random.sample(self.joined, min(count, len(self.joined)))
            if self.random.random() < self._power_share:
                for host in [host for host in hosts if host not in self.off]:
                    self._tasks.append(asyncio.ensure_future(self._lose_power(host, seconds)))
                continue
            what = self.random.choice(
                ["all", "controller", "asks", "answers", "ranks", "everybody"]
            )
            ways = {
                "all": [way for host in hosts for way in self.machine.all_ways(host)],
                "controller": [way for host in hosts for way in ((host, HEAD), (HEAD, host))],
                "asks": [(host, HEAD) for host in hosts],
                "answers": [(HEAD, host) for host in hosts],
                "ranks": [
                    way for host in hosts for way in self.machine.all_ways(host) if HEAD not in way
                ],
                "everybody": list(self.machine.all_ways(HEAD)),
            }
            what = self.random.choice(list(ways))
            self.note(f"{hosts} are cut off from {what} for {seconds:.3f} s")
            self._tasks.append(asyncio.ensure_future(self._sever(ways[what], seconds)))

    async def _sever(self, ways: list[tuple[str, str]], seconds: float) -> None:
        self.machine.sever(ways)
        await asyncio.sleep(seconds)
        self.note(f"{ways} are mended")
        self.machine.mend(ways)

    async def _lose_power(self, host: str, seconds: float) -> None:
        self.note(f"{host} loses its power for {seconds:.3f} s")
        self.off.add(host)
        self.machine.lose_power(host, self.agents[host])
        await asyncio.sleep(seconds)
        self.note(f"{host} boots")
        self.machine.boot(host)
        self.off.remove(host)

    async def _be_absent(self) -> None:
        """The controller stands still, machines sleep, or there is a copy of one; each once."""
        await asyncio.sleep(self.random.uniform(1.0, ROUGH_S / 2))
        longest_s = self.lease_s + MARGIN_S
        seconds = longest_s + self.random.uniform(0.0, 2 * longest_s)
        name = self.random.choice(self.joined)
        if self.absence == "controller":
            self.note(f"the controller stands still for {seconds:.3f} s")
            self.loop.stop_process(self.controller_process, seconds)
        elif self.absence == "machine" and name not in self.off:
            self.note(f"{name} sleeps for {seconds:.3f} s")
            self.machine.sleep(name, [self.agents[name]], seconds)
        elif self.absence == "laptop":
            self.note(f"all machines, and the controller's, sleep for {seconds:.3f} s")
            for host in (HEAD, *self.joined):
                others = [self.controller_process] if host == HEAD else []
                there = [each for each in self.agents.values() if each.host == host]
                self.machine.sleep(host, [*others, *there], seconds)
        elif self.absence == "copy" and name not in self.off:
            await self._copy(name, seconds)
        elif self.absence == "orphan":
            await self._orphan(seconds)

    async def _orphan(self, seconds: float) -> None:
        """On a machine that is cut off agent and shim are killed, and the job's program runs on."""
        there = [
            each
            for each in self.machine.programs
            if each.process.alive and each.shim_alive and each.process.host in self.joined
        ]
        there = [each for each in there if each.kind in ("plain", "restart")]
        if not there:
            return
        program = self.random.choice(there)
        host = program.process.host
        if host in self.off or host in self.machine.asleep:
            return
        self.note(f"{program} is an orphan on a machine without an agent for {seconds:.3f} s")
        self.harmed.add(program.job_id)
        self.off.add(host)
        self.machine.die(self.agents[host])
        self.machine.shim_ends(program)
        await self._sever(list(self.machine.all_ways(host)), seconds)
        self.off.discard(host)

    async def _copy(self, name: str, seconds: float) -> None:
        """Another machine has a copy of a node's folder, and calls as that node for a while."""
        host = f"{name}-copy"
        self.machine.add_host(host)
        self.copies[host] = name
        if self.random.random() < 0.5:
            self.machine.kernels[host] = name  # it is a container on the same machine
            self.machine.booted_s[host] = self.machine.booted_s[name]
        self.folders[host] = Folder(self.folder.path / "hosts" / host)
        shutil.copytree(self.folders[name].path, self.folders[host].path)
        self.note(f"{host} calls as {name}")
        keeper = asyncio.ensure_future(self._keep_agent(host))
        if self.only is None and self.random.random() < 0.7:
            await asyncio.sleep(self.random.uniform(0.0, 5.0))
            self.note(f"{name} is cut off for {seconds:.3f} s")
            ways = list(self.machine.all_ways(name))
            self._tasks.append(asyncio.ensure_future(self._sever(ways, seconds)))
        await asyncio.sleep(self.random.uniform(0.0, seconds))
        self.note(f"{host} is gone for good")
        keeper.cancel()
        self.living.pop(host, None)
        self.machine.lose_power(host, self.agents.pop(host))
        self.machine.mend(self.machine.all_ways(host))
        shutil.rmtree(self.folders.pop(host).path)

    async def _kill_programs(self) -> None:
        """Kill a worker now and then, or a shim, and its worker with it."""
        while self.loop.time() < ROUGH_S:
            await asyncio.sleep(1.0)
            alive = [each for each in self.machine.programs if each.process.alive]
            if alive and self.random.random() < self._harm_share:
                program = self.random.choice(alive)
                self.harmed.add(program.job_id)
                self.note(f"{program} is killed")
                if self.random.random() < 0.5:
                    self.machine.shim_ends(program)
                program.ends(-9)

    # -- who is started anew ---------------------------------------------------------------------

    def connect(self, *_: Any, **__: Any) -> Any:
        """In place of ``websockets.connect``."""

        @contextlib.asynccontextmanager
        async def connected() -> Any:
            await asyncio.sleep(self.machine.delay())
            own = RUNNING.get()
            assert own is not None
            await self._await_way(own.host, OPEN_S)
            controller, process = self.controller, self.controller_process
            if controller is None or not process.alive:
                raise ConnectionError
            connection = Connection(self.machine, own, process)
            self.loop.start(process, self._serve(controller, connection))
            pings = asyncio.ensure_future(self._ping(own.host, connection))
            try:
                yield AgentEnd(connection, self.machine.hosts[own.host])
            finally:
                pings.cancel()
                connection.close()

        return connected()

    async def _await_way(self, host: str, seconds: float) -> None:
        """Return once host and controller reach each other. Raises TimeoutError."""
        until_s = self.loop.time() + seconds
        while not self.machine.cut.isdisjoint([(host, HEAD), (HEAD, host)]):
            if self.loop.time() > until_s:
                raise TimeoutError
            await asyncio.sleep(1.0)

    async def _ping(self, host: str, connection: Connection) -> None:
        """Close an agent's end of a connection that is cut for long, as websockets do."""
        try:
            while host != HEAD:
                await asyncio.sleep(controller_link.PING_S)
                await self._await_way(host, controller_link.PONG_S)
        except TimeoutError:
            connection.close()

    async def _serve(self, controller: Controller, connection: Connection) -> None:
        host = connection.ends[0].host
        node = self.copies.get(host, host)
        member = (node, self.machine.hosts[host]) if node in self.joined else ()
        try:
            await controller.agents.serve_agent(Channel(connection), *member)
        except ConnectionError:
            pass
        except AgentError as error:
            if not any(words in str(error) for words in EXPECTED):
                self.complaints.append(f"the controller rejects an agent: {error}")
        except Exception as error:
            self.complaints.append(f"a session failed: {error!r}")
        finally:
            connection.close()

    async def _keep_agent(self, name: str) -> None:
        cores = tuple([0] * 2)
        node = self.copies.get(name, name)
        host = name if node in self.joined else HEAD
        folder = self.folders[name].create()
        at = Joined() if node in self.joined else endpoint.FolderEndpoint(folder, 1)
        while True:
            while name in self.off:
                await asyncio.sleep(AGAIN_S)
            process = self.agents[name] = Process(f"agent {name}", host)
            folder.node(node).mkdir(parents=True, exist_ok=True)

            async def main(name: str = name) -> None:
                devices = Devices("cpu", 2, cores)
                if self.has_gpus:
                    devices = Devices("cuda", 2, ids=("0", "1"), memory_gb=80.0)
                world = VirtualWorld(self.machine)
                agent = self.living[name] = Agent(
                    folder, node, devices, at, 250, world=world, data_port=0
                )
                await agent.run()

            task = self.loop.start(process, main())
            while process.alive and not task.done():
                await asyncio.sleep(AGAIN_S)
            if task.done() and task.exception() is not None:
                self.complaints.append(f"{process} ended: {task.exception()!r}")

    async def _keep_controller(self) -> None:
        while True:
            process = self.controller_process = Process("controller", HEAD)

            async def main() -> None:
                made = {each.name: each for each in (Restless, Faltering)}.get(self.policy)
                policy = made() if made else create(self.policy, POLICIES[self.policy])
                provider = Agents(self.names, self.joined)
                store: Any = self.store
                leases = Leases(self.lease_s) if self.joined else None
                controller = Controller(
                    store, self.folder, policy, self.policy, provider, leases=leases
                )
                controller.state.observers.append(partial(self._check_nodes, controller))
                if self.joined:
                    controller.agents.own_reach = self.machine.hosts[HEAD]
                await controller.start()
                self.controller = controller
                await controller.journal.stopped.wait()
                self.complaints.append(f"the controller stopped: {controller.journal.failure}")

            self.controller = None
            task = self.loop.start(process, main())
            while process.alive and not task.done():
                await asyncio.sleep(AGAIN_S)
            if task.done() and task.exception() is not None:
                self.complaints.append(f"the controller ended: {task.exception()!r}")

    def _check_nodes(self, controller: Controller, event: object) -> None:
        """The controller knows the jobs of each node as if it had looked at all jobs."""
        state = controller.state
        for index, node in enumerate(state.nodes):
            there = [
                row
                for row in range(len(state.spec))
                for place in [(state.held[row], state.home[row], state.parking.get(row))]
                if any(each is not None and index in each.nodes() for each in place)
            ]
            if controller.record.on_node.rows(index) != there:
                self.complaints.append(f"jobs of {node.name} after {event}: not {there}")

    # -- users -----------------------------------------------------------------------------------

    async def _submit(self, number: int) -> None:
        """Submit a job until it is accepted, under one key."""
        kind = self.random.choice(["session", "elastic", "plain", "restart"])
        gpus = self.random.choice([1, 2, 3, 4] if self.joined else [1, 1, 1, 2])
        steps, key = self.random.randint(2, 30), f"k{number}"
        request = JobRequest(f"j{number}", f"{kind} {steps}", "/", num_gpus=gpus)
        if kind == "elastic":
            sizes = (1, 2, 3, 4) if self.joined else (1, 2)
            request = request._replace(num_gpus=1, elastic=Elastic(sizes))
        if kind == "restart":
            request = request._replace(suspend="restart", grace_s=5.0)
        await asyncio.sleep(self.random.uniform(0, 20))
        while key not in self.rows:
            controller = self.controller
            if controller is not None and self.controller_process.alive:
                call = controller.jobs.submit(request, user="u", key=key, body_hash=key)
                answer = self.loop.start(self.controller_process, call)
                with contextlib.suppress(TimeoutError, RotaError):
                    async with asyncio.timeout(5.0):
                        self.rows[key] = await asyncio.shield(answer)
            await asyncio.sleep(0.5)

    async def _ask(self) -> None:
        """Suspend, resume and cancel jobs now and then."""
        while self.loop.time() < ROUGH_S:
            await asyncio.sleep(self.random.expovariate(1 / self._ask_every_s))
            controller = self.controller
            if controller is None or not self.controller_process.alive or not self.rows:
                continue
            row = self.random.choice(list(self.rows.values()))
            what = self.random.choices(["suspend", "resume", "cancel"], [4, 4, 1])[0]
            if row < len(controller.state.spec):
                self.note(f"{what} row {row}")
                if what == "cancel":
                    self.cancelled.add(row)
                call = getattr(controller.jobs, what)(row)
                answer = self.loop.start(self.controller_process, call)
                with contextlib.suppress(TimeoutError, RotaError):
                    async with asyncio.timeout(5.0):
                        await asyncio.shield(answer)

    async def _resume_all(self) -> None:
        while True:
            await asyncio.sleep(5.0)
            controller = self.controller
            if controller is not None and self.controller_process.alive:
                for row in controller.state.held_back.keys() - controller.state.idle_jobs:
                    with contextlib.suppress(RotaError):
                        await controller.jobs.resume(row)
                for node in list(controller.state.closed):
                    controller.node_api.enable(controller.state.nodes[node].name)

    async def _fall_idle(self) -> None:
        """Have agents tell that a job calls nothing, now and then."""
        while self.loop.time() < ROUGH_S:
            await asyncio.sleep(self.random.expovariate(1 / self._ask_every_s))
            running = [each for each in self._living() if each[1].state == State.RUNNING]
            if running:
                name, attempt = self.random.choice(running)
                self.idle.add(attempt.job_id)
                self._tell(name, attempt, "idle")

    async def _call(self) -> None:
        """Have agents tell that idle jobs call, again and again: the controller may be away."""
        while True:
            await asyncio.sleep(3.0)
            for name, attempt in self._living():
                if attempt.job_id in self.idle and self.random.random() < 0.5:
                    self._tell(name, attempt, "called")

    def _living(self) -> list[tuple[str, Attempt]]:
        """The attempts that agents have, each with its node."""
        return [
            (name, attempt)
            for name, agent in self.living.items()
            if self.agents[name].alive
            for attempt in agent.attempts.values()
            if attempt.ended is None
        ]

    def _tell(self, name: str, attempt: Attempt, kind: str) -> None:
        """Have a node's agent tell the controller something about an attempt."""
        about = {"job_id": attempt.job_id, "attempt": attempt.number}
        message = {"type": kind, **about, "launch": attempt.launch_mark}
        self.note(f"{name} tells {kind} of job {attempt.job_id}")

        async def tell() -> None:
            attempt.notify(message)

        self.loop.start(self.agents[name], tell())

    def _is_over(self, jobs: int) -> bool:
        controller = self.controller
        if controller is None or len(self.rows) < jobs:
            return False
        return all(JobState(state).is_final for state in controller.state.state)

    async def _run(self, jobs: int) -> None:
        keepers = [self._keep_controller(), self._cut_connections(), self._kill_programs()]
        keepers += [self._stop_processes(), self._close_nodes(), self._ask()]
        keepers += [self._fall_idle(), self._call()]
        if self.joined:
            keepers += [self._be_absent()]
            keepers += [self._sever_hosts()] if self.only is None else []
        keepers += [self._keep_agent(name) for name in self.names]
        keepers += [self._submit(number) for number in range(jobs)]
        self._tasks = [asyncio.ensure_future(each) for each in keepers]
        await asyncio.sleep(ROUGH_S)
        self._tasks.append(asyncio.ensure_future(self._resume_all()))
        while not self._is_over(jobs) or self.machine.cut or self.off or self.machine.asleep:
            await asyncio.sleep(5.0)
            assert self.loop.time() < LONGEST_S, "some job never comes to its end"
        await asyncio.sleep(20.0)  # for what has ended to be cleared away

    def run(self) -> None:
        """The whole story. Raises AssertionError for what must never be."""
        errors = _Errors()
        logger = logging.getLogger("rota")
        logger.addHandler(errors)
        try:
            with _in_virtual_time(self):
                try:
                    self.loop.run_until_complete(self._run(self.random.randint(1, self._most_jobs)))
                    self._check(errors.lines)
                finally:
                    self.loop.close_all()
        finally:
            logger.removeHandler(errors)

    def _check(self, lines: list[str]) -> None:
        assert not self.machine.harm, self.machine.harm
        assert not self.complaints, self.complaints
        lines = [line for line in lines if not any(words in line for words in EXPECTED)]
        assert not lines, lines
        failures = self.loop.failures()
        assert not failures, failures
        assert self.controller is not None
        state = self.controller.state
        state.validate()
        if self.only not in (None, "machine", "orphan"):
            lost = [each for each in self.store.events if isinstance(each, AttemptLost | NodeLost)]
            assert not lost, lost
        for row, spec in enumerate(state.spec):
            outcome = JobState(state.state[row])
            if outcome == JobState.CANCELLED:
                assert row in self.cancelled, f"job {spec.job_id} was cancelled by nobody"
                continue
            if outcome != JobState.SUCCEEDED and spec.job_id in self.harmed:
                continue
            assert outcome == JobState.SUCCEEDED, f"job {spec.job_id} ended as {outcome.name}"
            slots = self.machine.finished.get((spec.job_id, state.attempt[row]), set())
            assert len(slots) >= spec.num_gpus, f"job {spec.job_id} has not done all its steps"
            if not self.joined:  # whose clocks may be wrong
                self._check_run_time(row)
        left = [program for program in self.machine.programs if program.process.alive]
        assert not left, f"processes that no job has: {left}"
        folders = {each.path for each in self.folders.values()}
        known = [file for each in folders for file in each.glob("nodes/*/jobs/*/*/attempt.json")]
        assert not known, f"attempts that agents still have: {known}"

    def _check_run_time(self, row: int) -> None:
        """A job that was launched once and then left alone has the run time of its processes."""
        assert self.controller is not None
        state, commands = self.controller.state, list[Any]()
        for event in self.store.events:
            if isinstance(event, CommandSent) and event.command.row == row:
                commands.append(event.command)
        others = [each for each in commands if not isinstance(each, Retune | SetCpus)]
        if len(others) != 1:
            return
        job_id = state.spec[row].job_id
        of_job = (each for each in self.machine.programs if each.job_id == job_id)
        spans = [p.span_s for p in of_job if p.attempt == state.attempt[row]]
        if state.spec[row].elastic is not None or len(spans) != state.spec[row].num_gpus:
            return  # a rank was replaced
        ran_s = max(end_s for _, end_s in spans) - max(began_s for began_s, _ in spans)
        told_s = state.service_s[row]
        assert abs(told_s - ran_s) < 1.0, f"job {job_id} ran {ran_s} s, and is told {told_s}"


POLICIES: dict[str, dict[str, str]] = {
    "fifo": {},
    "tiresias": {"thresholds": "5,20"},
    "gandiva": {"quantum_s": "3"},
    "elastic": {},
    "restless": {},
}


class _Errors(logging.Handler):
    """What agents and controllers log that they never should."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.lines.append(f"{record.getMessage()} {error!r}")


async def _in_place(call: Any, *arguments: Any, **named: Any) -> Any:
    """In place of ``asyncio.to_thread``."""
    await asyncio.sleep(0)
    return call(*arguments, **named)


def _uses_library(run: str, _: Path) -> bool:
    """In place of what looks at a program's text."""
    return run.startswith(("session", "elastic"))


def _interface_of(_: str) -> str:
    """In place of what looks for the interface of an address."""
    return "eth0"


async def _for_ever(_: Any) -> None:
    await asyncio.Event().wait()


async def _at_once(_: Any) -> None: ...


@contextlib.contextmanager
def _in_virtual_time(cluster: Cluster) -> Iterator[None]:
    """Put the machine in place of the kernel, the network and the clocks."""
    machine = cluster.machine
    folder = cluster.folder.create()
    folder.server.write_text(json.dumps({"url": "http://controller", "pid": 1}))
    folder.agent_token.write_text("token")

    def arenas(self: Folder, name: str) -> Path:
        path = self.path / "arenas" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def in_memory(path: str | Path) -> bool:
        return "arenas" in Path(path).parts

    def held(each: Any) -> int:
        arenas = each.record.vacated.arenas if each.record.vacated is not None else {}
        return 100 * sum(r.alive for r in each.ranks) + 60 * sum(map(in_memory, arenas.values()))

    async def fork(_: ZygoteLink, request: dict[str, Any]) -> int:
        return await machine.fork(request)

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (asyncio, "start_unix_server", machine.start_unix_server),
            (asyncio, "to_thread", _in_place),
            (time, "monotonic", machine.monotonic_s),
            (clock, "boottime_s", machine.boottime_s),
            (clock, "boot_id", machine.boot_id),
            (clock, "ahead_s", machine.ahead_s),
            (clock, "follow", machine.follow),
            (controller_clock, "boottime_s", machine.boottime_s),
            (controller_clock, "wall_ahead_s", lambda: 0.0),
            (agent_module, "peer_of", lambda writer: Peer(writer.peer, 0, 0)),
            (agent_module, "PROGRESS_EVERY_S", 5.0),
            (agent_module, "CURVES_EVERY_S", 60.0),
            (agent_module, "LOOK_AT_FOLDER_S", 60.0),
            (agent_module, "LOOK_AT_ISLAND_S", 60.0),
            (agent_module, "LOOK_OUTSIDE_S", 60.0),
            (agent_module, "LOOK_AT_CPUS_S", 60.0),
            (agent_module, "remove_homeless", list),
            (agent_module, "interface_of", _interface_of),
            (launching, "interface_of", _interface_of),
            (guest, "interface_of", _interface_of),
            (guest, "Meeting", partial(Meeting, machine)),
            (guest, "reach", machine.reach),
            (abroad, "Meeting", partial(Meeting, machine)),
            (abroad, "reach", machine.reach),
            (host_module, "_groups", lambda *_: ()),
            (controller_link, "connect", cluster.connect),
            (controller_link, "random", machine.random),
            (endpoint, "psutil", SimpleNamespace(pid_exists=lambda _: True)),
            (Folder, "socket", lambda self, name: self.path / f"{name}.sock"),
            (Folder, "arenas", arenas),
            (launching, "free_port", partial(next, count(1))),
            (launching, "uses_library", _uses_library),
            (ZygoteLink, "start", _at_once),
            (ZygoteLink, "close", _at_once),
            (ZygoteLink, "fork", fork),
            (WatchmanLink, "run", _for_ever),
            (Filling, "run", _for_ever),
            (Ordering, "run", _for_ever),
            (Meter, "run", _for_ever),
            (Meter, "usage", lambda *_: {}),
            (Meter, "holders", lambda *_: set()),
            (Logs, "run", _for_ever),
            (Logs, "close", lambda _: None),
            (rank, "started_at", machine.started_at),
            (rank, "signal_below", machine.signal_below),
            (rank, "Asking", partial(Asking, machine)),
            (rank, "Waking", partial(Waking, machine)),
            (moves, "started_at", machine.started_at),
            (attempt_report, "in_host_memory", in_memory),
            (restore_from_arena, "in_host_memory", in_memory),
            (restore_from_arena, "read_table", _readable),
            (restore_from_arena, "verify", _readable),
            (migrate_in, "verify", _readable),
            (spill_to_arena, "in_host_memory", in_memory),
            (spill_to_arena, "read_header", _readable),
            (memory, "held_by", held),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


def _readable(path: str | Path) -> None:
    """In place of what reads arenas: those of virtual workers hold a line of JSON."""
    try:
        json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ArenaError(f"{path}: {error}") from None
