"""The API on a real socket, in front of a controller that a test drives by hand."""

import asyncio
import json
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rota.errors import AuthError, InputError, NeverFitsError, NotFoundError
from rota.folder import Folder
from rota.live.agent.answers import find
from rota.live.agent.line_times import times_file
from rota.live.controller import loop
from rota.live.controller.cleaner import Cleaner
from rota.live.controller.counts import Counts, ProcessCounts
from rota.live.controller.job_api import Entry, check_open
from rota.live.controller.job_files import JobFiles
from rota.live.controller.job_index import JobIndex
from rota.live.controller.loop import Controller
from rota.live.controller.outboxes import Outboxes
from rota.live.controller.room import Room
from rota.live.controller.snapshots import Snapshots
from rota.live.provider.base import ProvidedNode, Provider
from rota.live.wire.questions import Found, Question
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandSent,
    Event,
    JobLaunched,
    JobSubmitted,
    NodeJoined,
    ResumeRequested,
    StopRequested,
    SuspendRequested,
)
from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState
from rota.model.turns import Ahead, Turns
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.registry import again, create
from rota.report.eta import Past
from rota.request.jobfile import JobRequest
from rota.server import queue_order
from rota.server.door import Door
from rota.server.serve import serve
from rota.server.sweepdriver import SweepDriver
from rota.server.tls import Listener
from rota.store.deliveries import Hook
from rota.store.events import EventStore

NODE = "here"


