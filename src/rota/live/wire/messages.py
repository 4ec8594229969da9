"""Messages between workers, agents and controllers: each kind declared once.

A declaration is the documentation and the check. Fields with a default may be left out; what else a
message has is passed over. Any program can write to an agent's socket: what it says is held against
these before anything follows from it.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from rota.errors import AgentError, InputError
from rota.live.wire import MAX_NUMBER, MAX_PLANNED_RANKS, Message, decode
from rota.live.wire.faults import fault_in
from rota.live.wire.places import FURTHEST, STRIDE
from rota.live.wire.questions import Answer
from rota.model.job import Suspension
from rota.model.measured.phase_times import read as read_phases

MAX_COUNT = 1 << 62
MAX_SECONDS = 1e11  # since 1970, or of a step
MAX_METRICS, MAX_NAME = 1000, 200
MAX_MODEL_BYTES = 1 << 60
MAX_NODE_GPUS = STRIDE
MAX_NODES = 1000  # of a gang
MAX_SLICES = 1000  # of a flow job that are told
LONGEST_STEP_S = 86_400.0
MAX_WORDS = 500  # characters of why there is no checkpoint,
MAX_SENTENCE = 1000  # and of any other sentence
SENTENCES = ("error", "refusal", "keeps")

Count = Annotated[int, Meta(ge=0, lt=MAX_COUNT, description="a whole number from 0")]
AttemptNumber = Annotated[int, Meta(ge=1, lt=MAX_COUNT, description="a whole number from 1")]
Whole = Annotated[int, Meta(gt=-MAX_COUNT, lt=MAX_COUNT)]
Number = Annotated[float, Meta(gt=-MAX_NUMBER, lt=MAX_NUMBER)]
Amount = Annotated[float, Meta(ge=0, lt=MAX_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, lt=MAX_SECONDS, description="a number from 0")]
Time = Annotated[float, Meta(ge=0, lt=MAX_SECONDS, description="seconds since 1970")]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Batch = tuple[Count, Count]  # samples of a rank at once, and how often it accumulates gradients
Bytes = Annotated[int, Meta(ge=0, le=MAX_MODEL_BYTES)]


# -- parts of messages -----------------------------------------------------------------------------


class Adaptation(Struct, kw_only=True):
    """Batches that the scheduler chooses: limits, the present one, and what was measured."""

    initial: Amount | None = None  # samples of the batch that the job begins with,
    most: Amount | None = None  # of the largest,
    least_per_gpu: Amount | None = None  # the least
    most_per_gpu: Amount | None = None  # and the most on a GPU at once
    size: Amount | None = None  # samples of the present batch,
    gpus: Amount | None = None  # on so many GPUs,
    per_gpu: Amount | None = None  # so many on one at once,
    accumulation: Amount | None = None  # and gradients accumulated so often
    scaled_steps: Amount | None = None  # statistical progress, in initial batches
    epoch_samples: Amount | None = None
    sqr: Amount | None = None  # |G|^2 and
    var: Amount | None = None  # the variance of gradients, at the initial batch
    steps: Amount | None = None  # since the last report,
    step_s: Amount | None = None  # their mean time,
    gradient_s: Amount | None = None  # that of one gradient,
    wait_s: Amount | None = None  # and that of waiting for data in a step


class FlowWait(Struct, kw_only=True):
    """For what the next operation of a flow job waits.

    ``work``: the job has called none that is not done; ``nobody``: for nothing, it runs as soon as
    it is called; ``ready``: for its inputs; ``turn``: for its turn on a GPU, ``device``, after an
    operation of the job ``behind``, "" if that is not known.
    """

    what: Literal["work", "nobody", "ready", "turn"]
    device: Annotated[int, Meta(ge=0, lt=MAX_NODE_GPUS)] | None = None
    behind: Name = ""


class FlowAwaited(Struct, kw_only=True):
    """The operation for whose end the workers of a flow job stay on their GPUs."""

    operation: Name  # "" if that is not known
    device: Annotated[int, Meta(ge=0, lt=MAX_NODE_GPUS)]
    since_s: Time  # when it was first seen to run

    def __post_init__(self) -> None:
        """Check that the operation can be shown. Raises ValueError."""
        if not self.operation.isprintable():
            raise ValueError("text that can't be shown")


class FlowUse(Struct, kw_only=True):
    """Use of devices by a flow job. Lists have an entry for each of its workers."""

    devices: Annotated[  # GPUs of the node; -1: the worker has none
        list[Annotated[int, Meta(ge=-1, lt=MAX_NODE_GPUS)]], Meta(max_length=MAX_NODE_GPUS)
    ]
    share: list[Annotated[float, Meta(ge=0, le=1)]]  # part of the device's time that the job had
    held_bytes: list[Bytes]  # in the worker's store
    memory_bytes: Bytes  # the most that a store may have
    tickets_per_s: Amount  # operations that the island has let run, a second
    weight: Annotated[float, Meta(gt=0, lt=MAX_NUMBER)]
    outstanding: Count  # operations that were called and are not done
    slices: Annotated[list[list[Count]], Meta(max_length=MAX_SLICES)]  # numbers of workers
    waits: FlowWait
    awaited: FlowAwaited | None = None  # while the job is to be suspended, or to have other GPUs

    def __post_init__(self) -> None:
        """Check that each worker is told of, and no other one. Raises ValueError."""
        workers = len(self.devices)
        if not len(self.share) == len(self.held_bytes) == workers:
            raise ValueError("not as many entries as there are workers")
        if any(worker >= workers for each in self.slices for worker in each):
            raise ValueError("a slice of a worker that is not there")
        if not self.waits.behind.isprintable():
            raise ValueError("text that can't be shown")


class Progress(Struct, kw_only=True):
    """A job's progress, reported by its rank 0."""

    step: Count
    at_s: Time
    metrics: Annotated[dict[Name, Number | None], Meta(max_length=MAX_METRICS)]
    total: Whole | None = None  # steps in all
    samples: Whole | None = None
    total_samples: Whole | None = None
    batch: Whole | None = None
    loss: Number | None = None
    device_util: Number | None = None  # of the process's own device, where nothing else tells it,
    util_since_s: Seconds | None = None  # since then
    step_time_s: Seconds | None = None
    first_100_s: Seconds | None = None  # the time of its first 100 steps
    unsaved: str | None = None  # why the checkpoint that was asked for is not written yet
    adaptation: Adaptation | None = None
    phases: Any = None  # times of steps and validations: see rota.model.measured.phase_times
    flow: FlowUse | None = None  # of a flow job, by its agent

    def __post_init__(self) -> None:
        """Check that names and words can be shown. Raises ValueError."""
        if not all(map(str.isprintable, (*self.metrics, self.unsaved or ""))):
            raise ValueError("text that can't be shown")


