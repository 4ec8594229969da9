"""Answers to the controller's questions about the files of this node: outputs, ranks, checkpoints.

Files are read in threads, so that a slow disk keeps nobody waiting but who has asked.
"""

import asyncio
from pathlib import Path

from rota.errors import AgentError, NotFoundError
from rota.folder import Folder
from rota.live.agent.log_pieces import read_piece, tail_offset
from rota.live.agent.ranks import Ranks, read_ranks
from rota.live.wire import Message
from rota.live.wire.questions import (
    MOST_ANSWER_BYTES,
    Ask,
    AskCheckpoints,
    AskOutput,
    AskRanks,
    CheckpointFolder,
    Found,
    NoAnswer,
    Output,
    Question,
    RankList,
    RankProcess,
    answer_message,
)


async def answer(folder: Folder, node: str, ask: Ask) -> Message:
    """The message that answers a question to the agent of a node."""
    return answer_message(ask.number, await asyncio.to_thread(look_up, folder, node, ask.question))


def look_up(folder: Folder, node: str, question: Question) -> Found:
    """The answer to a question; :class:`NoAnswer` with the reason if there is none."""
    try:
        if isinstance(question, AskCheckpoints):
            return _checkpoints(folder.checkpoints(question.job_id))
        attempt = folder.attempt(question.node, question.job_id, question.attempt)
        if question.node != node and not attempt.is_dir():
            return NoAnswer(f"node {node} has no files of node {question.node}", not_here=True)
        if isinstance(question, AskRanks):
            return _ranks(read_ranks(attempt))
        return _output(attempt, question)
    except NotFoundError as error:
        return NoAnswer(str(error), wrong=True)
    except AgentError as error:
        return NoAnswer(str(error))
    except OSError as error:
        return NoAnswer(f"node {node}: {error.filename or folder.path}: {error.strerror}")


def _checkpoints(path: Path) -> CheckpointFolder:
    return CheckpointFolder(str(path), path.is_dir() and any(path.iterdir()))


def _ranks(ranks: Ranks | None) -> RankList:
    if ranks is None:
        return RankList([])
    told = zip(ranks.members, ranks.pids, ranks.gpus, strict=False)
    return RankList([RankProcess(*each) for each in told])


def _output(attempt: Path, asked: AskOutput) -> Output:
    ranks = read_ranks(attempt)
    process, following, rank = _process(ranks, asked)
    over = asked.over or following is not None
    log = attempt / f"rank{process}.log"
    start = asked.offset if asked.tail is None else tail_offset(log, asked.tail)
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
    )


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