class StandInController:
    """As much of a controller as the API calls, on one node, with no agent and no store.

    Nothing happens by itself: :meth:`turn` lets the policy decide and every launch succeed.
    """

    def __init__(self, folder: Folder, num_gpus: int = 2, policy: str = "fifo") -> None:
        self.state = ClusterState()
        self.stopped = asyncio.Event()
        self.state.epoch = 1
        # Whoever asks one part of a controller asks all of this one.
        self.record = self.jobs = self.sweeps = self.telemetry = self.journal = self.agents = self
        self.searches = self.supply = self
        self.counts, self.process_counts = Counts(self.state), ProcessCounts()
        self.state.observers.append(self.counts.note)
        self.outboxes = Outboxes()
        self.heard_s: dict[str, float] = {}
        self.vitals: dict[str, dict[str, Any]] = {}
        self.past = Past()
        self.state.observers.append(self.past.note)
        self.being_cleaned: Counter[int] = Counter()
        self.policy_name = policy
        self.policy_settings: dict[str, Any] = {}
        self.policy_error: str | None = None
        self.is_any_open = False
        self.reports: dict[int, dict[str, Any]] = {}
        self.models: dict[int, tuple[int, int]] = {}
        self.lost_ranks: Counter[int] = Counter()
        self.memory: dict[int, dict[str, Any]] = {}
        self.why_suspended: dict[int, str] = {}
        self.started: dict[int, str] = {}
        self.life: list[str] = []
        self.members = NoMembers()
        self.awaited_nodes: list[dict[str, Any]] = []
        self.ends_jobs = False
        self.agents_said: list[str] = []
        self._keys: dict[tuple[str, str], tuple[str, int]] = {}
        self.room = Room(folder, keeps_reserve=False)
        self._folder = folder
        self.files = JobFiles(self, self, NoAgents(), NoMembers(), NoCopies())
        self.snapshots = Snapshots(self, self.room, folder.snapshots)  # type: ignore[arg-type]
        parts = (self, self, self.files, self.snapshots)
        self.cleaner = Cleaner(*parts)  # type: ignore[arg-type]
        self._policy = create(policy)
        self.resizes = self._policy.resizes
        self.adapts = self._policy.adapts
        self.fills = self._policy.fill is not None
        self.lost_s: dict[str, float] = {}
        self.index = JobIndex(self.state)
        self.store = SimpleNamespace(identity="0" * 32)
        self.deliveries = NoDeliveries()
        self.state.apply(NodeJoined(self.now_s(), NODE, num_gpus, "cpu"))

    @property
    def written(self) -> int:
        return self.state.events

    @property
    def rows(self) -> dict[str, int]:
        return {spec.job_id: row for row, spec in enumerate(self.state.spec)}

    async def start(self) -> None:
        self.life.append("start")

    async def stop(self) -> None:
        self.life.append("stop")

    async def serve_agent(self, channel: Any, member: str = "", address: str = "") -> None:
        self.agents_said.append(await channel.receive())
        await channel.send("welcome")

    def now_s(self) -> float:
        return time.time()

    def write_down(self) -> bool:
        return True

    def turn(self) -> None:
        """One decision; what it starts runs."""
        now_s = self.now_s()
        take_decision(self.state, self._policy, now_s)
        for command in diff(self.state):
            self.state.apply(CommandSent(now_s, command))
            self.state.apply(JobLaunched(now_s, command.row, command.attempt))
            job_id = self.state.spec[command.row].job_id
            self._folder.attempt(NODE, job_id, command.attempt).mkdir(parents=True, exist_ok=True)

    def check(self, request: JobRequest) -> None:
        if request.num_gpus > self.state.total_gpus:
            raise NeverFitsError(f"NEVER_FITS: resources.gpus is {request.num_gpus}")

    def preview_spec(self, request: JobRequest, user: str) -> JobSpec:
        self.check(request)
        return Entry(request, user, None, "").spec(str(len(self.state.spec) + 1), self.now_s())

    def new_policy(self) -> Policy:
        return again(self._policy)

    async def submit(
        self, request: JobRequest, *, user: str, key: str | None, body_hash: str
    ) -> int:
        if key is not None and (user, key) in self._keys:
            known, row = self._keys[user, key]
            if known != body_hash:
                raise InputError(f"Idempotency-Key {key!r} was used for another job")
            return row
        self.check(request)
        row = len(self.state.spec)
        spec = Entry(request, user, key, body_hash).spec(str(row + 1), self.now_s())
        self.state.apply(JobSubmitted(spec.submit_s, spec))
        if key is not None:
            self._keys[user, key] = (body_hash, row)
        return row

    async def cancel(self, row: int, user: str = "", *, now: bool = False) -> bool:
        if self.state.state[row] == JobState.CANCELLED:
            return False
        check_open(self.state, row, "cancelled", self.now_s())
        self.state.apply(StopRequested(self.now_s(), row, user=user))
        return True

    async def suspend(self, row: int, user: str = "") -> bool:
        check_open(self.state, row, "suspended", self.now_s())
        asked_before = row in self.state.held_back
        self.state.apply(SuspendRequested(self.now_s(), row, user))
        return not asked_before

    async def resume(self, row: int, user: str = "") -> bool:
        check_open(self.state, row, "resumed", self.now_s())
        was_suspended = row in self.state.held_back
        self.state.apply(ResumeRequested(self.now_s(), row, user))
        return was_suspended

    def end_jobs(self) -> None:
        self.life.append("end_jobs")
        self.ends_jobs = True

    def waits_for(self) -> dict[str, Any]:
        rows = [row for row in self.state.active if self.state.has_processes(row)]
        specs = [self.state.spec[row] for row in rows]
        jobs = [{"id": spec.job_id, "name": spec.name, "node": NODE} for spec in specs]
        return {"jobs": jobs, "agents": [NODE]}

    def row(self, job_id: str, *, newest: bool = False) -> int:
        for row, spec in enumerate(self.state.spec):
            if job_id == spec.job_id:
                return row
        for row, spec in reversed([*enumerate(self.state.spec)]):
            if job_id == spec.name:
                return row
        if job_id == "@last" and self.state.spec:
            return len(self.state.spec) - 1
        raise NotFoundError(f"there is no job {job_id!r}")

    def progress(self, row: int) -> dict[str, Any]:
        return self.reports.get(row, {})

    def state_on(self, row: int) -> str | None:
        return NODE if self.state.has_processes(row) else None

    def device_share(self, row: int) -> float:
        return 0.5

    def history(self, row: int) -> list[tuple[float, int]]:
        return [(1.0, self.state.reason[row])]

    def turns(self, row: int) -> Turns | None:
        return self._policy.turns(View(self.state, self.now_s(), self._policy), row)

    def ahead(self, row: int) -> Ahead | None:
        return self._policy.ahead(View(self.state, self.now_s(), self._policy), row)

    def quota(self, row: int) -> int | None:
        return self._policy.quota(View(self.state, self.now_s(), self._policy), row)

    def queues(self) -> tuple[str, ...]:
        return self._policy.queues()

    def queue_weight(self, queue: str) -> float:
        return self._policy.queue_weight(queue)

    async def ask(self, node: str, question: Question, patience_s: float = 0.0) -> Found:
        """What the node's agent would answer."""
        return await find(self._folder, node, question)

    def node_of(self, row: int, attempt: int) -> str | None:
        return NODE if 0 < attempt <= self.state.attempt[row] else None

    def nodes_of(self, row: int, attempt: int) -> list[str]:
        """The node of that attempt, which is on one."""
        node = self.node_of(row, attempt)
        return [] if node is None else [node]

    def origin(self, row: int) -> str:
        return "this log"

    def write_first(self, event: Event) -> None:
        self.state.apply(event)

    def has_started(self, row: int, attempt: int) -> bool:
        return self.node_of(row, attempt) is not None

    async def resumed_from(self, request: JobRequest) -> str:
        return request.resume_from

    def awaited(self) -> list[dict[str, Any]]:
        return self.awaited_nodes

    def most_nodes(self) -> int:
        return 0

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "name": n.name,
                "kind": n.kind,
                "gpu_type": n.gpu_type,
                "num_gpus": n.num_gpus,
                "alive": n.alive,
                "lost_s": self.lost_s.get(n.name),
                "jobs": [None] * n.num_gpus,
                "holders": [[] for _ in range(n.num_gpus)],
            }
            for n in self.state.nodes
        ]