class ModelSizes(Struct):
    """The bytes of all models of a job so far, and of the largest tensor in them."""

    model_bytes: Annotated[int, Meta(gt=0, le=MAX_MODEL_BYTES)]
    largest_tensor_bytes: Annotated[int, Meta(gt=0, le=MAX_MODEL_BYTES)]

    def __post_init__(self) -> None:
        """Check that no tensor is larger than its model. Raises ValueError."""
        if self.largest_tensor_bytes > self.model_bytes:
            raise ValueError("a tensor larger than the model")


class Planned(Struct):
    """A plan of layers: see :class:`rota.model.events.BurstPlanned`; ``idle`` is by rank."""

    batch: Annotated[int, Meta(ge=1, lt=MAX_COUNT)]
    step_s: Annotated[
        list[Annotated[float, Meta(gt=0, le=LONGEST_STEP_S)] | None],
        Meta(min_length=1, max_length=MAX_PLANNED_RANKS),
    ]
    idle: Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Check that a step is told of as many ranks as there are. Raises ValueError."""
        if len(self.idle) > len(self.step_s) or self.step_s[len(self.idle) - 1] is None:
            raise ValueError("no time of a step with the present ranks")


class MemoryCycle(Struct):
    """Device memory over a step: the least and the most, and the point of the least."""

    least_bytes: Bytes
    most_bytes: Bytes
    least_after: Literal["backward", "optimizer", "boundary"]

    def __post_init__(self) -> None:
        """Check that the least is not more than the most. Raises ValueError."""
        if self.least_bytes > self.most_bytes:
            raise ValueError("the least is more than the most")


ADAPTATION = Adaptation.__struct_fields__

# A report of a trial's metric: step, time, value or None, whether it is its process's first one.
MetricReport = tuple[Count, Seconds, Number | None, bool]


# -- from a worker to its agent --------------------------------------------------------------------


class Suspended(Struct, kw_only=True):
    """A rank has freed its device after so many steps, at that time."""

    step: Count
    stopped_s: Seconds
    keeps: str | None = None  # why its process can't end meanwhile


class Hello(Struct, kw_only=True):
    """A rank opens a session, or has found another agent. If it is suspended, see Suspended."""

    job_id: str
    attempt: Count
    rank: Count  # its slot
    generation: Count | None = None  # of the group that it formed last
    seat: Annotated[str, Meta(max_length=MAX_WORDS)] | None = None  # see Seated
    shards: Count | None = None


class At(Struct, kw_only=True):
    """The rank holds at the boundary after ``step`` steps, as the pause ``round`` asked."""

    step: Count


class Written(Struct, kw_only=True):
    """The rank's state is in the arena; ``bytes`` is its size."""

    bytes: Count


