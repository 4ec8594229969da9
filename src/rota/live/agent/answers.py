"""Answers to the controller's questions about files of this node: outputs, ranks, checkpoints.

Files are read in threads, so that a slow disk keeps nobody waiting but who has asked.
"""

import asyncio
import re
import stat
from pathlib import Path

from rota.errors import AgentError, NotFoundError, shortage_of
from rota.folder import Folder
from rota.live.agent.cleaning import clean
from rota.live.agent.entering import FolderLooks, user_name
from rota.live.agent.line_times import LineTimes, read_times
from rota.live.agent.log_pieces import Piece, line_offset, read_bytes, read_piece, tail_offset
from rota.live.agent.ranks import ENDED, Ranks, read_ranks, record_of
from rota.live.wire import Message
from rota.live.wire.questions import (
    MOST_ANSWER_BYTES,
    Ask,
    AskCheckpoints,
    AskFolders,
    AskLogs,
    AskOutput,
    AskRanks,
    CheckpointFolder,
    Clean,
    FileQuestion,
    FolderObstacles,
    Found,
    Freed,
    LinesAt,
    LogBytes,
    LogFiles,
    NoAnswer,
    Output,
    RankList,
    RankProcess,
    ReadLog,
    answer_message,
)

LOOK_AGAIN_S = 0.1  # at an output that somebody follows
MOST_WAIT_S = 60.0
LOG_FILE = re.compile(r"rank[0-9]+\.(log|times)")


async def answer(folder: Folder, node: str, ask: Ask, looks: FolderLooks) -> Message:
    """The message that answers a question to the agent of a node."""
    found: Found
    try:
        if isinstance(ask.question, AskFolders):
            found = FolderObstacles(user_name(), await looks.obstacles(ask.question.paths))
        else:
            found = await find(folder, node, ask.question)
    except RuntimeError as error:
        if (shortage := shortage_of(error)) is None:
            raise
        found = NoAnswer(f"node {node}: {shortage}")
    return answer_message(ask.number, found)


async def find(folder: Folder, node: str, question: FileQuestion) -> Found:
    """The answer of :func:`look_up`, for which an AskOutput may wait a while."""
    wait_s = min(question.wait_s, MOST_WAIT_S) if isinstance(question, AskOutput) else 0.0
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        found = await asyncio.to_thread(look_up, folder, node, question)
        is_news = not isinstance(found, Output) or found.text or found.complete or found.node
        if is_news or asyncio.get_running_loop().time() >= deadline:
            return found
        await asyncio.sleep(LOOK_AGAIN_S)


def look_up(folder: Folder, node: str, question: FileQuestion) -> Found:
    """The answer to a question; :class:`NoAnswer` with the reason if there is none."""
    try:
        if isinstance(question, AskCheckpoints):
            return _checkpoints(folder.checkpoints(question.job_id))
        if isinstance(question, Clean):
            num_bytes = clean(folder, node, question)
            if num_bytes is None:
                return _none_of(question.node, node)
            return Freed(num_bytes)
        attempt = folder.attempt(question.node, question.job_id, question.attempt)
        is_there = attempt.is_dir()
        if question.node != node and not is_there:
            attempt = folder.copies(question.node, question.job_id) / str(question.attempt)
            is_there = attempt.is_dir()
            if not is_there:
                return _none_of(question.node, node)
        if isinstance(question, AskRanks):
            return _ranks(read_ranks(attempt))
        if isinstance(question, AskLogs):
            return _log_files(attempt)
        if isinstance(question, ReadLog):
            return _log_bytes(attempt, question)
        if question.started and not is_there:
            what = f"the output of job {question.job_id} is no longer there"
            return NoAnswer(f"{what}: its folder {attempt} on node {node} is gone", wrong=True)
        return _output(attempt, question)
    except NotFoundError as error:
        return NoAnswer(str(error), wrong=True)
    except AgentError as error:
        return NoAnswer(str(error))
    except OSError as error:
        return NoAnswer(f"node {node}: {error.filename or folder.path}: {error.strerror}")


