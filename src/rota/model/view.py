"""A policy's view of the cluster, and a cheap what-if copy of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rota.errors import PlanError
from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus, Node
from rota.model.events import BurstPlanned, FillMeasured, new
from rota.model.job import JobSpec
from rota.model.measured.core_times import core_times, telling
from rota.model.measured.pace import Pace, pace_of
from rota.model.measured.phase_times import TRAIN
from rota.model.measured.usage import Usage, fit_together, usage_of
from rota.model.notes import Notes
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state.state import ClusterState

if TYPE_CHECKING:
    import numpy as np

    from rota.model.measured.profile import Placement, Profile
    from rota.model.measured.reports import (
        BatchRange,
        CoreTime,
        GradientNoise,
        Learned,
        StepPoint,
        Truth,
    )


def identity(policy: Any) -> str:
    """The policy's name and settings: its memory is valid only for the same identity."""
    return policy.identity or type(policy).__qualname__


class View:
    """The cluster at ``now_s``, not to be changed: one row per job, in (arrival, id) order.

    All that a policy may read. Columns (``view.num_gpus[row]``) are the state's own arrays:
    :class:`rota.model.state.ledger.Ledger` says what they mean. ``active`` holds the rows that
    the policy decides on; ``changed`` those that changed since the last decision (with repeats);
    ``plan`` the plan that the last decision applied, if it was made in this process;
    ``target_cpus`` and ``held_cpus`` the CPU cores of jobs, in thousandths, as the plan wants them
    and as they are; ``stage_marks`` what stages beside the policy remember, by stage;
    ``priorities`` every priority that a job has had so far; ``completed_gpu_s`` the GPU-seconds of
    each job that ended by itself, in order of their ends, only ever appended to; ``free_gpus`` how
    many GPUs the plan so far gives to nobody. A node that is cordoned or drained is not alive in
    ``nodes``, and jobs that stay on it are not active but in ``staying``, which is for stages of
    CPU cores. ``leaves_s`` has the times by which nodes must go, by index. One that would go before
    the next turn of a job is cordoned by then. Background jobs are not active either but in
    ``background``, for the stage that places them; the GPUs that they have are free to the policy.
    """

    __slots__ = (
        "_last_what_if",
        "_needs_duration",
        "_policy",
        "_state",
        "_times_replaced",
        "active",
        "background",
        "changed",
        "completed_gpu_s",
        "decision_seq",
        "finish_s",
        "first_start_s",
        "free_gpus",
        "held",
        "held_cpus",
        "home",
        "is_live",
        "leaves_s",
        "marks",
        "movable",
        "nodes",
        "now_s",
        "num_gpus",
        "overhead_s",
        "plan",
        "policy_mark",
        "portable",
        "preemptions",
        "priorities",
        "priority",
        "progress",
        "reason",
        "service_s",
        "since_s",
        "skew",
        "spec",
        "stage_marks",
        "staying",
        "submit_s",
        "suspension",
        "target",
        "target_cpus",
        "total_gpus",
    )

    def __init__(self, state: ClusterState, now_s: float, policy: Any) -> None:
        self._state = state
        self._policy = "" if policy is None else identity(policy)
        self._needs_duration = policy is not None and policy.needs_duration
        self._times_replaced = state.times_replaced
        self.active = state.active
        self.background = state.background
        self.changed = state.changed
        self.completed_gpu_s: array[float] = state.completed_gpu_s
        self.finish_s: array[float] = state.finish_s
        self.first_start_s: array[float] = state.first_start_s
        self.held = state.held
        self.held_cpus: Mapping[int, int] = state.held_cpus
        self.home = state.home
        self.leaves_s: Mapping[int, float] = state.leaves_s
        self.movable: array[int] = state.movable
        self.nodes: list[Node] = state.offered
        self.num_gpus: array[int] = state.num_gpus
        self.overhead_s: array[float] = state.overhead_s
        self.portable: array[int] = state.portable
        self.preemptions: array[int] = state.preemptions
        self.priorities = state.priorities
        self.priority: array[int] = state.priority
        self.progress = state.progress
        self.reason: array[int] = state.reason
        self.service_s: array[float] = state.service_s
        self.since_s: array[float] = state.since_s
        self.skew: array[float] = state.skew
        self.spec: Sequence[JobSpec] = state.spec
        self.staying = state.staying
        self.submit_s: array[float] = state.submit_s
        self.suspension: array[int] = state.suspension
        self.target = state.target
        self.target_cpus: Mapping[int, int] = state.target_cpus
        self.now_s = now_s
        self.marks: Any = None
        self.renew(now_s)

    def renew(self, now_s: float) -> bool:
        """Show the present state. False if that takes a new view, because columns were replaced."""
        state = self._state
        self.now_s = now_s
        self.plan = state.plan
        self.decision_seq = state.decision_seq
        self.is_live = state.is_live
        self.total_gpus = state.total_gpus
        self.free_gpus = state.assumed.count
        self._last_what_if: WhatIf | None = None
        if state.policy == self._policy:
            self.marks = state.marks
            self.policy_mark: Any = state.policy_mark
            self.stage_marks: Mapping[str, Mapping[str, Any]] = state.stage_marks
        else:
            self.marks = _NoMarks()
            self.policy_mark, self.stage_marks = None, {}
        return self._times_replaced == state.times_replaced

    def work_s(self, row: int) -> float:
        """Seconds of its duration that a simulated job has done, which its steps reveal."""
        return self._state.work(row, self.now_s)

    def user(self, row: int) -> str:
        """The user who submitted the job; "" if unknown."""
        return self._state.spec[row].user

    def queue(self, row: int) -> str:
        """The queue that the job was submitted to; empty without one."""
        return self._state.spec[row].vc

    def attained_s(self, row: int) -> float:
        """Seconds for which the job has run so far."""
        return self._state.service(row, self.now_s)

    def attained_gpu_s(self, row: int) -> float:
        """Attained service: GPUs times seconds run so far (Tiresias, section 3.2)."""
        return self.attained_s(row) * self.num_gpus[row] + self._state.extra_gpu_s[row]

    def sizes(self, row: int) -> tuple[int, ...]:
        """Numbers of GPUs that the job can be given now, rising; see :meth:`ClusterState.sizes`."""
        return self._state.sizes(row)

    def changes_gpus(self, row: int) -> bool:
        """True if the job's size is settled until it has the GPUs that it is on its way to.

        See :meth:`ClusterState.changes_gpus`.
        """
        return self._state.changes_gpus(row)

    def pace(self, row: int) -> Pace | None:
        """An elastic job's progress at its present size; None if it does not report it."""
        return pace_of(self._state, row, self.now_s)

    def usage(self, row: int) -> Usage:
        """The job's resource use while it has its GPUs to itself, as far as it is known."""
        return usage_of(self._state, row)

    def signature(self, row: int) -> str:
        """The signature that jobs of the same behaviour share; "" if nothing is known of the job.

        Of a live job it is certain once the job has reported its first step; until then it is that
        of the last job with the same command.
        """
        model, profiles = self._state.spec[row].model, self._state.profiles
        return model if model or profiles is None else profiles.signature(self._state, row)

    def own_profile(self, row: int) -> Profile | None:
        """Measurements of the job itself, not to be changed; None for a simulated job."""
        profiles = self._state.profiles
        return None if profiles is None else profiles.of_job(row)

    def profile(self, row: int) -> Profile | None:
        """Measurements of jobs of its kind, not to be changed; None for a simulated job."""
        profiles = self._state.profiles
        return None if profiles is None else profiles.of_signature(self._state, row)

    def phase(self, row: int) -> str:
        """The phase that a job is in: ``train`` or ``evaluate``.

        A program tells it by a session; of another one it is detected from its use of devices and
        CPU, where the phase that it began in counts as training.
        """
        if self._state.cores is not None:
            return self._state.cores.phase(row)
        profiles = self._state.profiles
        return TRAIN if profiles is None else profiles.phase(row)

    def core_times(self, row: int, place: Allocation, phase: str) -> tuple[CoreTime, ...]:
        """Step times by CPU cores in a phase, in an order of their own; empty if unknown.

        They are those of its kind, and of the job itself, on as many GPUs and nodes as ``place``
        has and with its batch; of the same cores the mean. A job whose own times can't be those of
        its kind has its own alone.
        """
        if self._state.cores is not None:
            return self._state.cores.core_times(row, place, phase, self.now_s)
        known = telling(self.profile(row), self.own_profile(row), place, phase)
        return core_times(known, place, phase)

    def step_s(self, row: int, placement: Placement) -> float | None:
        """Mean seconds per step of the job in such a placement, else of its kind; None: unknown."""
        for known in (self.own_profile(row), self.profile(row)):
            seconds = known.step_s(placement) if known is not None else None
            if seconds is not None:
                return seconds
        return None

    def pair(self, row: int, other: int) -> tuple[float, float] | None:
        """The speeds of two jobs that share their GPUs, as parts of those alone.

        They are those measured of jobs of their kinds: on the GPU type that ``other`` is on, or was
        last; if not measured there, where that was done most often. None unless measured for both.
        """
        speeds = []
        place = self.target[other] or self.home[other]
        gpu_type = self._state.nodes[place.parts[0][0]].gpu_type if place is not None else ""
        for one, beside in ((row, other), (other, row)):
            known = self.profile(one)
            found = list(known.beside(self.signature(beside))) if known is not None else []
            if not found:
                return None
            speeds.append(max(found, key=lambda each: (each[2] == gpu_type, each[1]))[0])
        return speeds[0], speeds[1]

    # -- what jobs tell of their training ------------------------------------------------------

    def measured(self, row: int) -> tuple[StepPoint, ...] | None:
        """Step times wherever the job has run; None for a job that does not report them."""
        reports = self._state.reports
        return None if reports is None else reports.measured(row)

    def noise(self, row: int) -> GradientNoise | None:
        """The job's gradient noise; None before it has told of it."""
        reports = self._state.reports
        return None if reports is None else reports.noise(row, self.now_s)

    def batch_range(self, row: int) -> BatchRange | None:
        """The batches with which the job can train; None for a job that does not report them.

        Batches that it has refused on GPUs like its present ones are left out; if it has none now,
        those that it has refused on any GPUs.
        """
        reports, refused = self._state.reports, self._state.refused.get(row)
        told = None if reports is None else reports.batch_range(row)
        if refused is None:
            return told
        place, points = self.target[row] or self.home[row], self.measured(row) or ()
        here = self._state.nodes[place.parts[0][0]].gpu_type if place is not None else None
        for gpu_type, (samples, _) in refused.items():
            if told is not None and here in (None, gpu_type):
                works = [point.batch for point in points if point.gpu_type == gpu_type]
                told = told.without(samples, works)
        return told

    def learned(self, row: int) -> Learned | None:
        """The job's progress, and the epochs its user declared; None if it does not report them."""
        reports = self._state.reports
        return None if reports is None else reports.learned(row, self.now_s)

    # -- searches ------------------------------------------------------------------------------

    @property
    def sweeps(self) -> Mapping[str, Sequence[int]]:
        """The rows of each search's trials, ended ones too, by the search's name."""
        return self._state.sweeps

    def curve(self, row: int) -> Sequence[float]:
        """A trial's metric at each of its reports so far. The caller must not change it."""
        curves = self._state.curves
        return () if curves is None else curves.curve(row, self.now_s)

    # -- what only oracles may know: those that declare needs_duration --------------------------

    def remaining_s(self, row: int) -> float:
        """Seconds that the job still has to run at speed 1."""
        self._require_oracle()
        return self._state.duration_s[row] - self._state.work(row, self.now_s)

    def true_step_s(self, row: int, gpus: int) -> float:
        """Seconds of a step with the job's own batch on so many GPUs of the fewest nodes.

        A job without known steps does one step in a second of work at speed 1.
        """
        return self._truth().step_s(row, gpus)

    def true_steps_left(self, row: int, *, whole_epochs: bool = False) -> float:
        """Such steps to the job's end; with ``whole_epochs`` those after the present one, or 1."""
        return self._truth().steps_left(row, self.now_s, whole_epochs)

    def _truth(self) -> Truth:
        self._require_oracle()
        if self._state.truth is None:
            raise PlanError("the policy is an oracle, and only a simulation knows the truth")
        return self._state.truth

    def _require_oracle(self) -> None:
        if not self._needs_duration:
            raise PlanError(
                "the policy reads durations, which a live scheduler does not know; "
                "set needs_duration = True in its class to make it an oracle"
            )

    def numpy(self, column: str) -> np.ndarray[Any, Any]:
        """A numeric column as a zero-copy, read-only numpy array of shape (rows,)."""
        import numpy as np

        if column == "duration_s":
            self._require_oracle()
        values: array[Any] = getattr(self._state, column)
        view = np.frombuffer(values, dtype=values.typecode)
        view.flags.writeable = False
        return view

    @property
    def has_device_memory(self) -> bool:
        """True if a job may keep device memory that others then lack."""
        return self._state.has_device_memory

    def kept_gpus(self) -> Iterator[tuple[int, int]]:
        """Nodes and numbers of GPUs that jobs keep of which the view does not tell now."""
        if not self.has_device_memory:
            return
        for row in self._state.placed_rows():
            place = self.target[row]
            if row not in self.active and place is not None and not place.background:
                for node, mask in place.parts:
                    yield node, mask.bit_count()

    def must_stay(self, row: int) -> bool:
        """True if a suspended job can continue only on the GPUs where it was.

        That holds for processes on a GPU that are merely stopped: their device memory stays there.
        """
        return self.home[row] is not None and not self._state.movable[row]

    def one_node_gangs(self, row: int | None = None) -> bool:
        """True if this job, or any, can only be on one node: so it is on live ones that don't reach
        each other."""
        if not self.is_live:
            return False
        alone = row is not None and not self.spec[row].spans_nodes
        return alone or self._state.num_reached < 2

    def stays_on_node(self, row: int) -> bool:
        """True if a suspended job can continue only on GPUs of the node where it was.

        That holds for stopped processes: only state that a job's own session writes can be moved.
        """
        return self.home[row] is not None and not self._state.portable[row]

    def what_if(self) -> WhatIf:
        """A what-if copy: release and place jobs on it, then ask for the plan."""
        self._last_what_if = what_if = WhatIf(self)
        return what_if

    def unchanged(self, *, wake_at_s: float | None = None) -> Plan:
        """The plan to leave everything as it is."""
        return new(Plan, ({}, {}, {}, None, wake_at_s, None, None, None))

    def free_now(self) -> FreeGpus:
        """A copy of the GPUs that the plan so far leaves free."""
        return self._state.assumed.copy()

    def fill_measured(self, row: int) -> FillMeasured | None:
        """What was measured last of a background job; None before the first time."""
        return self._state.fill_measured.get(row)

    def burst_planned(self, row: int) -> BurstPlanned | None:
        """The last plan by layer that the job's program has told; None if it has told none."""
        return self._state.burst_planned.get(row)

    def has_room(self, node: int, rows: Iterable[int]) -> bool:
        """True if these jobs fit into the memory of one GPU of the node at the same time.

        A node without device memory has room for all; elsewhere the need of each must be known.
        """
        if not self._state.nodes[node].has_device_memory:
            return True
        needs_gb = [self.usage(row).memory_gb for row in rows]
        return len(needs_gb) < 2 or fit_together(needs_gb, self._state.nodes[node].memory_gb)

    def free_after(self, plan: Plan) -> FreeGpus | None:
        """The GPUs that ``plan`` leaves free.

        None unless the last what-if at this instant made the plan, and nothing has changed since.
        """
        what_if = self._last_what_if
        return None if what_if is None else what_if.free_after(plan)