class Kept(Struct, kw_only=True):
    """The rank's state can't be written, for want of room if ``full``, and stays where it is."""

    error: str


class ElasticShards(Struct, kw_only=True):
    """The most ranks that can share the batches of the program."""

    shards: Count | None = None


class Tuned(Struct, kw_only=True):
    """The batches from now on; with a ``refusal``, the reason why they were not changed."""

    batch: Batch
    refusal: str | None = None


class Seated(Struct, kw_only=True):
    """The rank takes turns by this seat from now on, or by none."""

    key: Annotated[str, Meta(max_length=MAX_WORDS)] | None


class Failing(Struct, kw_only=True):
    """The process is about to end, because Rota was asked for something impossible.

    With ``again`` the next attempt can continue, because what it needs is written down.
    """

    error: str


class CurveText(Struct, kw_only=True):
    """Lines of a trial's reports that the disk had no room for, at its end."""

    text: str


class Hosting(Struct, kw_only=True):
    """The process has opened a meeting place for the next generation of its gang."""

    generation: Count | None = None
    port: Count


class InGeneration(Struct, kw_only=True):
    """The process has joined this generation, stays in the old one, or stands by outside."""

    generation: Count | None = None


class Broken(Struct, kw_only=True):
    """The rank's group failed, by its own fault if ``own``; it waits for a place in another."""

    generation: Count | None = None
    error: str


# Reports, sizes and memory cycles are not among these: what is wrong with one is passed over, and
# the program may go on talking. Nor are words without fields: resumed, ready, voted.
FROM_WORKER: dict[str, type[Struct]] = {
    "hello": Hello,
    "at": At,
    "suspended": Suspended,
    "written": Written,
    "kept": Kept,
    "elastic": ElasticShards,
    "tuned": Tuned,
    "seated": Seated,
    "failing": Failing,
    "curve": CurveText,
    "hosting": Hosting,
    "standing_by": InGeneration,
    "stayed": InGeneration,
    "formed": InGeneration,
    "broken": Broken,
}


# -- from an agent to the controller ---------------------------------------------------------------


class About(Struct, kw_only=True):
    """The attempt that a message is about; ``launch`` is the mark of its start."""

    job_id: str
    attempt: AttemptNumber
    launch: str | None = None


