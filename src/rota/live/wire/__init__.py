"""Messages between controller, agents and workers.

Each is one JSON object with a ``type``. Between an agent and a worker they are lines on a Unix
socket; between the controller and an agent they are text frames of a WebSocket, or binary frames
where raw bytes follow the line: pieces of the state of a job that moves to another node.

| from, to | type | fields |
| --- | --- | --- |
| worker, agent | hello | job_id, attempt, rank, suspended (then stopped_s, keeps), step, model |
| | report | step, total, samples, total_samples, batch, loss, step_time_s, metrics, at_s, |
| | | first_100_s, device_util (on a CPU), util_since_s, adaptation: see ADAPTATION; |
| | | unsaved: why the checkpoint that was asked for is not written yet, or null |
| | model | model_bytes, largest_tensor_bytes: of all models so far; null in a hello without |
| | memory | least_bytes, most_bytes, least_after: device memory over a step; also in a hello |
| | curve | text: lines of its reports that the disk had no room for, at its end |
| | at | step: it holds at the boundary after this many steps; round: of the pause it answers |
| | suspended | step, stopped_s, at_s; keeps: why its process can't end meanwhile, or null |
| | written | round, bytes: the state is in the arena |
| | kept | round, error, full (no room): the state can't be written, and stays where it is |
| | resumed | at_s |
| | failing | error: it is about to end, because Rota was asked for what can't be; again: whether |
| | | the next attempt can go on, because that is written down |
| | tuned | batch; refusal: null if it is so from now on, else why not |
| | elastic | shards: as many ranks can share its batches; also in a hello |
| | ready | a newcomer has warmed up, or one that was parked waits to come back |
| | voted | it has seen in the process group that all others hold, too |
| | hosting | generation, port: of the meeting place that it has opened |
| | stayed | generation: the second vote has failed for all, and nobody has left |
| | standing_by | it has left its group, and keeps the state until it is parked or told to leave |
| | formed | generation: it has met the others, and has the state |
| | broken | generation, error: its group failed; it waits for a place in another |
| agent, worker | pause | gang: whether to hold and answer ``at`` before suspending; round |
| | run_to | step: go on and hold there |
| | offload | suspend now |
| | resume | device: index of the GPU to go on with, or null |
| | vacate | path, round: write the state into an arena there, while suspended |
| | end | the state is in the arena: end with the exit code VACATED |
| | tune | batch, [0, 0] for the job's own |
| | vote | all hold at this step: vote in the process group |
| | host | generation: open its meeting place |
| | form | generation, host, port, rank, world, senders: meet the others, after a second vote |
| | standby | generation: leave the group, after a second vote |
| | give_up | generation: not all will come to the meeting place |
| | park | free the device, and wait to come back |
| | leave | end |
| agent, controller | hello | node, num_gpus, kind, gpu_type, memory_gb, attempts (also arriving); |
| | | agent: which of all agents it is |
| | done, failed | command_id; at_s, stopped_s; error |
| | registered | job_id, attempt, suspension, movable, resizable, most_ranks, portable, why |
| | resized | job_id, attempt, gpus, cause, lost_ranks: by itself, not by a command |
| | refused | job_id, attempt, batch, gpus: the number of its ranks; error: why it does not go |
| | model | job_id, attempt, model_bytes, largest_tensor_bytes |
| | progress | job_id, attempt, progress: the last report, and what the agent measured |
| | memory | job_id, attempt, memory: see ``Attempt.memory`` |
| | curve | job_id, attempt, since: so many were told before; reports: step, at_s, value or |
| | | null, whether it is its process's first one. All so far come before a hello |
| | ended | job_id, attempt, at_s, exit_code, message, stop_asked; progress: the last, if any |
| | lost | job_id, attempt, error, started; goes_on: true if it can go on from where it was; |
| | | at_s: left out if no agent saw it; progress; checkpointed: it has written something |
| | | for the next attempt; rebooted: with its machine |
| | set_aside | job_id, attempt, what: folders of others that were in its place |
| controller, agent | welcome | epoch |
| | command | kind, command_id, epoch, job_id, attempt; gpus; batch: samples at once |
| | | of a rank, and how often it accumulates, or null; for a launch program, name, at_s, |
| | | max_gpus, adapt: most, least_per_gpu, most_per_gpu, min_gpus; for a migration |
| | | source: the node where the state lies |
| | kill | job_id, attempt: no job should have it |
| | disown | job_id, attempt, launch: it is of another event log; end it and say nothing of it |
| | rejected | error: what is wrong with its hello; the connection ends |
| | forget | job_id, attempt: its end is written down |
| | drop | job_id, attempt: it is on another node, or over; leave nothing of it |
| | shutdown | |
| agent, agent | fetch | node, epoch, job_id, attempt; want: state, or file and offset |
| | fetched | node, job_id, attempt; want, record, files (name, slot, bytes, left_out: a gap |
| | | from one offset to another, or null), state_id; or file, offset, checksum, and |
| | | then the bytes; or error, or wait: not yet, or away: the node is not connected |

What is about an attempt has its ``launch`` as well, between controller and agents: the mark of the
one event log, and the one moment, in which it was started; a command has its job's ``origin``, too.
What agents tell one another goes by way of the controller, which adds the ``asker`` to a ``fetch``.
"""

