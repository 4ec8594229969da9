"""The ledger of a cluster: a row of columns for each job, the nodes, and their GPUs.

Nothing is decided here. The functions of this package, one for each kind of event, define what an
event does to the ledger; the methods below are their steps.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from rota.errors import PlanError, TransitionError
from rota.model.allocation import Allocation, indices
from rota.model.cluster import Closing, FreeGpus, Node
from rota.model.commands import RULES, Command
from rota.model.events import BurstPlanned, Event, FillMeasured, JobCleaned
from rota.model.fallback import Fallback
from rota.model.job import MET_BY, Job, JobSpec, JobState, Suspension
from rota.model.naming import jobs_text
from rota.model.reason import Reason
from rota.model.state.told_notes import ToldNotes

if TYPE_CHECKING:
    from rota.model.measured.curves import ToldCurves
    from rota.model.measured.profiles import Profiles
    from rota.model.measured.reports import CoreReports, Curves, Reports, Truth

# As plain integers: columns are compared with them at every event.
PENDING, STARTING, RUNNING = int(JobState.PENDING), int(JobState.STARTING), int(JobState.RUNNING)
SUSPENDING, SUSPENDED = int(JobState.SUSPENDING), int(JobState.SUSPENDED)
MIGRATING, STOPPING, HELD = int(JobState.MIGRATING), int(JobState.STOPPING), int(JobState.HELD)
FIRST_FINAL = int(JobState.SUCCEEDED)
NO_REASON, WAIT_PRIORITY = int(Reason.NONE), int(Reason.WAIT_PRIORITY)
WAIT_GAPS = int(Reason.WAIT_GAPS)
NEEDLESS = "it is needed no longer: "


class Refusal(NamedTuple):
    """A refused batch: so many samples at once on a GPU, and the reason."""

    samples: int
    error: str


class Ledger:
    """Everything known of each job, by row, and of the cluster.

    Numeric columns are ``array.array`` ("d" for seconds, "q" for the rest); a time that has not
    come is -1. ``target`` is where the last plan wants a job (assumed), ``held`` what it holds
    (confirmed, or promised to a command on its way), ``home`` where a suspended job's state lies.
    ``target_cpus`` and ``held_cpus`` are the same of CPU cores, in thousandths and by row: a job
    that is in neither may use as many as it likes.
    ``speed`` is that of a running job relative to what its duration is for, ``lag_s`` by how much
    its work lags behind its service, ``lost_s`` the work that it lost and had to do again.
    ``skew`` is the share of the largest tensor in its model, -1 if nobody told. ``num_gpus`` is
    the size that a job has, or had last; ``extra_gpu_s`` its GPU-seconds beyond service times that,
    ``extra_overhead_gpu_s`` those beyond overheads times that. ``most_ranks`` tells how many its
    program's batches can be shared among, 0 if it has not told.
    ``restarts`` counts how often it went on, or started again, with GPUs given to it anew or with
    others. ``movable`` says whether a suspended job can go on on other GPUs, ``portable`` whether
    also on those of another node.

    ``changed`` lists rows of which something that a view shows has changed since the last
    decision of the policy, with repeats, whether or not it calls for a decision:
    ``decision_needed`` says that, and ``policy_needed`` if it is more than background jobs.
    ``refused`` has for rows, and types of GPUs, the fewest samples at once that a job has refused
    there: no larger batch is chosen on such GPUs. ``sweeps`` has the rows of the trials of each
    search, by its name; ``curves`` what trials have told: a driver's, or of live jobs
    ``told_curves``, those of the log. ``needless`` says of trials that their search stops why it
    does, by row. ``asked_ends`` has the exit codes of programs that were asked to end for the last
    suspension, and ended in another way.

    ``parking`` has by row the home to which a job's state is being sent, and ``parked_in_vain`` how
    often that has failed, by index of the node: the pause after such a failure, in ``backoff``,
    delays the next try only, and not the job itself; see :meth:`pauses`.

    ``leaves_s`` has the times by which nodes must go, by index.
    ``closed`` has the nodes that are closed to new jobs, by index, and
    ``unreachable`` those that are not heard, with the time at which they are lost, if there is one.
    Both are ``shut``: to policies, which see ``offered``, they are not there, nor are their GPUs in
    ``assumed`` and ``total_gpus``. ``staying`` are the rows that stay on such a node: no policy
    decides on them, and they are not ``active``.

    ``background`` has the rows that use what foreground jobs leave, and would be ``active`` if they
    were foreground jobs. Their GPUs are on a layer of their own: ``assumed_background`` and
    ``idle_background`` are for them what ``assumed`` and ``idle`` are for all others.
    ``fill_measured`` has by row the last that was measured of a background job, ``burst_planned``
    the last plan by layer that a job's program has told.
    """

    submit_s: array[float]
    service_s: array[float]
    since_s: array[float]
    changed_s: array[float]
    overhead_s: array[float]
    first_start_s: array[float]
    finish_s: array[float]
    duration_s: array[float]
    speed: array[float]
    lag_s: array[float]
    lost_s: array[float]
    skew: array[float]
    extra_gpu_s: array[float]
    extra_overhead_gpu_s: array[float]
    num_gpus: array[int]
    priority: array[int]
    state: array[int]
    reason: array[int]
    attempt: array[int]
    preemptions: array[int]
    migrations: array[int]
    suspension: array[int]
    movable: array[int]
    portable: array[int]
    resizable: array[int]
    most_ranks: array[int]
    restarts: array[int]

    def __init__(self, *, keep_stories: bool = True) -> None:
        for name, typecode in _TYPECODES.items():
            setattr(self, name, array(typecode))
        self.times_replaced = 0  # how often the numeric columns were replaced by other arrays
        self.spec: list[JobSpec] = []
        self.target: list[Allocation | None] = []
        self.held: list[Allocation | None] = []
        self.holding: dict[int, None] = {}  # the rows of held that are not None
        self.home: list[Allocation | None] = []
        self.stored: dict[int, None] = {}  # the rows of home that are not None
        self.outstanding: list[Command | None] = []
        self.marks: list[Any] = []
        self.progress: list[dict[str, Any] | None] = []

        self.ending: dict[int, tuple[int | None, str]] = {}  # exit code and message of ended jobs
        self.stop_outcome: dict[int, JobState] = {}
        # Row -> who suspended it until it is resumed; empty: nobody knows, or it is idle.
        self.held_back: dict[int, str] = {}
        self.idle_jobs = set[int]()  # those of held_back that a call of an operation resumes
        self.displaced: dict[int, tuple[int, ...]] = {}  # row -> who got its GPUs, if told
        # By row, the rows that a job waits for, and how each must end; and who waits for a row.
        self.waits_for: dict[int, dict[int, list[str]]] = {}
        self.dependents: dict[int, list[int]] = {}
        self.unmeetable: dict[int, str] = {}  # why a job can never start, by row: it is to end
        self.target_cpus: dict[int, int] = {}
        self.held_cpus: dict[int, int] = {}
        self._row_of: dict[str, int] = {}  # as far as has been asked for
        self.backoff: dict[int, float] = {}
        self.retried: dict[int, int] = {}  # how often a job has started anew after it had failed

        self.cleaned: dict[int, JobCleaned] = {}  # by row, the last time

        self.nodes: list[Node] = []
        self.offered: list[Node] = []  # the nodes as policies see them
        self.closed: dict[int, Closing] = {}
        self.leaves_s: dict[int, float] = {}
        self.unreachable: dict[int, float | None] = {}
        self.node_index: dict[str, int] = {}
        self.assumed = FreeGpus()  # free when the last plan has been carried out
        self.idle = FreeGpus()  # free right now
        self.assumed_background, self.idle_background = FreeGpus(), FreeGpus()
        # Free after the decision that is about to be applied, if its maker knows; ours to keep.
        self.foreseen: FreeGpus | None = None
        self.total_gpus = 0
        self.is_live = False  # True if agents run on its nodes
        # True if any of its nodes has, or had, or a simulated job can't release what it has.
        self.has_device_memory = False
        self.num_reached = 0  # of nodes at which those of others find processes
        self.has_typed_jobs = False  # that asked for types of GPUs
        self.has_background_jobs = False  # now, or earlier
        self.priorities: set[int] = set()  # those that any job has had
        self.completed_gpu_s: array[float] = array("d")  # of jobs that ended by themselves

        self.active: dict[int, None] = {}  # rows that the policy decides on
        self.background: dict[int, None] = {}  # rows that its stage for background jobs decides on
        self.fill_measured: dict[int, FillMeasured] = {}
        self.staying: dict[int, None] = {}
        self.resizing: dict[int, Allocation] = {}  # row -> what it had when its resize was sent
        self.parking: dict[int, Allocation] = {}
        self.parked_in_vain: dict[int, dict[int, int]] = {}
        self.unsettled: dict[int, None] = {}  # rows whose target is not what they hold
        self.changed: list[int] = []
        self.decision_needed = False
        self.policy_needed = False
        self.keeps_stories = keep_stories
        self._stories: list[list[tuple[float, str]]] = []
        self._mates: dict[int, list[int]] = {}  # with whom jobs share, as their stories tell

        self.refused: dict[int, dict[str, Refusal]] = {}
        self.burst_planned: dict[int, BurstPlanned] = {}
        self.sweeps: dict[str, list[int]] = {}
        self.curves: Curves | None = None
        self.told_curves: ToldCurves | None = None
        self.needless: dict[int, str] = {}
        self.asked_ends: dict[int, int] = {}

        self.plan: object = None  # the plan that the last decision applied, if made in this process
        self.policy = ""
        self.policy_mark: Any = None
        self.stage_marks: dict[str, dict[str, Any]] = {}  # of stages beside the policy, by stage
        self.wake_at_s: float | None = None
        self.policy_wake_at_s: float | None = None  # without the stage for background jobs
        self.decision_seq = 0
        self.next_command_id = 1
        self.epoch = 0
        self.events = 0
        self.observers: list[Callable[[Event], None]] = []  # each is told of every event applied
        self.on_line: Callable[[int, str], None] | None = None  # told of each new line of a story
        self.fallback = Fallback()  # how the last decision was taken
        self.profiles: Profiles | None = None  # made at the first job with a program
        # What jobs tell of their training: a driver's, or of live jobs what the log has of it.
        self.reports: Reports | None = None
        self.truth: Truth | None = None  # in a simulation
        self.cores: CoreReports | None = None  # in a simulation where step times depend on cores
        self.notes = ToldNotes()

    def copy(self) -> Self:
        """An independent copy of this state, on which events and decisions can be tried.

        Nothing done to the copy changes this state. The copy keeps no stories, has no observers,
        and no plan that an index of a policy could be for.
        """
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, array | list | dict | set | FreeGpus):
                setattr(twin, name, copy.copy(value))
        twin.refused = {row: dict(refusals) for row, refusals in self.refused.items()}
        twin.parked_in_vain = {row: dict(counts) for row, counts in self.parked_in_vain.items()}
        twin.sweeps = {name: list(rows) for name, rows in self.sweeps.items()}
        twin.stage_marks = {stage: dict(marks) for stage, marks in self.stage_marks.items()}
        twin.dependents = {row: list(rows) for row, rows in self.dependents.items()}
        twin.waits_for = {
            row: {other: list(whens) for other, whens in others.items()}
            for row, others in self.waits_for.items()
        }
        twin.notes = self.notes.copy()
        if self.told_curves is not None:
            twin.told_curves = self.told_curves.copy()
            if self.curves is self.told_curves:
                twin.curves = twin.told_curves
        twin.profiles, twin.reports = _pickled(self.profiles), _pickled(self.reports)
        twin.keeps_stories, twin._stories, twin._mates = False, [], {}
        twin.observers, twin.on_line, twin.plan, twin.foreseen = [], None, None, None
        return twin

    def only(self, rows: Iterable[int]) -> Self:
        """The numbers and specs of these rows alone, for figures: nothing can be applied to it."""
        twin, chosen = copy.copy(self), list(rows)
        for name, typecode in _TYPECODES.items():
            column = getattr(self, name)
            setattr(twin, name, array(typecode, [column[row] for row in chosen]))
        twin.spec = [self.spec[row] for row in chosen]
        numbered = enumerate(chosen)
        twin.retried = {new: self.retried[row] for new, row in numbered if row in self.retried}
        return twin

    def append(self, spec: JobSpec) -> int:
        """Add a job that has just arrived. Returns its row."""
        row = len(self.spec)
        try:
            self._append_numbers(spec)
        except BufferError:  # a numpy view of the column exists: leave it the old array
            for name, typecode in _TYPECODES.items():
                setattr(self, name, array(typecode, getattr(self, name)[:row]))
            self.times_replaced += 1
            self._append_numbers(spec)
        self.spec.append(spec)
        self.target.append(None)
        self.held.append(None)
        self.home.append(None)
        self.outstanding.append(None)
        self.marks.append(None)
        self.progress.append(None)
        return row

    def begin_story(self, at_s: float) -> None:
        """Begin the story of the job that was appended last."""
        if self.keeps_stories:
            self._stories.append([])
            self.tell(len(self._stories) - 1, at_s, "submitted")

    def _append_numbers(self, spec: JobSpec) -> None:
        duration = -1.0 if spec.duration_s is None else spec.duration_s
        self.submit_s.append(spec.submit_s)
        self.service_s.append(0.0)
        self.since_s.append(-1.0)
        self.changed_s.append(spec.submit_s)
        self.overhead_s.append(0.0)
        self.first_start_s.append(-1.0)
        self.finish_s.append(-1.0)
        self.duration_s.append(duration)
        self.speed.append(1.0)
        self.lag_s.append(0.0)
        self.lost_s.append(0.0)
        self.skew.append(-1.0 if spec.skew is None else spec.skew)
        self.extra_gpu_s.append(0.0)
        self.extra_overhead_gpu_s.append(0.0)
        self.num_gpus.append(spec.num_gpus)
        self.priority.append(spec.priority)
        self.state.append(PENDING)
        waits = spec.share is not None and spec.is_background
        self.reason.append(WAIT_GAPS if waits else WAIT_PRIORITY)
        self.attempt.append(0)
        self.preemptions.append(0)
        self.migrations.append(0)
        self.restarts.append(0)
        self.suspension.append(spec.suspension)
        self.has_device_memory = self.has_device_memory or spec.suspension == Suspension.PROCESS
        self.movable.append(1)
        self.portable.append(1)
        # A live job is resizable once its program says so, a simulated one from the start.
        self.most_ranks.append(0)
        elastic = spec.elastic
        self.resizable.append(
            1 if elastic is not None and not elastic.by_restart and spec.simulated else 0
        )

    def service(self, row: int, now_s: float) -> float:
        """Seconds for which the job has held all its GPUs and worked, up to ``now_s``."""
        since = self.since_s[row]
        return self.service_s[row] + (now_s - since if since >= 0 else 0.0)

    def work(self, row: int, now_s: float) -> float:
        """Seconds of its duration that the job has done: service at its speeds, less what it lost.

        Equal to :meth:`service` for a job that always ran at speed 1 and lost nothing.
        """
        since = self.since_s[row]
        done_s = self.service_s[row] - self.lag_s[row]
        return done_s + ((now_s - since) * self.speed[row] if since >= 0 else 0.0)

    # -- reading -------------------------------------------------------------------------------

    def job(self, row: int, now_s: float) -> Job:
        """A snapshot of everything known about one job."""
        exit_code, message = self.ending.get(row, (None, ""))
        held = self.held[row]
        first, finish = self.first_start_s[row], self.finish_s[row]
        return Job(
            spec=self.spec[row],
            state=JobState(self.state[row]),
            reason=self.reason[row],
            attempt=self.attempt[row],
            service_s=self.service(row, now_s),
            overhead_s=self.overhead_s[row],
            first_start_s=first if first >= 0 else None,
            finish_s=finish if finish >= 0 else None,
            preemptions=self.preemptions[row],
            migrations=self.migrations[row],
            suspension=Suspension(self.suspension[row]),
            exit_code=exit_code,
            message=message,
            gpus=tuple((self.nodes[n].name, gpus) for n, gpus in held.gpus()) if held else (),
            progress=self.progress[row] or {},
        )

    def validate(self) -> None:
        """Check every invariant that the columns must keep. Raises PlanError naming the breach."""
        free_of = {
            (what, background): FreeGpus()
            for what in ("target", "held")
            for background in (False, True)
        }
        for index, node in enumerate(self.nodes):
            for free in free_of.values():
                free.set_mask(index, (1 << node.num_gpus) - 1 if node.alive else 0)
        for row in range(len(self.spec)):
            for what, allocation in (("target", self.target[row]), ("held", self.held[row])):
                if allocation is None:
                    continue
                if allocation.background != self.spec[row].is_background:
                    raise PlanError(f"{what} of job {self.job_name(row)} is on the wrong layer")
                free = free_of[what, allocation.background]
                if what == "target" and allocation.num_gpus not in self.sizes(row):
                    raise PlanError(f"{what} of job {self.job_name(row)} is not its whole gang")
                if not free.fits(allocation):
                    raise PlanError(f"{what} of job {self.job_name(row)} overlaps another's GPUs")
                free.take(allocation)
            command, state = self.outstanding[row], self.state[row]
            if command is not None and state not in (RULES[type(command)].becoming, STOPPING):
                raise PlanError(
                    f"job {self.job_name(row)} is {JobState(state).name} with a "
                    f"{type(command).__name__} on its way"
                )
        for index in self.shut:
            free_of["target", False].set_mask(index, 0)
            free_of["target", True].set_mask(index, 0)
        counted = {
            ("target", False): self.assumed,
            ("held", False): self.idle,
            ("target", True): self.assumed_background,
            ("held", True): self.idle_background,
        }
        if any(free.masks != counted[each].masks for each, free in free_of.items()):
            raise PlanError("the free GPUs are not those that no job has")
        for rows, places in ((self.holding, self.held), (self.stored, self.home)):
            if rows.keys() != {row for row, place in enumerate(places) if place is not None}:
                raise PlanError("the jobs that are somewhere are not those of the ledger's index")

    @property
    def shut(self) -> set[int]:
        """The nodes that take no new job, by index."""
        return self.closed.keys() | self.unreachable.keys()

    def is_open(self, row: int) -> bool:
        """True if a policy, or its stage for background jobs, decides on the job, or it stays."""
        return row in self.active or row in self.staying or row in self.background

    def placed_rows(self) -> set[int]:
        """The rows of jobs that hold GPUs or have their state somewhere, or are to hold some."""
        return {*self.holding, *self.stored, *self.unsettled}

    def open_rows(self) -> set[int]:
        """The rows that are active, stay on a closed node or are of background jobs."""
        return {*self.active, *self.staying, *self.background}

    def sizes(self, row: int) -> tuple[int, ...]:
        """Numbers of GPUs that the job can be given now, rising; one number for a fixed gang.

        A suspended job continues with as many as it had, unless it changes its size by a restart
        and can leave its GPUs. A running one can grow or shrink if its program can, as far as its
        batches can be shared out, unless its GPUs are about to change; it can shrink also before it
        has said whether its program can.
        """
        elastic = self.spec[row].elastic
        if elastic is None:
            return (self.num_gpus[row],)
        held, home = self.held[row], self.home[row]
        if home is not None and not (elastic.by_restart and self.movable[row]):
            return (home.num_gpus,)
        if elastic.by_restart:
            return elastic.sizes
        if held is None:
            return elastic.sizes
        target = self.target[row]
        if self.has_yet_to_say(row) and row not in self.backoff:
            smaller = tuple(size for size in elastic.sizes if size <= held.num_gpus)
            return smaller or (held.num_gpus,)
        if target is not None and self.changes_gpus(row):
            return (target.num_gpus,)  # already on its way there
        if not self.resizable[row] or self.since_s[row] < 0:
            return (held.num_gpus,)
        most = self.most_ranks[row]
        if 0 < most < elastic.sizes[-1]:
            return tuple(size for size in elastic.sizes if size <= most) or (held.num_gpus,)
        return elastic.sizes

    def changes_gpus(self, row: int) -> bool:
        """True if a job that resizes as it runs is on its way to the GPUs of its target.

        No other size can be chosen until it has them, and a job that is suspended meanwhile
        continues with no fewer. False while a job begins that has yet to say if it can shrink, and
        while a command changes nothing but its batch or its CPU cores: what is wanted next follows
        these.
        """
        elastic, held, target = self.spec[row].elastic, self.held[row], self.target[row]
        if elastic is None or elastic.by_restart or held is None or target is None:
            return False
        if row in self.backoff or row in self.resizing or self.home[row] is not None:
            return True
        return held.parts != target.parts and not self.has_yet_to_say(row)

    def has_yet_to_say(self, row: int) -> bool:
        """True if nobody can know yet if a live job's program can become larger or smaller.

        It says so before it reports for the first time, if it can. A job with no range of GPUs has
        nothing to say.
        """
        spec, elastic = self.spec[row], self.spec[row].elastic
        if elastic is None or elastic.by_restart or spec.simulated or self.resizable[row]:
            return False
        return self.progress[row] is None and self.state[row] in (STARTING, RUNNING)

    def can_go_on(self, row: int, place: Allocation) -> bool:
        """True if a job that has been suspended can continue on these GPUs, or will once it is.

        On a live cluster a job with processes on several nodes continues on the very same GPUs, and
        one whose state can't be sent continues on its node. Simulated jobs go anywhere.
        """
        before = self.home[row] or self.held[row]
        if before is None or not self.is_live or before.parts == place.parts:
            return True
        if not self.movable[row] or max(len(before.parts), len(place.parts)) > 1:
            return False
        return bool(self.portable[row]) or before.nodes() == place.nodes()

    def stay(self, row: int) -> None:
        """Note that a simulated job, once started, can go on on its GPUs alone."""
        self.movable[row] = self.portable[row] = 0
        self.changed.append(row)

    def has_processes(self, row: int) -> bool:
        """True if the job's attempt may have living processes."""
        started = self.attempt[row] > 0 and self.state[row] not in (PENDING, HELD)
        return started and self.state[row] < FIRST_FINAL

    def places(self, parts: Iterable[tuple[int, int]]) -> str:
        """``node-0:0,1 node-1:3`` for (node index, mask of GPUs) pairs; without GPUs, the node."""
        return " ".join(
            self.nodes[node].name + (f":{','.join(map(str, indices(mask)))}" if mask else "")
            for node, mask in parts
        )

    def ids(self, rows: Iterable[int]) -> list[str]:
        """The ids of these jobs."""
        return [self.spec[row].job_id for row in rows]

    def sharers(self, row: int) -> list[int]:
        """The rows of the other jobs that hold some of the GPUs that the job holds."""
        held = self.held[row]
        if held is None or not held.shared:
            return []
        beside = (r for r in sorted(self.holding) if r != row and _overlap(self.held[r], held))
        return [r for r in beside if r in self.active or r in self.unsettled or r in self.staying]

    def story(self, row: int) -> list[tuple[float, str]]:
        """A job's history as (seconds, sentence); short if stories are not kept."""
        if self.keeps_stories:
            return list(self._stories[row])
        lines = [(self.submit_s[row], "submitted")]
        if self.first_start_s[row] >= 0:
            lines.append((self.first_start_s[row], "started"))
        if self.finish_s[row] >= 0:
            lines.append((self.finish_s[row], JobState(self.state[row]).name.lower()))
        return lines

    def job_name(self, row: int) -> str:
        return self.spec[row].job_id if 0 <= row < len(self.spec) else f"of row {row}"

    # -- steps of events -----------------------------------------------------------------------

    def assume(self, allocations: dict[int, Allocation | None]) -> None:
        """Make these the targets of their jobs."""
        target, held = self.target, self.held
        if self.foreseen is None:
            for row in allocations:
                old = target[row]
                if old is not None and not old.background:
                    self.assumed.give(old)
            for allocation in allocations.values():
                if allocation is not None and not allocation.background:
                    self.assumed.take(allocation)
        else:
            self.assumed, self.foreseen = self.foreseen, None
        if self.has_background_jobs:
            self._assume_background(allocations)
        for row, allocation in allocations.items():
            if allocation is not None:
                self.reason[row] = NO_REASON
            elif target[row] is not None and held[row] is not None:
                self.preemptions[row] += 1
            target[row] = allocation
            if allocation is None:
                self.target_cpus.pop(row, None)
            elif held[row] is not None:
                self.share(row)
            if (held[row] is None) != (allocation is None):
                self.unsettled[row] = None
            else:
                self.settle(row)

    def _assume_background(self, allocations: dict[int, Allocation | None]) -> None:
        for row in allocations:
            old = self.target[row]
            if old is not None and old.background:
                self.assumed_background.give(old)
        for allocation in allocations.values():
            if allocation is not None and allocation.background:
                self.assumed_background.take(allocation)

    def share(self, row: int) -> None:
        """Share the job's GPUs, or stop sharing them, as its target says, if that is possible.

        The processes of the job are not involved. To stop sharing, the other jobs must be gone.
        """
        held, target = self.held[row], self.target[row]
        if held is None or target is None or held.parts != target.parts:
            return
        if held.shared != target.shared:
            same = target.with_batch(held.batch)
            self.idle.give(held)
            self.held[row] = same if self.idle.take(same) else held
            if self.held[row] is held:
                self.idle.take(held)

    def tell_sharing(self, at_s: float, reasons: dict[int, int]) -> None:
        """Record in stories with whom jobs share their GPUs from now on, where that changes.

        A turn that ends and another that begins with the same jobs change nothing.
        """
        target, known = self.target, self._mates
        placed = ((row, target[row]) for row in {*self.holding, *self.unsettled})
        shared = (row for row, place in placed if place is not None and place.shared)
        sharing = sorted(row for row in shared if row in self.active)
        for row in sorted({*sharing, *known}):
            mine = target[row]
            if mine is None:
                undone = reasons.get(row) == Reason.PACK_UNDONE
                if undone:
                    self.tell(row, at_s, "shares its GPU no longer")
                if undone or row not in self.active:
                    known.pop(row, None)
                continue
            mates = [r for r in sharing if r != row and _overlap(target[r], mine)]
            if mates != known.get(row, []):
                self.tell(row, at_s, self._sharing_line(mine, mates))
            if mates:
                known[row] = mates
            else:
                known.pop(row, None)

    def _sharing_line(self, allocation: Allocation, mates: list[int]) -> str:
        where = self.places(allocation.parts)
        return (
            f"shares {where} with {jobs_text(self.ids(mates))}" if mates else f"has {where} alone"
        )

    def size(self, row: int, num_gpus: int) -> None:
        """Set the job's number of GPUs; its GPU-seconds so far keep their value."""
        before = self.num_gpus[row]
        if num_gpus != before:
            self.extra_gpu_s[row] += self.service_s[row] * (before - num_gpus)
            self.extra_overhead_gpu_s[row] += self.overhead_s[row] * (before - num_gpus)
            self.num_gpus[row] = num_gpus

    def enter(self, row: int, state: int, at_s: float) -> None:
        self.state[row] = state
        self.changed_s[row] = at_s

    def end(
        self, row: int, at_s: float, outcome: JobState, exit_code: int | None, message: str
    ) -> None:
        """End the job; an outcome CANCELLED of a trial that its search stopped says so."""
        if outcome == JobState.CANCELLED and row in self.needless:
            message = NEEDLESS + self.needless[row]
        target = self.target[row]
        if target is not None:
            (self.assumed_background if target.background else self.assumed).give(target)
        self.target[row] = self.home[row] = None
        if self.stored:
            self.stored.pop(row, None)
        if self.target_cpus:
            self.target_cpus.pop(row, None)
        if self.stage_marks:
            for marks in self.stage_marks.values():
                marks.pop(str(row), None)
        self.release(row)
        self.outstanding[row] = self.marks[row] = None
        self.active.pop(row, None)
        self.staying.pop(row, None)
        self.changed.append(row)
        self.decision_needed = True
        if not self.has_background_jobs:
            self.policy_needed = True
        else:
            self.policy_needed |= not self.spec[row].is_background
            self.background.pop(row, None)
            self.fill_measured.pop(row, None)
        if self.reason[row] != NO_REASON:
            self.reason[row] = NO_REASON
        self.finish_s[row] = at_s
        if self.unsettled:
            self.unsettled.pop(row, None)
        if self.asked_ends:
            self.asked_ends.pop(row, None)
        if self.stop_outcome:
            self.stop_outcome.pop(row, None)
        if self.refused:
            self.refused.pop(row, None)
        if self.burst_planned:
            self.burst_planned.pop(row, None)
        if self.resizing:
            self.resizing.pop(row, None)
        self.forget_parking(row)
        if self.held_back:
            self.held_back.pop(row, None)
            self.idle_jobs.discard(row)
        if self.backoff:
            self.backoff.pop(row, None)
        if self.displaced:
            self.displaced.pop(row, None)
        if exit_code is not None or message:
            self.ending[row] = (exit_code, message)
        if self.waits_for:
            self.waits_for.pop(row, None)
            self.unmeetable.pop(row, None)
        self.state[row] = outcome
        self.changed_s[row] = at_s
        if self.dependents:
            for other in self.dependents.pop(row, ()):
                self.look_at_dependencies(other, at_s)
        self.notes.end(row, keep_warnings=self.spec[row].simulated)
        if self.keeps_stories:
            self.tell(row, at_s, outcome.name.lower() + (f": {message}" if message else ""))

    def row_of(self, job_id: str) -> int | None:
        """The row of the job with this id; None if no job has it."""
        for row in range(len(self._row_of), len(self.spec)):
            self._row_of[self.spec[row].job_id] = row
        return self._row_of.get(job_id)

    def look_at_dependencies(self, row: int, at_s: float) -> None:
        """Let a job that waits for others go on once all have ended as they should.

        If one has ended otherwise, the job can never start: whoever drives the cluster ends it.
        """
        waits_for = self.waits_for.get(row, {})
        for other in [other for other in waits_for if self.state[other] >= FIRST_FINAL]:
            outcome = JobState(self.state[other])
            for when in waits_for.pop(other):
                if outcome not in MET_BY[when] and row not in self.unmeetable:
                    self.unmeetable[row] = unmet_text(self.spec[other], outcome, when)
        if waits_for or row in self.unmeetable or row not in self.waits_for:
            return
        del self.waits_for[row]
        self.tell(row, at_s, "all jobs that it depends on have ended")
        if row not in self.held_back:
            self.enter_open(row)

    def pause_clock(self, row: int, at_s: float) -> None:
        since = self.since_s[row]
        if since >= 0:
            self.ran(row, at_s - since if at_s > since else 0.0)
            self.since_s[row] = -1.0
        elif self.state[row] == SUSPENDING:  # the job continued until its boundary, or ended
            self.ran(row, max(0.0, at_s - self.changed_s[row]))

    def ran(self, row: int, seconds: float) -> None:
        self.service_s[row] += seconds
        if self.speed[row] != 1.0:
            self.lag_s[row] += seconds * (1.0 - self.speed[row])

    def release(self, row: int) -> None:
        held = self.held[row]
        if held is not None:
            (self.idle_background if held.background else self.idle).give(held)
            self.held[row] = None
            del self.holding[row]
            if self.held_cpus:
                self.held_cpus.pop(row, None)
            if held.shared:
                self._leave_to_others()

    def _leave_to_others(self) -> None:
        """Jobs that shared their GPUs and are to have them alone stop sharing where they can."""
        for row in list(self.unsettled):
            self.share(row)
            if self.held[row] is self.target[row]:
                self.settle(row)

    def forget_parking(self, row: int) -> None:
        """The job's state is on its way nowhere, and earlier tries say nothing any more."""
        if self.parking:
            self.parking.pop(row, None)
        if self.parked_in_vain and self.parked_in_vain.pop(row, None) is not None:
            self.backoff.pop(row, None)

    def pauses(self, row: int) -> bool:
        """True if nothing is done for the job yet, because the last command for it has failed."""
        return row in self.backoff and row not in self.parked_in_vain

    def untarget(self, row: int) -> None:
        old = self.target[row]
        if old is not None:
            (self.assumed_background if old.background else self.assumed).give(old)
            self.target[row] = None
            self.target_cpus.pop(row, None)
        self.settle(row)

    def settle(self, row: int) -> None:
        """Keep ``unsettled`` to the rows for which a command is needed or on its way."""
        held, target = self.held[row], self.target[row]
        settled = held is target or (held is not None and held == target)
        if settled and (self.target_cpus or self.held_cpus):
            settled = self.target_cpus.get(row) == self.held_cpus.get(row)
        if settled and self.outstanding[row] is None and self.state[row] != STOPPING:
            self.unsettled.pop(row, None)
        else:
            self.unsettled[row] = None

    def leave_active(self, row: int) -> None:
        self.untarget(row)
        self.active.pop(row, None)
        self.staying.pop(row, None)
        self.background.pop(row, None)
        self.note_change(row)

    def enter_open(self, row: int) -> None:
        """Let the policy, or its stage for background jobs, decide on the job from now on."""
        background = self.spec[row].is_background
        (self.background if background else self.active)[row] = None
        self.reason[row] = WAIT_GAPS if background else WAIT_PRIORITY
        self.note_change(row)

    def wait(self, row: int) -> None:
        """Give the reason for which a job waits until the next decision tells another one."""
        self.reason[row] = WAIT_GAPS if self.spec[row].is_background else WAIT_PRIORITY

    def note_change(self, row: int) -> None:
        self.changed.append(row)
        self.decision_needed = True
        if not (self.has_background_jobs and self.spec[row].is_background):
            self.policy_needed = True

    def tell(self, row: int, at_s: float, line: str) -> None:
        if self.keeps_stories:
            self._stories[row].append((at_s, line))
            if self.on_line is not None:
                self.on_line(row, line)

    def refuse(self, row: int, verb: str) -> NoReturn:
        story = "; ".join(f"{at_s:.3f} s {line}" for at_s, line in self.story(row))
        command = type(self.outstanding[row]).__name__ if self.outstanding[row] else "none"
        raise TransitionError(
            f"job {self.job_name(row)} can't be {verb} while it is "
            f"{JobState(self.state[row]).name} (command on its way: {command}). Its story: {story}"
        )


def unmet_text(spec: JobSpec, outcome: JobState, when: str) -> str:
    """Why a job that depends on another one can never start."""
    name = f" ({spec.name})" if spec.name else ""
    wanted = {"succeeded": "success", "failed": "failure"}[when]
    return f"job {spec.job_id}{name} ended as {outcome.name}, and this job waits for its {wanted}"


# Numeric column -> the typecode of its array.
_TYPECODES = {
    name: {"array[float]": "d", "array[int]": "q"}[kind]
    for name, kind in Ledger.__annotations__.items()
}


def _overlap(one: Allocation | None, other: Allocation | None) -> bool:
    return one is not None and other is not None and one.overlaps(other)


def _pickled(value: Any) -> Any:
    """A copy of jobs' reports: many small objects, which pickle copies fastest."""
    import pickle  # here: simulations do not need it

    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - our own bytes
