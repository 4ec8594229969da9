"""Events: facts in past tense, which alone change a ``ClusterState``.

``at_s`` is the cluster's clock in seconds, ``row`` the job's number in order of arrival.
"""

from typing import Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.commands import Command
from rota.model.job import JobSpec, JobState, Suspension
from rota.model.notes import Notes
from rota.model.sweep import Report

# new(JobFinished, (at_s, row, ...)) makes an event, or another named tuple, of all its fields in a
# third of the time that the class takes: for where millions are made.
new = tuple.__new__


class NodeJoined(NamedTuple):
    """A node offers its GPUs, for the first time or after it was lost.

    ``address`` is where its agent calls from, "" if from the controller's machine, and ``build``
    the versions of the agent's program. For ``reach`` see :class:`rota.model.cluster.Node`.
    ``machine`` and ``boot_id`` identify a machine that has joined, and this life of it.
    """

    at_s: float
    name: str
    num_gpus: int
    kind: str = "gpu"
    gpu_type: str = ""
    rack: str = ""
    island: int = 0
    memory_gb: float = 0.0
    millicores: int = 0
    host_memory_gb: float = 0.0
    address: str = ""
    build: str = ""
    reach: str = ""
    machine: str = ""
    boot_id: str = ""
    whole_cores: bool = False


def joined(at_s: float, node: Node) -> NodeJoined:
    """The event for a node that offers its GPUs."""
    fields = node._asdict()
    del fields["alive"]
    return NodeJoined(at_s, **fields)


class NodeLost(NamedTuple):
    """A node is gone, with the jobs that ran there; a ``given_back`` node had none left."""

    at_s: float
    name: str
    given_back: bool = False


class NodeCpusChanged(NamedTuple):
    """Jobs may use so many CPU cores of the node from now on, in thousandths.

    For ``whole_cores`` see :class:`rota.model.cluster.Node`.
    """

    at_s: float
    name: str
    millicores: int
    whole_cores: bool = False


class NodeAddressChanged(NamedTuple):
    """The agent of a node calls from another ``address``, or others find its processes elsewhere.

    For ``reach`` see :class:`rota.model.cluster.Node`.
    """

    at_s: float
    name: str
    address: str
    reach: str


class NodeDeadlineChanged(NamedTuple):
    """The node must go by ``leaves_s``, whatever the reason; None: it need not go any more.

    A time limit, an eviction, or the notice of a spot instance: its provider tells it.
    """

    at_s: float
    name: str
    leaves_s: float | None = None


class NodeClosed(NamedTuple):
    """The node takes no new job; ``drains``: its jobs leave it, too.

    An administrator, ``user``, asked for it, or the node goes at ``by_s``. What can't leave by
    ``by_s`` (None: there is no such time) is stopped then, and starts anew.
    A later one takes the place of an earlier one.
    """

    at_s: float
    name: str
    drains: bool = False
    by_s: float | None = None
    user: str = ""


class NodeOpened(NamedTuple):
    """An administrator, ``user``, has a node that was closed take jobs again."""

    at_s: float
    name: str
    user: str = ""


class NodeUnreachable(NamedTuple):
    """A node is not heard. Its jobs keep their GPUs, and it takes no other, until it is heard again
    or lost, at ``until_s`` if that is known.
    """

    at_s: float
    name: str
    until_s: float | None = None


class NodeReachable(NamedTuple):
    """A node that was unreachable is heard again."""

    at_s: float
    name: str


class JobSubmitted(NamedTuple):
    """A user's job was accepted. It gets the next row."""

    at_s: float
    spec: JobSpec


class SuspendRequested(NamedTuple):
    """The owner, or whoever ``user`` is, wants the job to hold no GPUs until further notice.

    ``by_itself``: nobody asked for it. A flow job has called no operation for a while, and holds
    no GPUs until it calls one.
    """

    at_s: float
    row: int
    user: str = ""
    by_itself: bool = False


class ResumeRequested(NamedTuple):
    """The owner, or whoever ``user`` is, lets a job that was suspended so go on.

    ``by_itself``: the job called an operation, and goes on if it was suspended for calling none.
    """

    at_s: float
    row: int
    user: str = ""
    by_itself: bool = False


class StopRequested(NamedTuple):
    """The job must end: ``user`` cancelled it, or its time limit was reached."""

    at_s: float
    row: int
    outcome: JobState = JobState.CANCELLED
    user: str = ""


class RetryDue(NamedTuple):
    """A job whose last command failed has waited long enough."""

    at_s: float
    row: int


