"""The record of an attempt, kept on disk so that the next agent can take the attempt over.

``attempt.json`` in the attempt's folder is a :class:`Record`. Agents of before wrote the same
fields without a version; what they did not know yet has a default here. Fields at their default
are not written.
"""

from typing import Any

import msgspec

from rota.live.agent.method import STOP, Method
from rota.model.job import MAX_SLOWDOWN

VERSION = 1  # of the fields and what they mean


class Vacated(msgspec.Struct, frozen=True, omit_defaults=True):
    """Place of the state of an attempt without processes: arenas, or its own checkpoint.

    ``arenas`` are paths by slot; none for a job that continues from a checkpoint of its own.
    ``bytes`` is what they hold, None if there are none. Until ``grace_ends_s`` processes that were
    asked to end may write their checkpoint; it is None once they have ended. They were asked at
    ``asked_boottime_s`` of CLOCK_BOOTTIME, which nobody sets.
    """

    arenas: dict[str, str]
    bytes: int | None
    at_s: float
    step: int | None = None
    grace_ends_s: float | None = None
    asked_boottime_s: float | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """Device memory that the CUDA driver has moved to the host.

    It came from these GPUs; ``moves`` is True if the processes can continue on others.
    """

    gpus: list[int]
    moves: bool


class LastAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last command that was carried out, and when; a suspension stopped it at ``stopped_s``.

    Until it ``is_final`` some of what belongs to it is to follow.
    """

    command_id: int
    at_s: float
    stopped_s: float | None = None
    is_final: bool = True


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One attempt of a job. GPUs are indexes on the node, times are seconds since 1970.

    A *slot* is a process: the first ``slots`` whole numbers have been used. ``members`` are those
    that train together, by rank, ``gpus`` the GPU of each, ``leaders`` those that have been rank 0,
    one after another, and ``lives`` how often a slot came back from an arena.
    """

    version: int
    job_id: str
    attempt: int
    slots: int
    members: list[int]
    gpus: list[int]
    max_world: int  # the most members that it may have
    movable: bool  # True if its processes can change their GPU
    visible: list[int] | None  # the GPUs that its processes see, None where there are none
    suspension: str  # "boundary" if all ranks have one session, else "process"
    launch: str | None = None  # the mark that tells it from others with the same number
    name: str = ""
    program: dict[str, Any] = {}
    leaders: list[int] = msgspec.field(default_factory=lambda: [0])
    generation: int = 0  # of the process group of the members
    adapt: dict[str, int | None] | None = None  # limits of batches that the scheduler chooses
    method: Method = Method(STOP, "")  # the suspension without a session
    launched_s: float = 0.0
    command_id: int | None = None  # of its launch
    answer: LastAnswer | None = None  # that the controller may not have heard
    boot_id: str | None = None  # of the boot in which its processes were started
    secret: str | None = None  # the tags of its processes are made from it
    lives: dict[str, int] = {}
    suspended_s: float | None = None  # time of the suspension, while it is suspended
    vacated: Vacated | None = None  # while it has no processes
    checkpoint: Checkpoint | None = None  # while its device memory is on the host
    source: str | None = None  # the node that it comes from, until it has gone on or stays here
    parked: int | None = None  # the command by which it came here to wait, until it has gone on
    fallback: str | None = None  # why it was only stopped, and not suspended by its method
    frozen: bool = False  # True if it was stopped where it was, and not at a boundary
    stays: bool = False  # True if it has device memory that can't follow it to another GPU
    keeps: str | None = None  # a rank's reason why its process can't end
    batch: list[int] | None = None  # the requested batch, until a rank reports that it has it
    background: bool = False  # True if it uses what foreground jobs leave of its GPU
    max_slowdown: float = MAX_SLOWDOWN  # that it allows background jobs to cause, as a factor
    # Of a flow job: its weight, memory_bytes, idle_s; devices: the GPU of each worker, -1: none.
    flow: dict[str, Any] | None = None
    millicores: int | None = None  # thousandths of a CPU core that it may use; None: any number
    refused: dict[str, Any] | None = None  # the last batch that did not go
    model: dict[str, int] | None = None  # sizes that rank 0 has told
    planned: dict[str, Any] | None = None  # the plan of layers that rank 0 has told last
    origin: str | None = None  # see rota.live.agent.claim
    # Of an attempt on several nodes: these, by name and address, its own one first; and by slot the
    # positions of those that are not here. GPUs are places then: see rota.live.wire.places.
    nodes: list[dict[str, str]] = []
    far: dict[str, int] = {}
    host: str | None = None  # of a guest: the node whose agent has the attempt
    address: str = ""  # of a guest: this node's, for others
    killed: str | None = None  # why the controller had its processes killed
    failed: int | None = None  # the process whose error ended the job
    started: str = ""  # how its program was started last; see ProgramStart.told


def record_from(raw: object) -> Record:
    """The record that was written as this JSON value. Raises ValueError that names the field."""
    if not isinstance(raw, dict):
        raise ValueError(f"a record must be an object, not {raw!r:.80}")
    version = raw.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"version: {version!r:.80} is not known here; it must be {VERSION}")
    try:
        return msgspec.convert(raw | {"version": version}, Record)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def json_of(kept: Record | Vacated | None) -> Any:
    """A record, or a part of it, as a JSON value: a copy that later changes leave alone."""
    return msgspec.to_builtins(kept)