class Abilities(About, kw_only=True):
    """The ways in which an attempt can be suspended, moved and resized, with reasons."""

    suspension: Literal[tuple(kind.name.lower() for kind in Suspension)]  # type: ignore[valid-type]
    movable: bool
    resizable: bool | None = None
    portable: bool | None = None
    most_ranks: Count | None = None
    why: str | None = None
    started: str | None = None


ProgressIfAny = Annotated[Progress | None, Meta(description="a report")]


class CarriedOut(Struct, kw_only=True):
    """The last command that was carried out; the controller may have missed the answer."""

    command_id: Count
    at_s: Time
    stopped_s: Time | None = None


class Alive(Abilities, kw_only=True, tag_field="type", tag="alive"):
    """An attempt that has not ended."""

    done: CarriedOut | None = None


class Relayed(Struct, kw_only=True):
    """A word of an agent for that of another ``node`` of the same gang; from it when passed on."""

    node: str
    job_id: str
    attempt: AttemptNumber
    launch: str | None = None


class Arriving(About, tag_field="type", tag="arriving"):
    """An attempt that is on its way to the node."""


class Gone(About):
    """Nothing is left on the node of an attempt that it was told to end."""


class Ended(About, kw_only=True, tag_field="type", tag="ended"):
    """The processes of an attempt have ended. ``stop_asked``: they were told to."""

    at_s: Time
    exit_code: int
    message: str
    stop_asked: bool | None = None
    progress: ProgressIfAny = None  # the last report
    out_of_memory: bool | None = None  # whether it looks as if its memory, or its GPU's, ran out
    done: CarriedOut | None = None


class Lost(About, kw_only=True, tag_field="type", tag="lost"):
    """An attempt is lost."""

    error: str
    started: bool  # True if it ever began
    goes_on: bool | None = None  # True if the next attempt can continue from where it was
    rebooted: bool | None = None  # with its machine
    checkpointed: bool | None = None  # True if it has written something for the next attempt
    at_s: Time | None = None  # left out if no agent saw it
    progress: ProgressIfAny = None
    done: CarriedOut | None = None


class Account(Struct, kw_only=True, tag_field="type", tag="hello"):
    """An agent's account of its node, with which a connection begins. Curves may come before."""

    node: Annotated[str, Meta(min_length=1, description="the name of a node")]
    num_gpus: Annotated[
        int,
        Meta(ge=1, le=MAX_NODE_GPUS, description=f"a whole number from 1 to {MAX_NODE_GPUS}"),
    ]
    kind: Literal["cpu", "cuda"]
    attempts: list[Alive | Arriving | Ended | Lost]
    gpu_type: str | None = None
    memory_gb: Seconds | None = None  # of the GPU that has least
    millicores: Count | None = None  # thousandths of a CPU core that jobs may use
    host_memory_gb: Seconds | None = None  # of the machine, that jobs may use
    held_by: Name | None = None  # by what jobs are held to their cores
    agent: Name | None = None  # identifies the agent,
    start: Count = 0  # its process by the number of its start
    boot_id: Name = ""  # and by the life of its machine
    machine: Name = ""  # and by the machine, with the folder that the agent has there
    build: Name = ""  # the versions of its program
    wire: Count = 1  # the version of these messages
    data_port: Annotated[int, Meta(ge=1, le=65535)] | None = None  # where it hands pieces out
    asked_s: Seconds | None = None  # as in a beat
    guests: list[About] = []  # attempts of other nodes' agents that have processes here


class Beat(Struct, kw_only=True):
    """The agent lives. The answer renews its lease from ``asked_s`` of its CLOCK_BOOTTIME on."""

    asked_s: Seconds | None = None


class Done(Struct, kw_only=True):
    """A command is carried out, at that time. A suspended job stopped at ``stopped_s``.

    ``exit_code`` and ``saved`` are those of :class:`rota.model.events.JobSuspended`.
    """

    command_id: Count
    at_s: Time
    stopped_s: Time | None = None
    exit_code: int | None = None
    saved: str | None = None