class NoMembers:
    """No machine has joined, and none was invited."""

    names: frozenset[str] = frozenset()

    def check_invitation(self, token: str, now_s: float) -> None:
        """Refuse any token."""
        raise AuthError("nobody was invited")

    def node_of(self, token: str) -> str | None:
        """Nobody's."""
        return None


class NoDeliveries:
    """Deliveries to no hook."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()

    def hooks(self) -> list[Hook]:
        return []


class NoCopies:
    """No output was copied from another machine."""

    def has(self, row: int, attempt: int, node: str) -> bool:
        """False."""
        return False


class NoAgents(Provider):
    """A provider of a node that nobody runs anything on."""

    def nodes(self) -> list[ProvidedNode]:
        """One without a living agent."""
        return [ProvidedNode(NODE, is_alive=False)]


def controller_without_agents(folder: Folder, num_gpus: int = 2) -> Controller:
    """A real controller, under policy fifo-backfill: it takes jobs and searches, and runs none."""
    store = EventStore(folder.database)
    if next(iter(store.load()), None) is None:
        store.append([NodeJoined(time.time(), NODE, num_gpus, "cpu")])
    return Controller(
        store, folder, create("fifo-backfill"), "fifo-backfill", NoAgents(), past=Past()
    )


class Served:
    """A controller behind the API, served from a thread of its own until the context ends.

    Nobody drives its searches: ``driver`` starts nothing.
    """

    def __init__(self, folder: Folder, controller: Any) -> None:
        self.folder = folder
        self.controller = controller
        self.driver = SweepDriver(lambda: False, folder)
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def do(self, action: Callable[[], Any]) -> Any:
        """Call ``action`` on the controller's event loop; its result."""

        async def call() -> Any:
            return action()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def stop(self) -> None:
        """Begin to end the server and the controller."""
        if self._loop and self._task:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def apply(self, *events: Event) -> None:
        """Let the state take note of events."""
        for event in events:
            self.do(partial(self.controller.state.apply, event))

    def log_path(self, row: int, rank: int = 0) -> Path:
        """The log of a process of the job's latest attempt."""
        state = self.controller.state
        return self.folder.log(NODE, state.spec[row].job_id, state.attempt[row], rank)

    def write_log(self, row: int, data: bytes, rank: int = 0) -> None:
        """Append to the log of a process of the job's latest attempt."""
        path = self.log_path(row, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def write_times(self, row: int, *entries: tuple[float, int], rank: int = 0) -> None:
        """Write down, as an agent does, how long a log of the latest attempt was at which times."""
        numbers = array("d", (number for entry in entries for number in entry))
        times_file(self.log_path(row, rank)).write_bytes(numbers.tobytes())

    def write_ranks(self, row: int, members: list[int], **more: Any) -> None:
        """Write down, as an agent does, which processes of the latest attempt are which ranks."""
        path = self.log_path(row).with_name("attempt.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"members": members, "gpus": members, "slots": max(members) + 1}
        path.write_text(json.dumps(record | more))


@contextmanager
def served(
    folder: Folder,
    controller: Any = None,
    port: int = 0,
    door: Door | None = None,
    listener: Listener | None = None,
) -> Iterator[Served]:
    """Serve a controller, by default a stand-in, on a free port of this machine.

    With a ``listener`` it is served over TLS there, too. Decisions follow each other without a
    pause, and the queue's order is found anew whenever somebody asks, however long these take.
    """
    unpaced = ExitStack()
    unpaced.enter_context(patch.object(loop, "MOST_PACE_S", 0.0))
    unpaced.enter_context(patch.object(queue_order, "SHARE", 0.0))
    it = Served(folder, controller or StandInController(folder))
    listening = threading.Event()
    failure: list[BaseException] = []

    async def main() -> None:
        def heard(url: str) -> None:
            it.url = url
            listening.set()

        it._loop = asyncio.get_running_loop()
        it._task = asyncio.current_task()
        more = {"driver": it.driver, "door": door, "listener": listener}
        await serve(it.controller, folder, port=port, on_listen=heard, **more)

    def thread() -> None:
        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            failure.append(error)
        finally:
            listening.set()

    runner = threading.Thread(target=thread, name="served")
    runner.start()
    listening.wait()
    try:
        if failure:
            raise failure[0]
        yield it
    finally:
        if runner.is_alive():
            it.stop()
        runner.join()
        unpaced.close()