class DecisionTaken(NamedTuple):
    """The policy's plan, as changes to the previous one."""

    at_s: float
    seq: int
    policy: str
    allocations: dict[int, Allocation | None]
    reasons: dict[int, int]
    marks: dict[int, Any]
    policy_mark: Any
    wake_at_s: float | None
    notes: Notes | None = None  # only the new ones
    cpus: dict[int, int | None] | None = None
    stage_marks: dict[str, Any] | None = None
    fill_wake_at_s: float | None = None  # that of the stage for background jobs
    fallback: str = ""  # "" unless the policy failed: how the plan was made (rota.model.fallback)


class PolicyFailed(NamedTuple):
    """The policy has begun to fail: a fallback takes the decision that follows.

    ``error`` is the policy's; ``file``, in ``failed-decisions``, has the decision's input.
    """

    at_s: float
    policy: str
    error: str
    file: str = ""


class CommandSent(NamedTuple):
    """A command is on its way; written down before it leaves."""

    at_s: float
    command: Command


class CommandFailed(NamedTuple):
    """The job's outstanding command was not carried out."""

    at_s: float
    row: int
    command_id: int
    error: str
    retry_at_s: float = 0.0


class JobLaunched(NamedTuple):
    """All processes of the job's attempt run, at ``speed`` relative to its duration's."""

    at_s: float
    row: int
    attempt: int
    speed: float = 1.0


class JobSuspended(NamedTuple):
    """The job is paused since ``stopped_s``, and its GPUs are free since ``at_s``.

    If its processes were asked to end for that, ``exit_code`` is that of one that ended otherwise
    than with 0 or by the SIGTERM, and ``saved`` the newest file that they then wrote in the job's
    checkpoint folder; "" if they wrote none there.
    """

    at_s: float
    row: int
    stopped_s: float
    exit_code: int | None = None
    saved: str | None = None


class JobResumed(NamedTuple):
    """The job runs again, at ``speed`` times the speed that its duration is for."""

    at_s: float
    row: int
    speed: float = 1.0


class JobParked(NamedTuple):
    """The state of a suspended job is on the node that its Park named, and the job waits there."""

    at_s: float
    row: int


class JobResized(NamedTuple):
    """The job has a rank on each of these GPUs, and on no other.

    ``paused_s`` is the time for which its ranks could not work. It may come without a command: the
    job has continued without ``lost_ranks`` of its ranks, or has had one replaced. Then ``cause``
    tells why, in words.
    """

    at_s: float
    row: int
    allocation: Allocation
    speed: float = 1.0
    paused_s: float = 0.0
    cause: str = ""
    lost_ranks: int = 0


class JobRetuned(NamedTuple):
    """The job continues with another batch, at ``speed`` relative to its duration's."""

    at_s: float
    row: int
    batch: tuple[int, int] | None
    speed: float = 1.0


class CpusSet(NamedTuple):
    """The job continues with so many CPU cores, at ``speed`` relative to its duration's.

    ``millicores`` are thousandths of a core, of the whole job; None: as many as it likes.
    """

    at_s: float
    row: int
    millicores: int | None
    speed: float = 1.0


class BatchRefused(NamedTuple):
    """The job continues without the batch that it was given, alone or with its GPUs.

    ``of_a_gpu`` is True if the samples on a GPU at once were too many, so that no larger number is
    possible either; False if its size as a whole was impossible on these GPUs.
    """

    at_s: float
    row: int
    batch: tuple[int, int]
    error: str
    of_a_gpu: bool = True


class SpeedChanged(NamedTuple):
    """A running job has become faster or slower.

    ``by_itself`` is True if its training has changed, and nothing around it, which calls for no
    decision.
    """

    at_s: float
    row: int
    speed: float
    by_itself: bool = False


class FillMeasured(NamedTuple):
    """A background job was measured for a while beside a foreground job, or alone.

    ``beside`` is the foreground job's row, -1 for nobody. Its steps take ``slowdown`` times as long
    as without the background job (1.0: it loses nothing). ``harvest`` is the part of its own speed
    alone that the background job has there, from 0 to 1. With 95 % confidence the true slowdown is
    from ``low`` to ``high``, by so many ``pairs`` of segments of its steps; None and 0 if there is
    no interval: of a job alone, and in logs from before intervals.
    """

    at_s: float
    row: int
    beside: int
    slowdown: float
    harvest: float
    low: float | None = None
    high: float | None = None
    pairs: int = 0