class Failed(Struct, kw_only=True):
    """A command could not be carried out.

    With an ``obstacle``, see :mod:`rota.model.obstacle`, a launch is not to be tried again.
    """

    command_id: Count
    error: str
    obstacle: Name = ""


class Resized(About, kw_only=True):
    """The GPUs that an attempt's ranks are on: it has lost or replaced some by itself."""

    gpus: Annotated[list[Annotated[int, Meta(ge=0, lt=FURTHEST)]], Meta(min_length=1)]
    nodes: Annotated[list[Name], Meta(max_length=MAX_NODES)] | None = None  # see places
    cause: str = ""
    lost_ranks: Count = 0


class Cores(Struct, kw_only=True):
    """The node's CPU cores have changed, or that by which jobs are held to theirs, for ``why``."""

    millicores: Count
    held_by: Name
    why: str = ""


class GpuVitals(Struct, kw_only=True):
    """Use of a GPU by all programs; None: its driver does not tell."""

    busy: Annotated[float, Meta(ge=0, le=1)] | None = None  # part of the last second
    memory_used_bytes: Bytes | None = None


class Vitals(Struct, kw_only=True):
    """Use of a node's machine by all programs. ``gpus`` are the node's; slots have none."""

    cores_busy: Amount
    memory_bytes: Bytes
    memory_used_bytes: Bytes
    gpus: Annotated[list[GpuVitals], Meta(max_length=MAX_NODE_GPUS)]


class Refused(About, kw_only=True):
    """A batch was refused on so many ranks, for this reason."""

    batch: Batch
    gpus: Count
    error: str


class Reported(About, kw_only=True):
    """The last report, and what the agent measured of the attempt's processes."""

    progress: dict[str, Any]

    def __post_init__(self) -> None:
        """Check that the time is given. Raises ValueError."""
        if not _is(self.progress.get("at_s"), Time):
            raise ValueError("no time")


class Filling(About, kw_only=True):
    """How a background attempt has fared since the last such report, beside a job or alone.

    ``beside`` is the job's id. Its steps take ``slowdown`` times as long as alone, None if that is
    not known, and with 95 % confidence from ``low`` to ``high``, by so many ``pairs`` of segments;
    the background attempt ran for the part ``harvest`` of the time.
    """

    beside: str | None = None
    slowdown: Amount | None = None
    harvest: Annotated[float, Meta(ge=0, le=1)]
    low: Amount | None = None
    high: Amount | None = None
    pairs: Count = 0


class Idle(About, kw_only=True):
    """A running flow job has had no operation outstanding for the time that its user set.

    The time counts from the last operation, launch or resumption. Told once, and again after each
    welcome, for as long as the job calls nothing: the controller suspends it.
    """


class Called(About, kw_only=True):
    """A flow job that was told to be idle has called an operation, and is to go on.

    Told whether the job is suspended already or not: once, and again after each welcome until the
    job is resumed.
    """


class MemoryReport(About, kw_only=True):
    """Place of an attempt's state, and memory of a step: see the agent's ``memory()``."""

    memory: dict[str, Any]


class CurveReports(About, kw_only=True):
    """A trial's reports after the first so many. All earlier ones are sent before a hello."""

    since: Count
    reports: Annotated[
        list[MetricReport],
        Meta(description="a list of reports: step, time, value, whether it is first"),
    ]


class SetAside(About, kw_only=True):
    """Folders of others that were in the attempt's place."""

    what: str


class Fetch(Struct, kw_only=True):
    """The node asks another one for the state of an attempt, or for a piece of a file."""

    node: str
    job_id: str
    attempt: Count


