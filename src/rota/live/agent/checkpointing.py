"""Suspends and continues attempts whose device memory the CUDA driver moves to the host.

The driver does its part first, and then the processes are stopped; to continue they run first,
waiting in their CUDA calls, until the driver has put back what they had on the GPU. What it can't
do is undone: then they are stopped as they are, and stay on their GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from rota.errors import AgentError, ArenaError
from rota.live.agent.attempt_report import Account
from rota.live.agent.ending import Ending
from rota.live.agent.method import CHECKPOINT
from rota.live.agent.processes import descendants
from rota.live.agent.record import Checkpoint
from rota.live.agent.states import State

if TYPE_CHECKING:
    from rota.live.agent.cuda_checkpoint import Checkpoints

log = logging.getLogger("rota.agent")


class Checkpointing:
    """The checkpoints of one attempt, whose ``state`` it changes."""

    def __init__(self, attempt: Account, ending: Ending) -> None:
        self._attempt = attempt
        self._ending = ending
        self.node: Checkpoints | None = None
        self._turn = asyncio.Lock()  # the driver is asked for one thing at a time

    @property
    def is_method(self) -> bool:
        """True if the attempt is suspended by checkpoints where it has no session."""
        return self._attempt.method.kind == CHECKPOINT and self.node is not None

    @property
    def taken(self) -> bool:
        """True if the device memory of the processes is on the host."""
        return self._attempt.record.checkpoint is not None

    def take(self, stopped: Callable[[float, str | None], object]) -> None:
        """Checkpoint the processes and stop them.

        ``stopped`` is called with the time at which that began, and with the reason if they could
        only be stopped.
        """
        self._attempt.spawn(self._take(stopped))

    async def _take(self, stopped: Callable[[float, str | None], object]) -> None:
        attempt, stopped_s = self._attempt, self._attempt.world.now_s()
        error = None
        async with self._turn:
            if attempt.state != State.SUSPENDING:
                return
            try:
                assert self.node is not None
                whole = await attempt.world.in_thread(self.node.take, self._processes)
            except AgentError as failure:
                error = f"it could not be checkpointed: {failure}"
                log.warning("job %s: %s", attempt.job_id, error)
            except ArenaError as failure:
                self._lose(failure)
        if attempt.state != State.SUSPENDING or attempt.ended is not None:
            return
        if error is None:
            gpus = attempt.record.gpus
            # Who has no CUDA state may look for a GPU later, and find the one of its environment.
            attempt.record.checkpoint = Checkpoint(gpus, whole)
        self._signal(signal.SIGSTOP)
        stopped(stopped_s, error)

    def put_back(self, gpus: list[int], outcome: Callable[[str | None], object]) -> None:
        """Let the processes continue on these GPUs; ``outcome`` is given None, or the error."""
        self._attempt.become(State.RESUMING)
        self._attempt.spawn(self._put_back(gpus, outcome))

    async def _put_back(self, gpus: list[int], outcome: Callable[[str | None], object]) -> None:
        attempt, record = self._attempt, self._attempt.record
        assert record.checkpoint is not None
        before = record.checkpoint.gpus
        async with self._turn:
            self._signal(signal.SIGCONT)
            try:
                if self.node is None:
                    raise AgentError("this agent has no GPUs")
                processes = self._processes()
                await attempt.world.in_thread(self.node.put_back, processes, before, gpus)
            except AgentError as failure:
                if attempt.state == State.RESUMING:
                    self._signal(signal.SIGSTOP)
                    attempt.become(State.SUSPENDED)
                    outcome(f"job {attempt.job_id} can't go on: {failure}")
                return
            except ArenaError as failure:
                self._lose(failure)
        if attempt.state != State.RESUMING or attempt.ended is not None:
            return
        record.gpus = gpus
        record.checkpoint = record.suspended_s = None
        attempt.carries_out(attempt.resume_id, is_final=False)
        with contextlib.suppress(OSError):  # the next agent finds them running, and stops them
            attempt.save(durable=False)
        outcome(None)

    def adopt(self) -> None:
        """After a change of agents: undo what the former one had begun."""
        if self._attempt.record.suspended_s is not None:
            if self.taken:  # a continuation may have been about to begin
                self._signal(signal.SIGSTOP)
        elif self.is_method:
            self._attempt.spawn(self._undo())

    async def _undo(self) -> None:
        gpus = self._attempt.record.gpus
        async with self._turn:
            try:
                assert self.node is not None
                processes = self._processes()
                await self._attempt.world.in_thread(self.node.put_back, processes, gpus, gpus)
            except AgentError as failure:
                log.warning("job %s: %s", self._attempt.job_id, failure)
            except ArenaError as failure:
                self._lose(failure)

    def _lose(self, failure: ArenaError) -> None:
        if self._attempt.ended is None:
            self._ending.lose(str(failure))

    def _processes(self) -> list[int]:
        found = [descendants(rank.shim)[1:] for rank in self._attempt.ranks if rank.alive]
        started_at = self._attempt.world.started_at
        return [pid for pids in found for pid in pids if started_at(pid) is not None]  # no zombies

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._attempt.ranks:
            rank.signal(number)
