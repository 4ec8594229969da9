"""The one reader of the cluster for all pages that this process shows."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

from rota.client.client import Client
from rota.client.events import Busy, Connected, Disconnected, Logged, Progress, Told
from rota.client.joblist import Due, JobList
from rota.client.joblist import read as read_jobs
from rota.client.log_stream import Printed
from rota.errors import NotFoundError, RotaError
from rota.ui.curves import Curves
from rota.ui.holds import Holds

LOOK_S = 2.0  # between two looks at what no event tells: who is connected
REST_S = 1.0  # between two readings of searches, trials of sharing and the policy
AGE_S = 15.0  # between two readings of jobs without an event
LEAST_GAP_S = 0.2  # between two readings
SHARE = 5.0  # a reading is followed by a pause so many times as long
RETRY_S = 2.0
CALLERS = 4  # calls that pages make at once
MOST_DECISIONS = 500
MOST_TRIALS = 32  # jobs that share, of which is asked whether that is on trial
MOST_NEWS = 200  # other events that are kept

T = TypeVar("T")


class Decision(NamedTuple):
    """A decision of the policy, as the stream tells it."""

    seq: int
    at_s: float
    data: Mapping[str, Any]


class Reader:
    """The cluster's jobs, nodes, policy, searches and events, kept current from the event stream.

    ``connect`` makes a client. Pages read the attributes in the event loop, and :meth:`listen` for
    changes. A job, node or search that has not changed is the same object as before, so that pages
    can send what is new.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._list = JobList(self._steady)
        self.nodes: dict[str, dict[str, Any]] = {}  # by name
        self.awaited: list[dict[str, Any]] = []
        self.policy: dict[str, Any] = {}
        self.sweeps: dict[str, dict[str, Any]] = {}
        self.on_trial: frozenset[str] = frozenset()  # jobs whose sharing is being measured
        self.decisions: deque[Decision] = deque(maxlen=MOST_DECISIONS)
        self.news: deque[Logged] = deque(maxlen=MOST_NEWS)
        self.holds = Holds()
        self.curves = Curves()
        self.may: frozenset[str] = frozenset()  # the actions that the controller allows
        self.away: str | None = "it has not been asked yet"  # why no controller answers
        self._connect = connect
        self._follower: Client | None = None
        self._clients = threading.local()
        self._pool = ThreadPoolExecutor(CALLERS, "ui-call")
        self._listeners: set[Callable[[], None]] = set()
        self._ahead_s = 0.0
        self._stale = asyncio.Event()

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Active jobs and those that ended within the hour, by id, oldest first."""
        return self._list.jobs

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called after each change; what is returned ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def now_s(self) -> float:
        """The cluster's time."""
        return time.time() + self._ahead_s

    async def call(self, ask: Callable[[Client], T]) -> T:
        """What ``ask`` returns for a client, in a thread. Raises the client's errors."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._asked, ask)

    def output(self, job_id: str, *, rank: int | None, tail: int) -> AsyncIterable[Printed]:
        """The last lines of a rank's output, and what follows, as it is printed."""
        if self._follower is None:
            self._follower = self._connect()
        return self._follower.follow(job_id, rank=rank, tail=tail)

    def refresh(self) -> None:
        """Have the lists read again soon: a page has changed something."""
        self._stale.set()

    async def run(self) -> None:
        """Read, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._keep_lists())

    # -- the stream ----------------------------------------------------------------------------

    async def _follow(self) -> None:
        client = self._connect()
        stream = client.events(after=0, patience_s=None, busy=True)
        while True:
            try:
                async for told in stream:
                    self._take(told)
            except RotaError as error:
                self._lose(str(error))
            await asyncio.sleep(RETRY_S)

    def _take(self, told: Told) -> None:
        if self._list.note(told):
            self._stale.set()
        if isinstance(told, Progress):
            job = self.jobs.get(told.job_id)
            if job is not None:
                self.jobs[told.job_id] = job | {"progress": told.progress}
            self.curves.add(told.job_id, told.progress)
            self._tell()
        elif isinstance(told, Disconnected):
            self._lose(told.why)
        elif isinstance(told, Logged):
            if told.kind == "WorkerReported" and told.job_id is not None:
                self.curves.add(told.job_id, told.data["progress"])
            self.holds.apply(told.kind, told.at_s, told.job_id, told.data)
            if told.kind == "DecisionTaken":
                self.decisions.append(Decision(told.seq, told.at_s, told.data))
            else:
                self.news.append(told)
            self._stale.set()
        else:
            if isinstance(told, Connected | Busy):
                self.away = None
            self._stale.set()
            self._tell()

    def _lose(self, why: str) -> None:
        self.away = why
        self._tell()

    # -- lists ---------------------------------------------------------------------------------

    async def _keep_lists(self) -> None:
        aged_s = rest_s = -inf
        wants_rest = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stale.wait()
            began_s = time.monotonic()
            if began_s > aged_s + AGE_S:
                aged_s = began_s
                self._list.age(self.now_s())
                wants_rest = True
            wants_rest |= self._stale.is_set()
            self._stale.clear()
            reads_rest = wants_rest and began_s > rest_s + REST_S
            due = self._list.take()
            sharing = [job["id"] for job in self.jobs.values() if job["shared_with"]]
            rest = sharing[:MOST_TRIALS] if reads_rest else None
            try:
                found = await self.call(partial(_read, due=due, rest=rest))
            except RotaError as error:
                self._list.put(due, None, self.now_s())
                if self.away is None:
                    self._lose(str(error))
                await asyncio.sleep(LOOK_S)
                self._stale.set()
                continue
            if reads_rest:
                rest_s, wants_rest = began_s, False
            if self._merge(found, due):
                self._tell()
            await asyncio.sleep(max(LEAST_GAP_S, SHARE * (time.monotonic() - began_s)))

    def _merge(self, found: dict[str, Any], due: Due) -> bool:
        self._ahead_s = found["ahead_s"]
        before = self._others()
        self.nodes = _merged(self.nodes, {each["name"]: each for each in found["nodes"]})
        self.awaited, self.may = found["awaited"], found["may"]
        is_changed = self._list.put(due, found["jobs"], self.now_s())
        if "sweeps" in found:
            is_changed |= self._list.place(found["queue"])
            self.policy, self.on_trial = found["policy"], found["on_trial"]
            self.sweeps = _merged(self.sweeps, {each["name"]: each for each in found["sweeps"]})
        for node in sorted(self.nodes):
            self.holds.node_joined(node, self.nodes[node]["num_gpus"])
        return is_changed or before != self._others()

    def _others(self) -> tuple[object, ...]:
        return self.nodes, self.awaited, self.policy, self.sweeps, self.on_trial, self.may

    def _steady(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job without numbers that grow with time: these are told by since when they do."""
        job = job | {"share": round(job["share"], 2)}
        del job["age_s"]
        runs = job["state"] == "RUNNING"
        job["runs_since_s"] = round(self.now_s() - job["run_s"]) if runs else None
        job["run_s"] = None if runs else round(job["run_s"], 1)
        if job["eta_s"] is not None:
            job["eta_s"] = [float(f"{value:.2g}") for value in job["eta_s"]]
        return job

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _asked(self, ask: Callable[[Client], T]) -> T:
        client: Client | None = getattr(self._clients, "client", None)
        if client is None:
            client = self._clients.client = self._connect()
        return ask(client)


def _read(client: Client, *, due: Due, rest: list[str] | None) -> dict[str, Any]:
    """Nodes, the jobs that are due, and the rest, with which of these jobs are on trial."""
    found: dict[str, Any] = {"nodes": client.nodes(), "awaited": client.awaited_nodes()}
    found["may"] = client.may()
    found["jobs"] = read_jobs(client, due)
    if rest is not None:
        found["sweeps"], found["queue"] = client.sweeps(), client.queue()
        found["policy"] = next(iter(client.policies()), {})
        found["on_trial"] = frozenset(_on_trial(client, rest))
    return found | {"ahead_s": client.ahead_s}


def _on_trial(client: Client, sharing: list[str]) -> Iterator[str]:
    for job_id in sharing:
        with contextlib.suppress(NotFoundError):
            if (client.explain(job_id)["sharing"] or {}).get("on_trial"):
                yield job_id


def _merged(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What is new, with the old object for what is equal to it."""
    return {key: old[key] if old.get(key) == each else each for key, each in new.items()}