FROM_AGENT: dict[str, type[Struct]] = {
    "hello": Account,
    "beat": Beat,
    "done": Done,
    "failed": Failed,
    "registered": Abilities,
    "resized": Resized,
    "cores": Cores,
    "vitals": Vitals,
    "refused": Refused,
    "model": About,
    "planned": About,
    "progress": Reported,
    "filling": Filling,
    "idle": Idle,
    "called": Called,
    "memory": MemoryReport,
    "curve": CurveReports,
    "ended": Ended,
    "lost": Lost,
    "gone": Gone,
    "set_aside": SetAside,
    "relay": Relayed,
    "fetch": Fetch,
    "fetched": Fetch,
    "answer": Answer,
}


# -- checks ----------------------------------------------------------------------------------------


def from_worker(line: bytes) -> Message:
    """A line of a worker as a message on which its agent can act. Raises AgentError.

    Reports and sizes are not looked at here. Sentences, which are kept and shown, are cut to
    MAX_SENTENCE characters.
    """
    message = decode(line)
    kind = message["type"]
    kinds = [FROM_WORKER[kind]] if kind in FROM_WORKER else []
    if kind == "hello" and message.get("suspended"):
        kinds.append(Suspended)
    for each in kinds:
        if (fault := fault_in(message, each)) is not None:
            raise AgentError(f"{kind}: its {fault.field} is {fault.value!r:.80}")
    for name in SENTENCES:
        if isinstance(message.get(name), str):
            message[name] = _short(message[name])
    return message


def check_from_agent(message: Message) -> None:
    """Refuse a message of an agent that is not as it is declared. One of an unknown kind passes.

    Raises AgentError, which names the field, its value and what it must be.
    """
    kind = FROM_AGENT.get(message["type"])
    fault = fault_in(message, kind) if kind is not None else None
    if fault is not None:
        raise AgentError(
            f"{fault.field}: {fault.value!r:.80} can't be used; it must be {fault.wanted}"
        )


def is_progress(message: Any) -> bool:
    """True if a report is well-formed: finite numbers, and a flat mapping of names to numbers."""
    return _is(message, Progress)


def progress_of(message: Message) -> Message:
    """The declared fields of a well-formed report, and no others.

    Times of phases that can't be are left out.
    """
    told = {key: message[key] for key in Progress.__struct_fields__ if key in message}
    for name in ("unsaved", "adaptation", "phases", "flow"):
        if told.get(name, ...) is None:
            del told[name]
    if "unsaved" in told:
        told["unsaved"] = told["unsaved"][:MAX_WORDS]
    if "adaptation" in told:
        told["adaptation"] = {key: told["adaptation"].get(key) for key in ADAPTATION}
    if "phases" in told:
        try:
            told["phases"] = {each.phase: each.told() for each in read_phases(told)}
        except InputError:
            del told["phases"]
    return told


def is_flow_use(told: Any) -> bool:
    """True if this tells what a flow job does on its devices."""
    return _is(told, FlowUse)


def is_metric_report(report: Any) -> bool:
    """True if this is a :data:`MetricReport`, as a list."""
    return isinstance(report, list) and _is(report, MetricReport)


def is_model(message: Any) -> bool:
    """True if this tells the size of a model in bytes, and of the largest tensor in it."""
    return _is(message, ModelSizes)


def planned_of(message: Any) -> Message | None:
    """The declared fields of a well-formed plan of layers, and no others; None if it is none."""
    try:
        told: Message = msgspec.to_builtins(msgspec.convert(message, Planned))
    except msgspec.ValidationError:
        return None
    return told


def is_memory_cycle(message: Any) -> bool:
    """True if this tells how much device memory a step takes, and after what it is least."""
    return _is(message, MemoryCycle)


def _is(message: Any, kind: Any) -> bool:
    try:
        msgspec.convert(message, kind)
    except msgspec.ValidationError:
        return False
    return True


def _short(sentence: str) -> str:
    """The sentence, cut to MAX_SENTENCE characters that can be written in UTF-8."""
    end = "..." if len(sentence) > MAX_SENTENCE else ""
    return sentence[: MAX_SENTENCE - len(end)].encode("utf-8", "replace").decode() + end