NO_REASON = Reason.NONE  # looked up once: members of an enumeration are slow to get


class _NoMarks:
    """The marks of a policy that has not decided yet."""

    def __getitem__(self, row: int) -> None:
        return None


class WhatIf:
    """A copy of the view's target that can be changed; :meth:`plan` gives the changes.

    Allocations are checked against the contract here, one by one, and the GPUs they leave free are
    known here: an unchanged plan of a what-if is checked no second time. ``free_gpus`` is the
    number of GPUs that no job has in this what-if.
    """

    __slots__ = (
        "_allocations",
        "_free",
        "_marks",
        "_plan",
        "_reasons",
        "_steps",
        "free_gpus",
        "view",
    )

    def __init__(self, view: View) -> None:
        self.view = view
        self.free_gpus = view.free_gpus
        self._free: FreeGpus | None = None
        self._allocations: dict[int, Allocation | None] = {}
        self._reasons: dict[int, int] = {}
        self._marks: dict[int, Any] = {}
        self._steps = 0  # how often GPUs have been given or released
        self._plan: Plan | None = None  # the last one made

    @property
    def free(self) -> FreeGpus:
        """The GPUs that no job has in this what-if."""
        if self._free is None:
            self._free = self.view.free_now()
        return self._free

    def target(self, row: int) -> Allocation | None:
        """The job's allocation in this what-if."""
        return self._allocations.get(row, self.view.target[row])

    def waiting(self, rows: Sequence[int]) -> list[int]:
        """The rows without GPUs in this what-if, in their order."""
        target, changed = self.view.target, self._allocations
        if not changed:
            return [row for row in rows if target[row] is None]
        return [row for row in rows if changed.get(row, target[row]) is None]

    def released(self) -> list[int]:
        """Return the rows that have GPUs, and none in this what-if."""
        target, changed = self.view.target, self._allocations.items()
        return [row for row, place in changed if place is None and target[row] is not None]

    def release(self, row: int, reason: Reason) -> None:
        """Take the job's GPUs away, because of ``reason``."""
        allocation = self.target(row)
        if allocation is None:
            raise PlanError(f"the policy releases row {row}, which has no GPUs", [row])
        free = self.free
        free.give(allocation)
        self.free_gpus = free.count
        self._steps += 1
        self._allocations[row] = None
        self._reasons[row] = reason

    def give(self, row: int, allocation: Allocation) -> None:
        """Give the job, which has none, these free GPUs."""
        view, free = self.view, self._free or self.free
        before, num_gpus = view.target[row], allocation.num_gpus
        if num_gpus != view.num_gpus[row] and num_gpus not in view.sizes(row):
            raise PlanError(
                f"the policy gives row {row} {num_gpus} GPUs; it is a gang of {view.num_gpus[row]}",
                [row],
            )
        if allocation.background:
            raise PlanError(
                f"the policy gives row {row} GPUs of the layer of background jobs", [row]
            )
        home = view.home[row]
        moves = home is not None and allocation is not home and allocation.parts != home.parts
        if moves and view.must_stay(row):
            raise PlanError(f"the policy moves row {row}, which can go on only on {home}", [row])
        if self._allocations.get(row, before) is not None or not free.take(allocation):
            raise PlanError(
                f"the policy gives row {row} GPUs that are taken, or a second time", [row]
            )
        self.free_gpus = free.count
        self._steps += 1
        if before is not None and allocation == before:
            del self._allocations[row]
            self._reasons.pop(row, None)
        else:
            self._allocations[row] = allocation
            self._reasons[row] = NO_REASON

    def change(self, row: int, allocation: Allocation) -> None:
        """Replace the job's GPUs by these, which must be free or its own."""
        self.release(row, NO_REASON)
        self.give(row, allocation)

    def wait(self, row: int, reason: Reason) -> None:
        """Give the reason for which a job without GPUs gets none."""
        if self._reasons.get(row, self.view.reason[row]) != reason:
            self._reasons[row] = reason

    def mark(self, row: int, value: Any) -> None:
        """Remember a JSON-able mark for the job until it ends; it comes back in view.marks."""
        self._marks[row] = value

    def plan(
        self,
        *,
        wake_at_s: float | None = None,
        policy_mark: Any = None,
        notes: Notes | None = None,
    ) -> Plan:
        """The changes made on this what-if. ``policy_mark`` None keeps the policy's own mark."""
        # The plan's allocations are a copy, so that whether they are still ours can be told.
        allocations = self._allocations.copy() if self._allocations else {}
        reasons, marks = self._reasons, self._marks
        changes = (allocations, reasons, marks, policy_mark, wake_at_s, notes, None, None)
        self._plan = plan = new(Plan, changes)
        return plan

    def free_after(self, plan: Plan) -> FreeGpus | None:
        """The GPUs that ``plan`` leaves free; None unless this what-if made it, unchanged."""
        free = self._free
        if free is None or plan is not self._plan or plan.allocations != self._allocations:
            return None
        # Somebody may have taken or given GPUs past us, say to see what would come of it.
        return free if free.steps == self._steps else None
