"""The live cluster's state from the event log, and answers about it."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from rota.errors import NotFoundError, RotaError, did_you_mean
from rota.folder import JOB_ID, Folder
from rota.live.controller.clock import Clock
from rota.live.controller.counts import Counts, ProcessCounts
from rota.live.controller.job_index import JobIndex
from rota.live.controller.last_id import read_last_id, write_last_id
from rota.live.controller.lines import Lines
from rota.live.controller.node_index import NodeIndex
from rota.live.controller.outboxes import Outboxes
from rota.live.controller.recovery import losses_after, places_of
from rota.live.controller.sweep_record import Searches
from rota.live.wire import Message
from rota.model.commands import Command, Launch, Resize
from rota.model.events import (
    AttemptLost,
    CommandSent,
    DecisionTaken,
    Event,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResized,
    JobResumed,
    JobSubmitted,
    ModelReported,
    NodeAddressChanged,
    NodeClosed,
    NodeJoined,
    NodeLost,
    SuspendRequested,
    WorkerRegistered,
)
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.store.deliveries import Deliveries
from rota.store.events import EventStore

# Is given the state before the log is read, and returns what is to be told of every event applied.
Watcher = Callable[[ClusterState], Callable[[Event], None]]

CLAIM_S = 30.0  # a claim that was not made again for so long counts no longer
RECENT = 1000  # jobs whose names an unknown one is compared with
LATELY_S = 60.0  # the end of a connection is told for so long, also if there is another one


class Host(NamedTuple):
    """Where a node's agent calls from, "" if from this machine, and the versions of its program.

    ``machine`` and ``boot_id`` identify its machine and this life of it, "" if it does not tell.
    """

    address: str
    build: str
    reach: str = ""  # see rota.model.cluster.Node
    machine: str = ""
    boot_id: str = ""


class NodeClaim(NamedTuple):
    """Another machine says that it is a node: where it calls from, and when it did so last."""

    address: str
    at_s: float


class Noting(Protocol):
    """Learns from events as they are applied."""

    def note(self, event: Event) -> None:
        """Take an event in; raises nothing."""


class Record:
    """The state, what was said about it, and the agents that are connected.

    Making one reads the whole event log of ``store``. ``watchers`` are told of the log's events
    too, and ``past`` notes them. Raises StoreError for a log that this version can't follow, with
    nothing changed.
    """

    def __init__(
        self,
        store: EventStore,
        folder: Folder,
        watchers: Iterable[Watcher] = (),
        past: Noting | None = None,
    ) -> None:
        self.state = ClusterState()
        self.index, self.on_node = JobIndex(self.state), NodeIndex(self.state)
        self.counts, self.process_counts = Counts(self.state), ProcessCounts()
        self.searches = Searches(self.state, self.now_s)
        self.store = store
        self.deliveries = Deliveries(store)
        self.folder = folder
        self.latest: dict[int, dict[str, Any]] = {}  # progress, newer than what is written down
        self._history: dict[int, list[tuple[float, int]]] = {}
        self.rows: dict[str, int] = {}
        self.losses: dict[int, int] = {}
        self._lost_s: dict[str, float] = {}  # when nodes that are gone were lost
        self._closed_by: dict[str, str] = {}  # who closed a node last
        self.models: dict[int, tuple[int, int]] = {}  # by row: bytes in all, in the largest tensor
        self.lost_ranks: Counter[int] = Counter()  # by row: those that it has gone on without
        self.why_suspended: dict[int, str] = {}  # in the way that it is, by row
        self.started: dict[int, str] = {}  # how its program was started, by row
        self.being_cleaned: Counter[int] = Counter()  # by row: requests to remove its files
        self.outboxes = Outboxes()
        self.held_by: dict[str, str] = {}  # by node: by what jobs are held to their CPU cores
        self.about: dict[str, str] = {}  # by node: what the engine that gives it calls it
        self._spread: dict[tuple[int, int], dict[str, None]] = {}  # (row, attempt) -> nodes
        self.last_node: dict[tuple[int, int], str] = {}  # (row, attempt) -> where it ran last
        self.heard_s: dict[str, float] = {}  # by node: when its agent was heard last
        self.disconnected: dict[str, tuple[float, str]] = {}  # by node: when last, and why
        self.hosts: dict[str, Host] = {}  # by node: as its agent last said hello
        self.claims: dict[
            str, NodeClaim
        ] = {}  # by node: that of another machine, which was refused
        self.vitals: dict[str, Message] = {}  # by node: what its agent has told last of its use
        # By row: variables that a job's processes get besides its own, which come first.
        self.environment: Callable[[int], dict[str, str]] = lambda row: {}
        self.limits_s: dict[int, float] = {}  # of jobs that have started and not ended, by row
        # (row, attempt) -> when it was sent, and to which node
        self._launched: dict[tuple[int, int], tuple[float, str]] = {}
        self.lines = Lines()
        self.state.on_line = self._note_line
        self.state.observers += [self.searches.note, self._remember, self.counts.note]
        self.state.observers.append(self.on_node.note)
        self.state.observers += [watch(self.state) for watch in watchers]
        self.past = past
        self.state.observers += [past.note] if past is not None else []
        last_s = 0.0
        for number, event in enumerate(store.load(), 1):
            try:
                self.state.apply(event)
            except (RotaError, LookupError, TypeError) as error:
                what = f"a {type(event).__name__} can't follow what was before it"
                raise store.unreadable(number, what) from error
            last_s = max(last_s, event.at_s)
        self.clock = Clock(folder.clock, last_s)
        known = max((int(each) for each in self.rows if JOB_ID.fullmatch(each)), default=0)
        self.next_id = 1 + max(known, read_last_id(folder.last_id))
        # Another log was here, or a later state of this one: its jobs are none of this log's.
        self.foreign_ids = range(known + 1, self.next_id)

    def keep_last_id(self) -> None:
        """Write down which ids have been given, for a time without this event log."""
        write_last_id(self.folder.last_id, self.next_id - 1)

    def _note_line(self, row: int, line: str) -> None:
        self.lines.note(self.state.events + 1, row, line)

    def _remember(self, event: Event) -> None:
        """Keep the parts of an event that questions will ask for."""
        if isinstance(event, JobSubmitted):
            self.rows[event.spec.job_id] = len(self.state.spec) - 1
        elif isinstance(event, DecisionTaken):
            for row, code in event.reasons.items():
                self._history.setdefault(row, []).append((event.at_s, code))
            for row, allocation in event.allocations.items():
                if allocation is not None and row not in event.reasons:
                    self._history.setdefault(row, []).append((event.at_s, Reason.NONE))
        elif isinstance(event, CommandSent):
            command = event.command
            self._note_spread(command)
            if isinstance(command, Launch):
                node = self.state.nodes[command.allocation.nodes()[0]].name
                self._launched[command.row, command.attempt] = event.at_s, node
        elif isinstance(event, JobLaunched | JobResumed):
            limit_s = self.state.spec[event.row].time_limit_s
            if limit_s is not None:
                self.limits_s[event.row] = limit_s
            held = self.state.held[event.row]
            if held is not None:
                key = (event.row, self.state.attempt[event.row])
                self.last_node[key] = self.state.nodes[held.nodes()[0]].name
        elif isinstance(event, JobParked):
            home = self.state.home[event.row]
            assert home is not None, "state that was sent is somewhere"
            key = (event.row, self.state.attempt[event.row])
            self.last_node[key] = self.state.nodes[home.nodes()[0]].name
        elif isinstance(event, JobFinished):
            self.limits_s.pop(event.row, None)
        elif isinstance(event, AttemptLost):
            self.why_suspended.pop(event.row, None)
            self.losses[event.row] = losses_after(self.losses.get(event.row, 0), event)
        elif isinstance(event, JobResized):
            self.lost_ranks[event.row] += event.lost_ranks
        elif isinstance(event, WorkerRegistered):
            self.why_suspended[event.row] = event.why
            self.started[event.row] = event.started
        elif isinstance(event, ModelReported):
            self.models[event.row] = (event.model_bytes, event.largest_tensor_bytes)
        elif isinstance(event, NodeClosed):
            self._closed_by[event.name] = event.user
        elif isinstance(event, NodeJoined):
            machine = event.machine, event.boot_id
            self.hosts[event.name] = Host(event.address, event.build, event.reach, *machine)
        elif isinstance(event, NodeAddressChanged):
            place = {"address": event.address, "reach": event.reach}
            self.hosts[event.name] = self.hosts[event.name]._replace(**place)
        elif isinstance(event, NodeLost):
            self._lost_s[event.name] = event.at_s
        elif isinstance(event, SuspendRequested):
            reason = Reason.IDLE if event.by_itself else Reason.HELD_BY_USER
            self._history.setdefault(event.row, []).append((event.at_s, reason))

    def origin(self, row: int) -> str:
        """Identifies the job among jobs with the same id in other logs or in copies of this log."""
        return f"{self.store.identity} {self.state.submit_s[row]!r}"

    def launch_mark(self, row: int, attempt: int) -> str | None:
        """Identifies an attempt among others of the same number; None if it never launched."""
        sent = self._launched.get((row, attempt))
        return None if sent is None else f"{self.store.identity} {sent[0]!r}"

    def is_foreign(self, message: Message) -> bool:
        """True if an agent's message is about an attempt that this log does not know.

        Agents older than marks send none.
        """
        mark, row = message.get("launch"), self.rows.get(message["job_id"])
        if mark is None:
            return False
        return row is None or mark != self.launch_mark(row, message["attempt"])

    def now_s(self) -> float:
        """The cluster's time: seconds since the epoch."""
        return self.clock.now_s()

    def living(self) -> int:
        """Number of jobs that have processes."""
        return sum(self.state.has_processes(row) for row in self.index.going())

    def row(self, job_id: str, *, newest: bool = False) -> int:
        """The row of a job by id, by ``@last``, or by a name. Raises NotFoundError.

        If several jobs have the name, ``newest`` selects the newest one, for callers that change
        nothing. Otherwise it must be the only one, or the only one that has not ended.
        """
        if job_id == "@last" and self.state.spec:
            return len(self.state.spec) - 1
        if job_id in self.rows:
            return self.rows[job_id]
        named = self.index.named(job_id)
        active = [row for row in named if self.state.finish_s[row] < 0]
        if named and newest:
            return named[-1]
        if len(named) == 1 or len(active) == 1:
            return (active or named)[0]
        if named:
            ids = ", ".join(self.state.spec[row].job_id for row in named[-5:])
            raise NotFoundError(f"{len(named)} jobs are named {job_id!r}; use an id: {ids}")
        if self.searches.is_name(job_id):
            raise NotFoundError(
                f"{job_id} is a sweep, and no job; `rota sweep show {job_id}` lists its trials, "
                f"which are jobs named {job_id}.NUMBER; `rota sweep cancel {job_id}` ends it"
            )
        hint = did_you_mean(job_id, {spec.name for spec in self.state.spec[-RECENT:]})
        raise NotFoundError(f"there is no job {job_id!r:.80}{hint}; `rota ps --all` lists them")

    def progress(self, row: int) -> dict[str, Any]:
        """The job's latest report."""
        return self.latest.get(row) or self.state.progress[row] or {}

    def device_share(self, row: int) -> float:
        """The part of its life in which the job has held its devices and worked."""
        finish_s = self.state.finish_s[row]
        end_s = finish_s if finish_s >= 0 else self.clock.now_s()
        age_s = end_s - self.state.submit_s[row]
        return self.state.service(row, end_s) / age_s if age_s > 0 else 0.0

    def history(self, row: int) -> list[tuple[float, int]]:
        """(time, reason code) each time the policy's verdict on the job changed."""
        return self._history.get(row, [])

    def node_of(self, row: int, attempt: int) -> str | None:
        """The node where an attempt was last, and what it left is; None if it was never sent."""
        key = (row, attempt)
        return self.last_node.get(key) or self._launched.get(key, (0.0, None))[1]

    def reach(self, node: str) -> str:
        """The address at which processes of other nodes find those of this one; "" for none."""
        return self.hosts[node].reach

    def nodes_of(self, row: int, attempt: int) -> list[str]:
        """The nodes where an attempt has left something, that of its agent first."""
        first = self.node_of(row, attempt)
        others = self._spread.get((row, attempt), {})
        return [] if first is None else [first, *(node for node in others if node != first)]

    def _note_spread(self, command: Command) -> None:
        """Note the nodes that an attempt is to be on, if it has several."""
        if isinstance(command, Launch | Resize) and len(command.allocation.parts) > 1:
            known = self._spread.setdefault((command.row, command.attempt), {})
            known |= {self.state.nodes[index].name: None for index in command.allocation.nodes()}

    def has_started(self, row: int, attempt: int) -> bool:
        """True if the processes of an attempt have run."""
        return (row, attempt) in self.last_node

    def state_on(self, row: int) -> str | None:
        """The node where the state of a started job lies; None if it has none."""
        if not self.state.has_processes(row):
            return None
        return self.last_node.get((row, self.state.attempt[row]))

    def nodes(self) -> list[dict[str, Any]]:
        """Each node with its devices and the foreground jobs on each; several may share one."""
        now_s = self.now_s()
        in_use = {
            index
            for row in self.index.begun()
            if self.state.has_processes(row)
            for index in places_of(self.state, row)
        }
        holders: list[list[list[str]]] = [
            [[] for _ in range(node.num_gpus)] for node in self.state.nodes
        ]
        for row in sorted(self.state.holding):
            held = self.state.held[row]
            for node, gpus in held.gpus() if held and not held.background else ():
                for gpu in gpus:
                    holders[node][gpu].append(self.state.spec[row].job_id)
        given = [0] * len(self.state.nodes)
        for row, millicores in self.state.held_cpus.items():
            place = self.state.held[row]
            for index, share in place.shares(millicores) if place is not None else ():
                given[index] += share
        return [
            {
                "name": node.name,
                "kind": node.kind,
                "gpu_type": node.gpu_type,
                "num_gpus": node.num_gpus,
                "alive": node.alive,
                "lost_s": None if node.alive else self._lost_s.get(node.name),
                "connected": node.name in self.outboxes.queues,
                "address": self.hosts[node.name].address or None,
                "build": self.hosts[node.name].build or None,
                "silent_s": self._silent_s(node.name, now_s),
                "claimed_by": self._claimed_by(node.name, now_s),
                **self._disconnection(node.name, now_s),
                "unreachable": index in self.state.unreachable,
                "lost_at_s": self.state.unreachable.get(index),
                "jobs": [ids[0] if ids else None for ids in held_by],
                "holders": held_by,
                "cores": node.millicores / 1000 or None,
                "cores_given": given[index] / 1000,
                "cores_held_by": self.held_by.get(node.name),
                "leaves_s": self.state.leaves_s.get(index),
                "about": self.about.get(node.name) or None,
                **self._closing(index, is_empty=index not in in_use),
            }
            for index, (node, held_by) in enumerate(zip(self.state.nodes, holders, strict=True))
        ]

    def _disconnected(self, node: str, now_s: float) -> tuple[float, str] | None:
        """When and why a node's connection ended, if there is none now or it ended lately."""
        ended = self.disconnected.get(node)
        if ended is None or (node in self.outboxes.queues and now_s - ended[0] > LATELY_S):
            return None
        return ended

    def _disconnection(self, node: str, now_s: float) -> dict[str, Any]:
        at_s, why = self._disconnected(node, now_s) or (None, None)
        return {"disconnected_s": at_s, "disconnected_why": why}

    def _silent_s(self, node: str, now_s: float) -> float | None:
        """How long a machine that has joined has not been heard; None if it never was."""
        heard_s = self.heard_s.get(node)
        return now_s - heard_s if heard_s is not None and self.hosts[node].address else None

    def _claimed_by(self, node: str, now_s: float) -> str | None:
        """The address of another machine that says it is this node, and is refused."""
        claim = self.claims.get(node)
        return claim.address if claim is not None and now_s - claim.at_s < CLAIM_S else None

    def _closing(self, index: int, *, is_empty: bool) -> dict[str, Any]:
        """The node's closing, if it is closed, and the time by which its jobs must have left."""
        closing = self.state.closed.get(index)
        if closing is None:
            return {"closed": None, "drain_by_s": None, "closed_by": None}
        closed = ("drained" if is_empty else "draining") if closing.drains else "cordoned"
        by = self._closed_by.get(self.state.nodes[index].name) or None
        return {"closed": closed, "drain_by_s": closing.by_s, "closed_by": by}
