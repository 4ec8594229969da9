"""What a policy sees, and a cheap what-if copy of it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from rota.errors import PlanError
from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.events import new
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state import ClusterState

if TYPE_CHECKING:
    import numpy as np


def identity(policy: Any) -> str:
    """The policy's name and settings: what it remembered is valid only for the same identity."""
    return getattr(policy, "identity", None) or type(policy).__qualname__


class View:
    """The cluster at ``now_s``, not to be changed: one row per job, in (arrival, id) order.

    Columns (``view.num_gpus[row]``) are the state's own arrays. ``active`` holds the rows that
    the policy decides on; ``changed`` those that changed since the last decision (with repeats);
    ``plan`` the plan that the last decision applied, if it was made in this process;
    ``priorities`` every priority that a job has had so far; ``completed_gpu_s`` the GPU-seconds of
    each job that ended by itself, in order of their ends, only ever appended to.
    """

    __slots__ = (
        "_needs_duration",
        "_policy",
        "_times_replaced",
        "active",
        "changed",
        "completed_gpu_s",
        "home",
        "marks",
        "now_s",
        "num_gpus",
        "plan",
        "policy_mark",
        "priorities",
        "priority",
        "reason",
        "service_s",
        "since_s",
        "state",
        "submit_s",
        "target",
        "total_gpus",
    )

    def __init__(self, state: ClusterState, now_s: float, policy: Any) -> None:
        self.state = state
        self._policy = identity(policy)
        self._needs_duration = getattr(policy, "needs_duration", False)
        self._times_replaced = state.times_replaced
        self.active = state.active
        self.changed = state.changed
        self.completed_gpu_s: array[float] = state.completed_gpu_s
        self.home = state.home
        self.num_gpus: array[int] = state.num_gpus
        self.priorities = state.priorities
        self.priority: array[int] = state.priority
        self.reason: array[int] = state.reason
        self.service_s: array[float] = state.service_s
        self.since_s: array[float] = state.since_s
        self.submit_s: array[float] = state.submit_s
        self.target = state.target
        self.now_s = now_s
        self.marks: Any = None
        self.renew(now_s)

    def renew(self, now_s: float) -> bool:
        """Show the state as it is now. False if only a new view can: columns were replaced."""
        state = self.state
        self.now_s = now_s
        self.plan = state.plan
        self.total_gpus = state.total_gpus
        same_policy = state.policy == self._policy
        self.marks = state.marks if same_policy else _NoMarks()
        self.policy_mark: Any = state.policy_mark if same_policy else None
        return self._times_replaced == state.times_replaced

    @property
    def free_gpus(self) -> int:
        """How many GPUs the plan so far gives to nobody."""
        return self.state.assumed.count

    def attained_s(self, row: int) -> float:
        """Seconds for which the job has run so far."""
        return self.state.service(row, self.now_s)

    def attained_gpu_s(self, row: int) -> float:
        """Attained service: GPUs times seconds run so far (Tiresias, section 3.2)."""
        return self.attained_s(row) * self.num_gpus[row]

    def remaining_s(self, row: int) -> float:
        """Seconds that the job still has to run at speed 1. Only if needs_duration is declared."""
        if not self._needs_duration:
            raise PlanError(
                "the policy reads durations, which a live scheduler does not know; "
                "set needs_duration = True in its class to make it an oracle"
            )
        return self.state.duration_s[row] - self.state.work(row, self.now_s)

    def numpy(self, column: str) -> np.ndarray[Any, Any]:
        """A numeric column as a zero-copy, read-only numpy array of shape (rows,)."""
        import numpy as np

        if column == "duration_s" and not self._needs_duration:
            raise PlanError("the policy reads durations without setting needs_duration = True")
        values: array[Any] = getattr(self.state, column)
        view = np.frombuffer(values, dtype=values.typecode)
        view.flags.writeable = False
        return view

    def must_stay(self, row: int) -> bool:
        """Whether a suspended job can go on only on the GPUs where it was.

        So it is with processes on a GPU that are merely stopped: their device memory stays there.
        """
        return self.home[row] is not None and not self.state.movable[row]

    def trial(self) -> Trial:
        """A what-if copy: release and place jobs on it, then ask for the plan."""
        return Trial(self)


class _NoMarks:
    """The marks of a policy that has not decided yet."""

    def __getitem__(self, row: int) -> None:
        return None


class Trial:
    """A copy of the view's target that can be changed; :meth:`plan` gives the changes."""

    __slots__ = ("_allocations", "_free", "_marks", "_reasons", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self._free: FreeGpus | None = None
        self._allocations: dict[int, Allocation | None] = {}
        self._reasons: dict[int, int] = {}
        self._marks: dict[int, Any] = {}

    @property
    def free(self) -> FreeGpus:
        """The GPUs that no job has in this trial."""
        if self._free is None:
            self._free = self.view.state.assumed.copy()
        return self._free

    def target(self, row: int) -> Allocation | None:
        """What the job has in this trial."""
        return self._allocations.get(row, self.view.target[row])

    @property
    def free_gpus(self) -> int:
        """How many GPUs no job has in this trial."""
        return self.view.state.assumed.count if self._free is None else self._free.count

    def release(self, row: int, reason: Reason) -> None:
        """Take the job's GPUs away, because of ``reason``."""
        allocation = self.target(row)
        if allocation is None:
            raise PlanError(f"the policy releases row {row}, which has no GPUs")
        self.free.give(allocation)
        self._allocations[row] = None
        self._reasons[row] = reason

    def give(self, row: int, allocation: Allocation) -> None:
        """Give the job, which has none, these free GPUs."""
        free, before = self._free or self.free, self.view.target[row]
        has_gpus = self._allocations.get(row, before) is not None
        if has_gpus or not free.fits(allocation):
            raise PlanError(f"the policy gives row {row} GPUs that are taken, or a second time")
        free.take(allocation)
        if before is not None and allocation == before:
            del self._allocations[row]
            self._reasons.pop(row, None)
        else:
            self._allocations[row] = allocation
            self._reasons[row] = Reason.NONE

    def wait(self, row: int, reason: Reason) -> None:
        """Say why a job that has no GPUs gets none."""
        if self._reasons.get(row, self.view.reason[row]) != reason:
            self._reasons[row] = reason

    def mark(self, row: int, value: Any) -> None:
        """Remember a JSON-able mark for the job until it ends; it comes back in view.marks."""
        self._marks[row] = value

    def plan(self, *, wake_at_s: float | None = None, policy_mark: Any = None) -> Plan:
        """The changes made on this trial. ``policy_mark`` None keeps the policy's own mark."""
        changes = (self._allocations, self._reasons, self._marks, policy_mark, wake_at_s)
        return new(Plan, changes)
