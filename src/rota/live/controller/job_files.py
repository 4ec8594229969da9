"""Files of jobs on the nodes, read and removed by the agents there: outputs, ranks, checkpoints."""

import asyncio
import time

from msgspec.structs import replace

from rota.errors import AgentAwayError, NotFoundError, ServerError
from rota.live.controller.clock import local_time
from rota.live.controller.log_copies import LogCopies
from rota.live.controller.questions import PATIENCE_S, Questions
from rota.live.controller.record import Record
from rota.live.provider.base import Provider
from rota.live.wire.questions import (
    AskCheckpoints,
    AskFolders,
    AskOutput,
    AskRanks,
    CheckpointFolder,
    Clean,
    FolderObstacles,
    Found,
    Freed,
    NoAnswer,
    Output,
    Question,
    RankList,
    RankProcess,
)
from rota.model.job import JobState
from rota.model.naming import few
from rota.request.jobfile import JobRequest
from rota.store.members import Members

OWN_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
FOLDERS_PATIENCE_S = 1.0  # for agents to tell which folders jobs can enter
MOST_ASKED = 16  # agents, about one job's folders
ENTERED_S, MOST_KEPT = 30.0, 1000  # how long answers count, and of how many questions at once
CLEANING_PATIENCE_S = 25.0  # while an agent adds up sizes, and less than a client waits