import json
import struct
from collections.abc import Callable
from typing import Any

from rota.errors import AgentError

Message = dict[str, Any]

# A rank's pulse, a file that its agent reads: phase, since when (CLOCK_MONOTONIC), seconds of its
# own computation, samples. It is in its own step, waits for other ranks, or is in a validation.
PULSE = struct.Struct("=qddd")
COMPUTING, WAITING, EVALUATING = 0, 1, 2

METRICS = "metrics.jsonl"  # in an attempt's folder: every report of rank 0
VACATED = 83  # the exit code of a worker whose state is in an arena, as it was asked to
MAX_LINE_BYTES = 1 << 20
PIECE_BYTES = 1 << 20  # of a file on its way to another node
MAX_METRICS, MAX_NAME, MAX_NUMBER = 1000, 200, 1e300
MOST_METRIC_REPORTS = 10_000  # of one attempt of a trial
MAX_WORDS = 500  # characters
MAX_MODEL_BYTES = 1 << 60
MAX_COUNT = 1 << 62
MAX_SECONDS = 1e11  # since 1970, or of a step

SENTENCES = ("error", "refusal", "keeps")
MAX_SENTENCE = 1000

WHOLE = ("step", "total", "samples", "total_samples", "batch")
SECONDS = ("step_time_s", "first_100_s", "util_since_s")
NUMBERS = ("loss", "device_util", *SECONDS)
# Of batches that the scheduler chooses: the samples of the initial one, the largest, the least and
# the most on a GPU at once; of the present one, on how many GPUs, on one at once, and how often
# gradients are accumulated; statistical progress in initial batches; samples in an epoch; |G|^2 and
# the variance of gradients at the initial size; so many steps since the last report, their mean
# time, and that of one gradient.
ADAPTATION = (
    *("initial", "most", "least_per_gpu", "most_per_gpu", "size", "gpus", "per_gpu"),
    "accumulation",
    *("scaled_steps", "epoch_samples", "sqr", "var", "steps", "step_s", "gradient_s"),
)


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
    """What :func:`pack` was given. Raises AgentError."""
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


def from_worker(line: bytes) -> Message:
    """A line of a worker as a message on which its agent can act. Raises AgentError.

    Any program can write to the agent's socket. Reports and sizes are not looked at here: what is
    wrong with them is passed over, and the program may go on talking. Sentences, which are kept and
    shown, are cut to MAX_SENTENCE characters.
    """
    message = decode(line)
    kind = message["type"]
    names = _NEEDED.get(kind, ())
    if kind == "hello" and message.get("suspended"):
        names += _NEEDED["suspended"]
    for name in names:
        if not _SOUND[name](message.get(name)):
            raise AgentError(f"{kind}: its {name} is {message.get(name)!r:.80}")
    for name in SENTENCES:
        if isinstance(message.get(name), str):
            message[name] = _short(message[name])
    return message


def is_progress(message: Message) -> bool:
    """Whether a report is well-formed: finite numbers, and a flat mapping of names to numbers."""
    whole = all(
        message.get(key) is None
        or (_is_number(message[key], int) and abs(message[key]) < MAX_COUNT)
        for key in WHOLE
    )
    numbers = all(message.get(key) is None or _is_number(message[key]) for key in NUMBERS)
    seconds = all(message.get(key) is None or _is_seconds(message[key]) for key in SECONDS)
    metrics = message.get("metrics")
    return (
        whole
        and numbers
        and seconds
        and _is_count(message.get("step"))
        and _is_seconds(message.get("at_s"))
        and _is_adaptation(message.get("adaptation"))
        and _is_words(message.get("unsaved"))
        and isinstance(metrics, dict)
        and len(metrics) <= MAX_METRICS
        and all(
            len(name) <= MAX_NAME and name.isprintable() and (value is None or _is_number(value))
            for name, value in metrics.items()
        )
    )


