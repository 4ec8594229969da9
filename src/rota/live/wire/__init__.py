"""Messages between controller, agents and workers.

Each is one JSON object with a ``type``. Between an agent and a worker they are lines on a Unix
socket; between the controller and an agent they are text frames of a WebSocket, or binary frames
where raw bytes follow the line: pieces of the state of a job that moves to another node.

What agents hear of workers, and controllers of agents, is declared in
:mod:`rota.live.wire.messages`. What is told in the other direction:

| from, to | type | fields |
| --- | --- | --- |
| agent, worker | pause | gang: whether to hold and answer ``at`` before suspending; round |
| | run_to | step: go on and hold there |
| | offload | suspend now |
| | resume | device: index of the GPU to go on with, or null |
| | vacate | path, round: write the state into an arena there, while suspended |
| | end | the state is in the arena: end with the exit code VACATED |
| | tune | batch, [0, 0] for the job's own |
| | cpus | millicores: thousandths of a CPU core for all ranks, or null: any number |
| | vote | all hold at this step: vote in the process group |
| | host | generation, address: open its meeting place there |
| | form | generation, host, port, rank, world, senders: meet the others, after a second vote |
| | standby | generation: leave the group, after a second vote |
| | give_up | generation: not all will come to the meeting place |
| | park | free the device, and wait to come back |
| | leave | end |
| controller, agent | welcome | epoch; certificate, key: to hand pieces out with, if it listens |
| | lease | to a machine that has joined: asked_s, of its beat or hello; lasts_s, from then on, or |
| | | null: for ever; now_s: the controller's time |
| | command | kind, command_id, epoch, job_id, attempt; gpus; batch: samples at once |
| | | of a rank, and how often it accumulates, or null; for a launch program, name, at_s, |
| | | max_gpus, adapt: most, least_per_gpu, most_per_gpu, min_gpus; of a flow job flow: |
| | | weight, memory_bytes: the most on each GPU, or null, and idle_s: seconds without an |
| | | operation until it is idle, or null: never; for migrate |
| | | and park source: the node where the state lies; for launch, resume, resize, migrate |
| | | and setcpus millicores: thousandths of a CPU core that the job may use on the node, or |
| | | null: any number |
| | guest | job_id, attempt, origin, program, name, max_gpus, adapt, as for a launch; host: the |
| | | node whose agent has the attempt, and may have processes here, on gpus; millicores: |
| | | what they may use of the CPU cores, or null: any number |
| | kill | job_id, attempt: no job should have it; or why: it is to be lost for that |
| | disown | job_id, attempt, launch: it is of another event log; end it and say nothing of it |
| | rejected | error: what is wrong with its hello; the connection ends |
| | forget | job_id, attempt: its end is written down |
| | drop | job_id, attempt: it is on another node, or over; leave nothing of it; with |
| | | ``answers``, which a kill may have as well, tell by ``gone`` when nothing is left |
| | removed | the node's token is revoked: end with all jobs |
| | shutdown | |
| | admit | job_id, attempt, ticket: hand pieces out to who shows it, once; null: no longer |
| | ticket | job_id, attempt, ticket, host, port, certificate: fetch pieces there; ticket |
| | | null: no longer |
| | ask | number, question: see :mod:`rota.live.wire.questions` |
| agent, agent | fetch | node, epoch, job_id, attempt; want: state, or file and offset |
| | fetched | node, job_id, attempt; want, record, files (name, slot, bytes, left_out: a gap |
| | | from one offset to another, or null), state_id; or file, offset, checksum, and |
| | | then the bytes; or error, or wait: not yet, or away: the node is not connected |

What is about an attempt has its ``launch`` as well, between controller and agents: the mark of the
one event log, and the one moment, in which it was started; a command has its job's ``origin``, too.
What agents tell one another goes through the controller, which adds the ``asker`` to a ``fetch``;
pieces go directly where they can: see :mod:`rota.live.wire.pieces`.
"""

import json
import struct
from typing import Any

from rota.errors import AgentError

Message = dict[str, Any]

VERSION = 3  # of what controller and agents tell each other; the one before is understood as well

# A rank's pulse, a file that its agent reads: phase, since when (CLOCK_MONOTONIC), seconds of its
# own computation, samples. It is in its own step, waits for other ranks, or is in a validation.
PULSE = struct.Struct("=qddd")
COMPUTING, WAITING, EVALUATING = 0, 1, 2

GANG_SECRET = "ROTA_GANG_SECRET"  # noqa: S105 - the variable that tells ranks their secret
METRICS = "metrics.jsonl"  # in an attempt's folder: every report of rank 0
VACATED = 83  # the exit code of a worker whose state is in an arena, as it was asked to
UNREADABLE = 84  # of one whose state in an arena is of other versions of Python or torch
MAX_LINE_BYTES = 1 << 20
PIECE_BYTES = 1 << 20  # of a file on its way to another node
MOST_METRIC_REPORTS = 10_000  # of one attempt of a trial
MAX_NUMBER = 1e300
MAX_PLANNED_RANKS = 256  # for so many a program tells how long its steps would take


def encode(message: Message) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=True).encode() + b"\n"


def decode(line: bytes | str) -> Message:
    """One line or frame as a message. Raises AgentError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise AgentError(f"not a message: {line[:80]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise AgentError(f"a message without a type: {line[:80]!r}")
    return message


def pack(message: Message, piece: bytes) -> bytes:
    """A message with raw bytes after it, as a binary frame."""
    return encode(message) + piece


def unpack(frame: bytes) -> tuple[Message, bytes]:
    """The inverse of :func:`pack`. Raises AgentError."""
    line, newline, piece = frame.partition(b"\n")
    if not newline or len(piece) > PIECE_BYTES:
        raise AgentError(f"not a piece of a file: {frame[:80]!r}")
    return decode(line), piece


def split(buffer: bytearray) -> list[Message]:
    """Take the whole lines off the front of ``buffer``, as messages. Raises AgentError."""
    end = buffer.rfind(b"\n")
    if end < 0:
        if len(buffer) > MAX_LINE_BYTES:
            raise AgentError("a message is longer than 1 MiB")
        return []
    lines = bytes(buffer[:end]).split(b"\n")
    del buffer[: end + 1]
    return [decode(line) for line in lines]