class JobFiles:
    """Answers to questions about files of jobs, each by an agent that has them.

    That is the agent of the node where the attempt was last. Files of a node that the cluster has
    no longer may be with another agent, of the same machine, and so are copies of outputs.
    """

    def __init__(
        self,
        record: Record,
        questions: Questions,
        provider: Provider,
        members: Members,
        copies: LogCopies,
    ) -> None:
        self._record, self._questions, self._provider = record, questions, provider
        self._members, self._copies = members, copies
        # By question: until when the answers count, and the answers.
        self._entered: dict[tuple[tuple[str, str], ...], tuple[float, asyncio.Task[list[str]]]] = {}

    async def output(
        self,
        row: int,
        attempt: int,
        *,
        rank: int | None = None,
        process: int | None = None,
        offset: int = 0,
        limit: int,
        tail: int | None = None,
        since_s: float | None = None,
        times: bool = False,
        wait_s: float = 0.0,
    ) -> Output:
        """A piece of what a process of an attempt has printed; see :class:`AskOutput`.

        Raises NotFoundError for an attempt, rank or process that there is not and for an output
        that is gone, ServerError for a file that can't be read, and AgentAwayError if nobody is
        there who has it.
        """
        state, node = self._record.state, self._record.node_of(row, attempt)
        if (cleaned := state.cleaned.get(row)) is not None:
            by = f" by {cleaned.user}" if cleaned.user else ""
            job_id = state.spec[row].job_id
            raise NotFoundError(
                f"the output of job {job_id} is no longer there: it was removed{by} "
                f"with `rota clean` at {local_time(cleaned.at_s, self._record.now_s())}"
            )
        if attempt > (latest := state.attempt[row]):
            had = {0: "it has not started yet", 1: "it has had attempt 1 alone"}
            has = had.get(latest, f"it has had attempts 1 to {latest}")
            raise NotFoundError(f"job {state.spec[row].job_id} has no attempt {attempt}: {has}")
        over = JobState(state.state[row]).is_final or attempt < state.attempt[row]
        if node is None:  # it has not started
            process = process or rank or 0
            return Output(
                process=process,
                rank=rank or 0,
                offset=offset,
                next_offset=offset,
                complete=over,
                times=[] if times else None,
            )
        question = AskOutput(
            node=node,
            job_id=state.spec[row].job_id,
            attempt=attempt,
            rank=rank,
            process=process,
            offset=offset,
            limit=limit,
            tail=tail,
            over=over,
            since_s=since_s,
            times=times,
            started=self._record.has_started(row, attempt),
            wait_s=wait_s,
        )
        copied = self._copies.has(row, attempt, node)
        found = await self._found_at(node, question, PATIENCE_S + wait_s, copied=copied)
        assert isinstance(found, Output)
        return await self._output_elsewhere(row, question, found) if found.node else found

    async def _output_elsewhere(self, row: int, question: AskOutput, found: Output) -> Output:
        """The output of a process of a gang that is not on the node of the gang's agent."""
        node = found.node
        over = question.over or found.next_process is not None
        asked = replace(question, node=node, rank=None, process=found.process, over=over)
        copied = self._copies.has(row, question.attempt, node)
        there = await self._found_at(node, asked, PATIENCE_S + question.wait_s, copied=copied)
        assert isinstance(there, Output)
        return replace(there, next_process=found.next_process, rank=found.rank)

    async def ranks(
        self, row: int, attempt: int, patience_s: float = PATIENCE_S
    ) -> list[RankProcess]:
        """The processes of an attempt, by rank. Raises AgentAwayError."""
        node = self._record.node_of(row, attempt)
        if node is None:
            return []
        job_id = self._record.state.spec[row].job_id
        question = AskRanks(node=node, job_id=job_id, attempt=attempt)
        copied = self._copies.has(row, attempt, node)
        found = await self._found_at(node, question, patience_s, copied=copied)
        assert isinstance(found, RankList)
        return found.ranks

    async def checkpoints(self, row: int) -> CheckpointFolder | None:
        """The checkpoint folder of a job, None if it never started. Raises AgentAwayError."""
        state = self._record.state
        node = self._record.node_of(row, state.attempt[row])
        if node is None:
            return None
        found = await self._found_at(node, AskCheckpoints(state.spec[row].job_id))
        assert isinstance(found, CheckpointFolder)
        return found

    async def warnings(self, request: JobRequest) -> list[str]:
        """Sentences on the folders that a job names and can't enter, with the nodes.

        Agents that do not tell at once are passed over. What was told lately is not asked again.
        """
        named = {} if request.snapshot else {"workdir": request.workdir}
        named |= {name: path for name, path in request.env if name in OWN_ENVIRONMENTS}
        key, now_s = tuple(named.items()), time.monotonic()
        self._entered = {k: v for k, v in self._entered.items() if v[0] > now_s}
        if key not in self._entered and len(self._entered) < MOST_KEPT:
            asking = asyncio.create_task(self._obstacles(named))
            self._entered[key] = now_s + ENTERED_S, asking
        asked = self._entered.get(key)
        return await asyncio.shield(asked[1]) if asked is not None else []

    async def _obstacles(self, named: dict[str, str]) -> list[str]:
        nodes = list(self._record.outboxes.queues)[:MOST_ASKED]
        question = AskFolders(list(named.values()))
        asked = (self._questions.ask(node, question, FOLDERS_PATIENCE_S) for node in nodes)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if not any(isinstance(found, FolderObstacles) for found in answers):
            self._entered.pop(tuple(named.items()), None)  # nobody could tell: ask the next time
        told: dict[tuple[str, str, str], list[str]] = {}  # by field, reason and user: nodes
        for node, found in zip(nodes, answers, strict=True):
            for name, path in named.items():
                if isinstance(found, FolderObstacles) and (why := found.obstacles.get(path)):
                    told.setdefault((name, why, found.user), []).append(node)
        return [
            f"{name}: on {_nodes_text(at)} {why}: the job would fail there; {_way_in(name, user)}"
            for (name, why, user), at in told.items()
        ]

    async def clean(self, row: int, *, keeps_checkpoints: bool, dry_run: bool) -> int:
        """Have agents remove what a job has left, or only tell how many bytes that takes.

        What no node of the cluster has is gone already. Raises AgentAwayError, ServerError.
        """
        record, num_bytes, afar = self._record, 0, self._members.names
        attempts = range(record.state.attempt[row], 0, -1)
        nodes = [node for attempt in attempts for node in record.nodes_of(row, attempt)]
        if record.state.migrations[row]:  # copies of checkpoints are where it was on its way
            nodes += [node for node in record.outboxes.queues if node in afar]
        for node in dict.fromkeys(nodes):
            question = Clean(
                node=node,
                job_id=record.state.spec[row].job_id,
                origin=record.origin(row),
                checkpoints=not keeps_checkpoints and (node == nodes[0] or node in afar),
                dry_run=dry_run,
            )
            copied = any(self._copies.has(row, attempt, node) for attempt in attempts)
            asked = [node] if node in self._provider.names else []
            for other in asked if asked and not copied else self._those_before(asked):
                found = await self._questions.ask(other, question, CLEANING_PATIENCE_S)
                if isinstance(found, NoAnswer) and found.not_here:
                    continue
                told = _told(found)
                assert isinstance(told, Freed)
                num_bytes += told.num_bytes
                if other != node:
                    break
        return num_bytes

    def _those_before(self, first: list[str]) -> list[str]:
        """The agents that can be asked, behind those that are to be asked ``first``."""
        return [*first, *(node for node in self._record.outboxes.queues if node not in first)]

    async def _found_at(
        self,
        node: str,
        question: Question,
        patience_s: float = PATIENCE_S,
        *,
        copied: bool = False,
    ) -> Found:
        """The answer of the first agent that has one; if there is a copy, none is waited for."""
        is_away = node not in self._record.outboxes.queues
        if node in self._provider.names and not (copied and is_away):
            return _told(await self._questions.ask(node, question, patience_s))
        for other in list(self._record.outboxes.queues):
            found = await self._questions.ask(other, question, patience_s)
            if not (isinstance(found, NoAnswer) and found.not_here):
                return _told(found)
        raise AgentAwayError(
            f"that is on node {node}, which is no longer part of the cluster, and no agent that is "
            "connected has it"
        )


def _told(found: Found) -> Found:
    """An answer, or the error that it stands for."""
    if isinstance(found, NoAnswer):
        raise NotFoundError(found.error) if found.wrong else ServerError(found.error)
    return found


def _nodes_text(nodes: list[str]) -> str:
    return ("node " if len(nodes) == 1 else "nodes ") + few(nodes)


def _way_in(name: str, user: str) -> str:
    """Advice on a folder that jobs, which run as this user, can't enter."""
    if name in OWN_ENVIRONMENTS:
        return f"use an environment in a place that user {user} may enter, or have `setup` make one"
    return (
        f"submit it with --snapshot, to run it in a copy, or from a folder that user {user} may "
        "enter on every node"
    )