def progress_of(message: Message) -> Message:
    """What a well-formed report tells, and nothing else that may be in it."""
    told = {key: message[key] for key in (*WHOLE, *NUMBERS, "at_s", "metrics") if key in message}
    if message.get("unsaved") is not None:
        told["unsaved"] = message["unsaved"][:MAX_WORDS]
    if message.get("adaptation") is not None:
        told["adaptation"] = {key: message["adaptation"].get(key) for key in ADAPTATION}
    return told


def is_metric_report(report: Any) -> bool:
    """Whether this is a report of a trial's metric: step, time, value or None, whether it is the
    first one of its process."""
    if not isinstance(report, list) or len(report) != 4 or type(report[3]) is not bool:
        return False
    step, at_s, value, _ = report
    return _is_count(step) and _is_seconds(at_s) and (value is None or _is_number(value))


def is_model(message: Any) -> bool:
    """Whether this tells the size of a model in bytes, and of the largest tensor in it."""
    if not isinstance(message, dict):
        return False
    model, largest = message.get("model_bytes"), message.get("largest_tensor_bytes")
    whole = type(model) is int and type(largest) is int  # True and False are none
    return whole and 0 < largest <= model <= MAX_MODEL_BYTES  # type: ignore[operator]


def is_memory_cycle(message: Any) -> bool:
    """Whether this tells how much device memory a step takes, and after what it is least."""
    if not isinstance(message, dict):
        return False
    least, most = message.get("least_bytes"), message.get("most_bytes")
    whole = type(least) is int and type(most) is int
    known = message.get("least_after") in ("backward", "optimizer", "boundary")
    return known and whole and 0 <= least <= most <= MAX_MODEL_BYTES  # type: ignore[operator]


def _short(sentence: str) -> str:
    """At most MAX_SENTENCE characters of it, which can be written in UTF-8."""
    end = "..." if len(sentence) > MAX_SENTENCE else ""
    return sentence[: MAX_SENTENCE - len(end)].encode("utf-8", "replace").decode() + end


def _is_adaptation(value: Any) -> bool:
    """Numbers from 0, of which some may not be known."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    found = (value.get(key) for key in ADAPTATION)
    return all(number is None or (_is_number(number) and number >= 0) for number in found)


def _is_words(value: Any) -> bool:
    """Text that can be shown, if any."""
    return value is None or (isinstance(value, str) and value.isprintable())


def _is_batch(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


def _is_number(value: Any, kind: Any = int | float) -> bool:
    """A number that fits a float exactly or closely; surrogates and giants have no place here."""
    return isinstance(value, kind) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT  # True and False are none


def _is_seconds(value: Any) -> bool:
    return _is_number(value) and 0 <= value < MAX_SECONDS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# The fields without which a worker's message means nothing, and what they have to be.
_NEEDED: dict[str, tuple[str, ...]] = {
    "hello": ("job_id", "attempt", "rank", "generation", "shards"),
    "at": ("step",),
    "suspended": ("step", "stopped_s", "keeps"),
    "written": ("bytes",),
    "kept": ("error",),
    "elastic": ("shards",),
    "tuned": ("batch", "refusal"),
    "failing": ("error",),
    "curve": ("text",),
    "hosting": ("generation", "port"),
    "standing_by": ("generation",),
    "stayed": ("generation",),
    "formed": ("generation",),
    "broken": ("generation", "error"),
}
_SOUND: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("attempt", "rank", "step", "bytes", "port"), _is_count),
    **dict.fromkeys(("job_id", "error", "text"), _is_text),
    "stopped_s": _is_seconds,
    **dict.fromkeys(("keeps", "refusal"), lambda value: value is None or _is_text(value)),
    "batch": _is_batch,
    # What an older library does not know, or nobody knows yet, is left out.
    **dict.fromkeys(("generation", "shards"), lambda value: value is None or _is_count(value)),
}