def _none_of(other: str, node: str) -> NoAnswer:
    return NoAnswer(f"node {node} has no files of node {other}", not_here=True)


def _checkpoints(path: Path) -> CheckpointFolder:
    return CheckpointFolder(str(path), path.is_dir() and any(path.iterdir()))


def _ranks(ranks: Ranks | None) -> RankList:
    if ranks is None:
        return RankList([])
    nodes = [ranks.elsewhere.get(process, "") for process in ranks.members]
    told = zip(ranks.members, ranks.pids, ranks.gpus, nodes, strict=False)
    return RankList([RankProcess(*each) for each in told])


def _log_files(attempt: Path) -> LogFiles:
    files = [*attempt.iterdir()] if attempt.is_dir() else []
    sizes = {
        file.name: file.lstat().st_size
        for file in sorted(files)
        if LOG_FILE.fullmatch(file.name) and stat.S_ISREG(file.lstat().st_mode)
    }
    if (record := record_of(attempt)) is not None:
        sizes[ENDED] = record.lstat().st_size
    return LogFiles(sizes)


def _log_bytes(attempt: Path, asked: ReadLog) -> LogBytes:
    file = attempt / asked.name
    if asked.name == ENDED:
        file = record_of(attempt) or file
    elif LOG_FILE.fullmatch(asked.name) is None:
        raise NotFoundError(f"name: {asked.name!r:.80} is no file of an attempt's output")
    return LogBytes(*read_bytes(file, asked.offset, MOST_ANSWER_BYTES))


def _output(attempt: Path, asked: AskOutput) -> Output:
    ranks = read_ranks(attempt)
    process, following, rank = _process(ranks, asked)
    over = asked.over or following is not None
    if ranks is not None and process in ranks.elsewhere:
        return Output(
            process=process,
            next_process=following,
            rank=rank,
            offset=asked.offset,
            next_offset=asked.offset,
            complete=over,
            node=ranks.elsewhere[process],
        )
    log = attempt / f"rank{process}.log"
    start = asked.offset if asked.tail is None else tail_offset(log, asked.tail)
    times = read_times(log) if asked.times or asked.since_s is not None else None
    if asked.since_s is not None:
        if times is None:
            raise NotFoundError(
                f"the times of lines of job {asked.job_id} were not kept, because an older Rota "
                "ran it; leave --since out"
            )
        since = times.since(asked.since_s)
        start = max(start, line_offset(log, since))
    piece = read_piece(log, start, min(asked.limit, MOST_ANSWER_BYTES), ended=over)
    return Output(
        process=process,
        next_process=following,
        rank=rank,
        text=piece.text,
        offset=piece.offset,
        next_offset=piece.next_offset,
        size=piece.size,
        complete=over and piece.at_end,
        times=None if times is None else _times(piece, times),
    )


def _times(piece: Piece, times: LineTimes) -> list[LinesAt]:
    """The times of the lines in a piece: as many as it has, also if the last one is not whole."""
    found: list[LinesAt] = []
    for offset in piece.lines:
        at_s = times.at_s(offset)
        if found and found[-1].at_s == at_s:
            found[-1] = LinesAt(found[-1].lines + 1, at_s)
        else:
            found.append(LinesAt(1, at_s))
    return found


def _process(ranks: Ranks | None, asked: AskOutput) -> tuple[int, int | None, int | None]:
    """The process whose output is meant, the one that had its rank next, and the rank it has."""
    if ranks is None:
        return asked.process or asked.rank or 0, None, asked.rank or 0
    outputs = ranks.outputs(asked.job_id, asked.rank)
    process = asked.process
    if process is None:
        process = outputs[0 if asked.tail is None else -1]
    ranks.check(asked.job_id, process)
    later = outputs[outputs.index(process) + 1 :] if process in outputs else []
    return process, later[0] if later else None, ranks.rank_of(process)
