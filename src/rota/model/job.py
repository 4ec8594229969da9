"""A user's request for a job, and the states of a job."""

from enum import IntEnum
from typing import Any, NamedTuple

from rota.model.sweep import SweepTrial

GRACE_S = 10.0  # unless the job says otherwise
FLOW = "flow"  # the processes of a flow job
FRESH, WARM = "fresh", "warm"  # the starts of a program
JOB_NAME = r"(?=.*[^0-9])[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"  # matches what a job may be called


class JobState(IntEnum):
    """State of a job. Its name is what users see."""

    PENDING = 0
    STARTING = 1
    RUNNING = 2
    SUSPENDING = 3
    SUSPENDED = 4
    MIGRATING = 5
    STOPPING = 6
    HELD = 7
    SUCCEEDED = 8
    FAILED = 9
    CANCELLED = 10
    TIMEOUT = 11
    LOST = 12

    @property
    def is_final(self) -> bool:
        """True if a job in this state never runs again."""
        return self >= JobState.SUCCEEDED


class Suspension(IntEnum):
    """The known ways in which a job can be suspended."""

    UNKNOWN = 0
    PROCESS = 1  # its processes are stopped and continued; device memory stays in use
    BOUNDARY = 2  # the job stops by itself at a step boundary and frees the device
    CHECKPOINT = 3  # device memory is copied to the host, then as PROCESS
    RESTART = 4  # its processes end, and are started again to go on from its own checkpoint


class Program(NamedTuple):
    """The program of a live job. Simulated jobs have none."""

    run: str
    workdir: str
    env: tuple[tuple[str, str], ...] = ()
    # "gpu": one process per GPU (a rank each); "node": one per node; FLOW: see JobSpec.is_flow
    processes: str = "gpu"
    suspend: str = "auto"  # the requested suspension without a session of rota.train
    grace_s: float = GRACE_S  # of "restart": seconds from SIGTERM to SIGKILL
    resume_from: str = ""  # the id of the job whose checkpoints it begins with
    setup: str = ""  # what runs on a node before it, once
    cpus: int = 0  # cores that it asked for; 0: none in particular
    host_memory_gb: float | None = None  # that it asked for, in 1e9 bytes
    idle_s: float | None = None  # of a flow job: without operations for so long, it is suspended
    snapshot: str = ""  # the digest of the files that it has, each attempt its own, for workdir
    # FRESH: it is executed; WARM: forked from a process that has torch loaded, where that can be
    start: str = FRESH


class Elastic(NamedTuple):
    """The numbers of GPUs that a job may have, and the value of its completion to its user.

    ``sizes`` rise; the first is the least that the job needs. A ``value`` is that of completion
    within ``deadline_s`` of submission; it falls from there on. Without one, more GPUs are taken
    for as long as they raise the throughput enough. With ``by_restart`` the job changes its size
    only by a suspension, after which it continues with any of ``sizes`` on any nodes, and never
    while it runs.
    """

    sizes: tuple[int, ...]
    deadline_s: float | None = None
    value: float | None = None
    price_per_gpu_hour: float = 0.0
    by_restart: bool = False


class Adapt(NamedTuple):
    """Limits, in samples, of the batches that the scheduler may choose for the job.

    ``least_per_gpu`` and ``most_per_gpu`` are limits of what a GPU computes at once. None stands
    for a GPU's part of the initial batch on the fewest GPUs.
    """

    most: int
    most_per_gpu: int | None = None
    least_per_gpu: int = 1


class Dependency(NamedTuple):
    """A job that must have ended, in a way of MET_BY, before another one may start."""

    job_id: str
    when: str = "succeeded"


_FAILURES = frozenset((JobState.FAILED, JobState.TIMEOUT, JobState.LOST))
MET_BY = {
    "succeeded": frozenset((JobState.SUCCEEDED,)),
    "failed": _FAILURES,
    "ended": _FAILURES | {JobState.SUCCEEDED, JobState.CANCELLED},
}


# Causes after which a job may start anew, beside exit-1 to exit-255.
CAUSES = ("failed", "out_of_memory", "node_failure")
MAX_BACKOFF_S = 3600.0


WEBHOOK, COMMAND = "webhook", "command"  # the kinds of hooks


class Notice(NamedTuple):
    """A wish of a job's user: the hook of that name and kind is told of these news of the job.

    ``on`` are words of :data:`rota.model.news.JOB_NEWS`.
    """

    hook: str
    on: tuple[str, ...]
    kind: str = WEBHOOK


class Retries(NamedTuple):
    """How often a job that would have failed starts anew, after which causes and what pause.

    A cause is one of CAUSES or ``exit-CODE``. Each pause is twice as long as the one before.
    """

    most: int
    on: tuple[str, ...] = ("failed", "node_failure")
    backoff_s: float = 10.0

    def pause_s(self, retried: int) -> float:
        """The pause before the next attempt of a job that has started anew so often."""
        return max(self.backoff_s, min(self.backoff_s * 2.0 ** min(retried, 60), MAX_BACKOFF_S))


def powers_of_two(least: int, most: int) -> tuple[int, ...]:
    """The sizes ``pow2`` of a range: its least, and the powers of two above that up to ``most``."""
    powers = (1 << n for n in range(most.bit_length()))
    return (least, *(power for power in powers if least < power <= most))