class WorkerRegistered(NamedTuple):
    """The job's ways of suspension became known, and the places where it can continue.

    If ``movable``, the job can continue on other GPUs; if ``portable``, also on another node.
    ``most_ranks`` is the most ranks that can share the program's batches, 0 if it has not reported
    any. ``why`` is the reason for its way of suspension. ``started`` tells how its program was
    started: forked, or fresh, with the reason if it was to be forked.
    """

    at_s: float
    row: int
    suspension: Suspension
    movable: bool
    resizable: bool = False
    most_ranks: int = 0
    portable: bool = True
    why: str = ""
    started: str = ""


class ModelReported(NamedTuple):
    """The job's script told the size of its model and of the largest tensor in it."""

    at_s: float
    row: int
    model_bytes: int
    largest_tensor_bytes: int


class BurstPlanned(NamedTuple):
    """The job's program has planned the ranks of each layer, for a step of ``batch`` samples.

    ``step_s`` are the predicted seconds of a step with 1, 2, ... ranks, as it would plan with so
    many; None where no plan is possible or none was looked for. ``idle`` is the part of a step, 0
    to 1, for which the plan leaves each of the job's present GPUs idle, in the order of the GPUs.
    """

    at_s: float
    row: int
    batch: int
    step_s: tuple[float | None, ...]
    idle: tuple[float, ...]


class WorkerReported(NamedTuple):
    """The job reported its progress: step, samples, loss, time per mini-batch, its own metrics."""

    at_s: float
    row: int
    progress: dict[str, Any]


class AttemptLost(NamedTuple):
    """The job's processes are gone and their end is unknown; it may start anew.

    ``lost_s`` is the work done since the last checkpoint, in seconds at speed 1. ``got_on``: before
    it was lost, the attempt had done something for the job, and was not one of those that only
    begin. With ``retry_at_s`` the job would have ended, but its retries allow another attempt,
    from that time on; ``exit_code`` is that of its processes, if they ended by themselves.
    """

    at_s: float
    row: int
    attempt: int
    error: str
    lost_s: float = 0.0
    got_on: bool = False
    retry_at_s: float | None = None
    exit_code: int | None = None


class JobFinished(NamedTuple):
    """The job's last process has ended, and none will follow."""

    at_s: float
    row: int
    outcome: JobState
    exit_code: int | None = None
    message: str = ""


class JobCleaned(NamedTuple):
    """The output of a job that has ended was removed for ``user``, and its checkpoints unless kept.

    What it has left elsewhere is there.
    """

    at_s: float
    row: int
    user: str = ""
    keeps_checkpoints: bool = False


class SweepSubmitted(NamedTuple):
    """A user's search was accepted under this name, which no other has or has had.

    ``request`` is JSON-able: the fields of its file. ``key`` is its idempotency key, and
    ``body_hash`` tells if a later request with that key is the same.
    """

    at_s: float
    name: str
    user: str
    request: dict[str, Any]
    key: str | None = None
    body_hash: str = ""


class TrialStopped(NamedTuple):
    """The search that a job is a trial of needs it no longer; a StopRequested follows."""

    at_s: float
    row: int
    why: str


class SweepEnded(NamedTuple):
    """A search is over: TARGET, DONE, BUDGET, FAILED or CANCELLED. It has no further trials."""

    at_s: float
    name: str
    outcome: str
    message: str


class MetricReported(NamedTuple):
    """A trial has reported the metric of its search: its new reports, in order."""

    at_s: float
    row: int
    reports: tuple[Report, ...]


Event = (
    NodeJoined
    | NodeLost
    | NodeCpusChanged
    | NodeAddressChanged
    | NodeDeadlineChanged
    | NodeClosed
    | NodeOpened
    | NodeUnreachable
    | NodeReachable
    | JobSubmitted
    | SuspendRequested
    | ResumeRequested
    | StopRequested
    | RetryDue
    | DecisionTaken
    | PolicyFailed
    | CommandSent
    | CommandFailed
    | JobLaunched
    | JobSuspended
    | JobResumed
    | JobParked
    | JobResized
    | JobRetuned
    | CpusSet
    | BatchRefused
    | SpeedChanged
    | FillMeasured
    | WorkerRegistered
    | ModelReported
    | BurstPlanned
    | WorkerReported
    | AttemptLost
    | JobFinished
    | JobCleaned
    | SweepSubmitted
    | TrialStopped
    | SweepEnded
    | MetricReported
)
