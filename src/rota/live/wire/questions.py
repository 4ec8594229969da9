"""Questions of a controller to an agent about files of its node, and the agent's answers.

To have files removed is a question as well: it can be asked again, and its answer is awaited.

An ``ask`` of the controller carries a number and a question, the agent's ``answer`` the same number
and what it has found. Agents of before don't know the question, and say nothing.
"""

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from rota.live.wire import Message

MOST_ANSWER_BYTES = 1 << 18  # of an output in one answer
MOST_FOLDERS = 8  # in one question

Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


# -- questions -------------------------------------------------------------------------------------


class OfAttempt(Struct, kw_only=True):
    """An attempt, and the node that its files are on."""

    node: str
    job_id: str
    attempt: Number


class AskOutput(OfAttempt, tag_field="type", tag="output"):
    """A piece of what a process has printed, from ``offset`` on or of the last ``tail`` lines.

    Without ``process`` it is the first that had the rank, or with ``tail`` the last; without
    ``rank`` rank 0, or the rank that failed. ``since_s``: only lines that were printed at this time
    or later; ``times``: with the times of lines. ``over``: the attempt prints nothing any more.
    ``started``: it has run, so that there must be an output. As long as there is nothing to tell
    the answer may take ``wait_s``; agents of before answer at once.
    """

    rank: Number | None = None
    process: Number | None = None
    offset: Number = 0
    limit: Number = MOST_ANSWER_BYTES
    tail: Number | None = None
    over: bool = False
    since_s: float | None = None
    times: bool = False
    started: bool = False
    wait_s: float = 0.0


class AskRanks(OfAttempt, tag_field="type", tag="ranks"):
    """The processes that are the ranks of an attempt, or were at its end."""


class AskLogs(OfAttempt, tag_field="type", tag="logs"):
    """The files that tell what an attempt which has ended has printed, when, and as which rank."""


class ReadLog(OfAttempt, tag_field="type", tag="log"):
    """The bytes from ``offset`` on of one of these files, or from the end of a gap there."""

    name: str
    offset: Number


class AskCheckpoints(Struct, tag_field="type", tag="checkpoints"):
    """The folder of a job's checkpoints, and whether anything is in it."""

    job_id: str


class AskFolders(Struct, tag_field="type", tag="folders"):
    """The reasons why processes of jobs can't enter these folders."""

    paths: Annotated[list[str], Meta(max_length=MOST_FOLDERS)]


class Clean(Struct, kw_only=True, tag_field="type", tag="clean"):
    """Remove what a job that has ended has left on a node, with ``checkpoints`` these as well.

    ``origin`` tells it from others that had its id. With ``dry_run`` only tell how much that is.
    """

    node: str
    job_id: str
    origin: str
    checkpoints: bool
    dry_run: bool = False


FileQuestion = AskOutput | AskRanks | AskLogs | ReadLog | AskCheckpoints | Clean
Question = FileQuestion | AskFolders


class Ask(Struct):
    """A question, to be answered under its number."""

    number: Number
    question: Question


# -- answers ---------------------------------------------------------------------------------------


class LinesAt(NamedTuple):
    """The number of lines, one after another, that were printed by a time, and that time."""

    lines: int
    at_s: float


class Output(Struct, kw_only=True, tag_field="type", tag="output"):
    """A piece of one process's output, which has ``size`` bytes so far.

    ``rank`` is what the process has, or had at the end. ``next_process`` has the rank after it.
    ``complete``: nothing will ever follow ``next_offset``. ``times`` are those of all lines in the
    text, of which the first may have begun before it; None if they were not asked for or kept. If
    ``node`` is another node, the output is there, and all else but the process is yet to be asked.
    """

    process: Number
    next_process: Number | None = None
    rank: Number | None = None
    text: str = ""
    offset: Number
    next_offset: Number
    size: Number = 0
    complete: bool
    times: list[LinesAt] | None = None
    node: str = ""


class RankProcess(Struct):
    """The process of a rank: its number in order of start, its pid on the node, its GPU.

    ``node`` is "" for the node that is asked.
    """

    process: Number
    pid: Number | None
    gpu: Number
    node: str = ""


class RankList(Struct, tag_field="type", tag="ranks"):
    """The processes of all ranks, in their order; none as long as nothing is written down."""

    ranks: list[RankProcess]


class LogFiles(Struct, tag_field="type", tag="logs"):
    """The names of these files, each with its size."""

    sizes: dict[str, Number]


class LogBytes(Struct, tag_field="type", tag="log"):
    """Bytes of a file, the first of which is at ``offset``; none at its end."""

    offset: Number
    data: bytes


class CheckpointFolder(Struct, tag_field="type", tag="checkpoints"):
    """The folder of a job's checkpoints, which may not exist yet."""

    path: str
    holds_any: bool


class FolderObstacles(Struct, tag_field="type", tag="folders"):
    """Folders that processes of jobs, of this user, can't enter, each with the reason."""

    user: str
    obstacles: dict[str, str]


class Freed(Struct, tag_field="type", tag="freed"):
    """Files are removed, or would be, that take so many bytes of the disk."""

    num_bytes: Number


class NoAnswer(Struct, tag_field="type", tag="none"):
    """There is nothing to tell, for this reason.

    ``not_here``: the node has no files of the attempt. ``wrong``: it never had such a process, or
    has its output no longer.
    """

    error: str
    not_here: bool = False
    wrong: bool = False


Found = (
    Output | RankList | LogFiles | LogBytes | CheckpointFolder | FolderObstacles | Freed | NoAnswer
)


class Answer(Struct):
    """The answer to the question with this number."""

    number: Number
    found: Found


def ask_message(number: int, question: Question) -> Message:
    """The message that carries a question."""
    told: dict[str, Any] = msgspec.to_builtins(Ask(number, question))
    return {"type": "ask", **told}


def answer_message(number: int, found: Found) -> Message:
    """The message that carries an answer."""
    told: dict[str, Any] = msgspec.to_builtins(Answer(number, found))
    return {"type": "answer", **told}


def ask_of(message: Message) -> Ask:
    """The question that a message carries. Raises ValueError."""
    return msgspec.convert(message, Ask)


def answer_of(message: Message) -> Answer:
    """The answer that a message carries. Raises ValueError."""
    return msgspec.convert(message, Answer)