BACKGROUND, FOREGROUND = "background", "foreground"
WEIGHTS = (1e-3, 1e6)  # from, to: what the weight of a flow job may be
MAX_SLOWDOWN = 1.1  # of a foreground job's steps by a background one, unless the job says otherwise


class Share(NamedTuple):
    """The layer that a job is on, as its user wants it: BACKGROUND or FOREGROUND.

    A background job has GPUs of one node, beside whichever foreground jobs hold them, and gives way
    to these. ``max_slowdown`` is by how much a foreground job allows its steps to take longer for
    it: a factor, 1.0 or more; None: MAX_SLOWDOWN. A job without a Share is a foreground job.

    ``weight`` is a flow job's part of the time of devices that it has with other flow jobs, above
    0, relative to theirs; None: 1.0.
    """

    role: str
    max_slowdown: float | None = None
    weight: float | None = None


class JobSpec(NamedTuple):
    """A user's request for a job.

    ``duration_s`` is the service time that a trace knows and a live scheduler does not: only
    policies that declare ``needs_duration`` may read it.
    """

    job_id: str
    num_gpus: int
    submit_s: float
    duration_s: float | None = None
    priority: int = 50  # 1..100, larger is sooner; the weight of weighted policies
    name: str = ""
    user: str = ""
    vc: str = ""
    model: str = ""
    time_limit_s: float | None = None
    program: Program | None = None
    skew: float | None = None  # largest tensor over model size
    speeds: tuple[tuple[str, float], ...] = ()  # GPU type -> speed there; duration_s is for 1
    elastic: Elastic | None = None  # set if it may have more than num_gpus
    gpu_util: float | None = None  # part of the time in which its GPUs compute, alone: 0..1
    memory_gb: float | None = None  # of each GPU, at most, in 1e9 bytes
    batch: int | None = None  # samples of a whole step, over all its GPUs
    epochs: float | None = None  # passes over its data, as its user declared
    adapt: Adapt | None = None  # if the scheduler may choose its batches
    trial: SweepTrial | None = None  # of which search it is, and what it tries
    retries: Retries | None = None  # if it may start anew after it has failed
    depends_on: tuple[Dependency, ...] = ()  # on jobs that were submitted before it
    tags: tuple[str, ...] = ()  # its user's own labels
    gpu_types: tuple[str, ...] = ()  # it runs on live nodes of these alone, if there are any
    cpus_per_gpu: tuple[int, int] | None = None  # least and most CPU cores for each of its GPUs
    share: Share | None = None  # its layer; None: a foreground job without wishes
    notices: tuple[Notice, ...] = ()  # who is told of what happens to it
    # Of a simulated job: how it can be suspended. A live job's program tells.
    suspension: Suspension = Suspension.UNKNOWN

    @property
    def is_background(self) -> bool:
        """True if the job uses what foreground jobs leave of GPUs."""
        return self.share is not None and self.share.role == BACKGROUND

    @property
    def max_slowdown(self) -> float:
        """By what factor a background job may slow this one's steps, 1.0 or more."""
        told = None if self.share is None else self.share.max_slowdown
        return MAX_SLOWDOWN if told is None else told

    @property
    def spans_nodes(self) -> bool:
        """True if the processes of a live job may be on several nodes.

        So it is for one process per GPU that has the GPU for itself. What has its GPUs in turns
        with others of its node, and what starts its processes itself, is on one node.
        """
        in_ranks = self.program is not None and self.program.processes == "gpu"
        return in_ranks and not self.is_background

    @property
    def is_flow(self) -> bool:
        """True for a flow job: one script, run once, that drives its GPUs through ``rota.flow``.

        A simulated job, which has no program, is one if it has a weight.
        """
        if self.program is None:
            return self.share is not None and self.share.weight is not None
        return self.program.processes == FLOW

    @property
    def weight(self) -> float:
        """A flow job's part of the time of devices that it has with other flow jobs."""
        told = None if self.share is None else self.share.weight
        return 1.0 if told is None else told

    @property
    def simulated(self) -> bool:
        """True if the job has no program: such jobs run only in simulations."""
        return self.program is None


class Job(NamedTuple):
    """A job's whole state at one moment, made from the columns on request."""

    spec: JobSpec
    state: JobState
    reason: int
    attempt: int
    service_s: float
    overhead_s: float
    first_start_s: float | None
    finish_s: float | None
    preemptions: int
    migrations: int
    suspension: Suspension
    exit_code: int | None
    message: str
    gpus: tuple[tuple[str, tuple[int, ...]], ...]
    progress: dict[str, Any]


def name_of(run: str) -> str:
    """A name for an unnamed job: its script's or program's, in allowed characters."""
    import re  # here: simulated jobs have no program
    import shlex
    from os.path import basename

    try:
        words = shlex.split(run, comments=True)
    except ValueError:
        words = run.split()
    words = [word for word in words if not re.match(r"[A-Za-z_]\w*=", word)]
    best = words[0] if words else ""
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m" or word.endswith((".py", ".sh")):
            best = word.removesuffix(".py").removesuffix(".sh")
            break
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", basename(best)).strip(".-_")[:64]
    return name if re.match(JOB_NAME, name) else f"job-{name}".rstrip("-")
