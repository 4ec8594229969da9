"""Questions to agents about files of their nodes: asked, awaited for a while, and answered.

Few are on their way to an agent at a time, each answer is small, and nobody but who asks waits.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from rota.errors import AgentAwayError
from rota.live.controller.outboxes import Outboxes
from rota.live.wire import Message
from rota.live.wire.questions import AskOutput, Found, Question, answer_of, ask_message

PATIENCE_S = 10.0  # for an agent to connect and to answer
AT_ONCE = 4  # questions on their way to one agent


class Questions:
    """Questions that agents have yet to answer; they are sent through ``outboxes``."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._numbers = itertools.count()
        self._open: dict[int, tuple[str, asyncio.Future[Found | None]]] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        self._limits: set[asyncio.Timeout] = set()  # of those who wait
        self.on_arrival: Callable[[str], object] = lambda node: None  # told who can be asked now

    async def ask(self, node: str, question: Question, patience_s: float = PATIENCE_S) -> Found:
        """The answer of a node's agent; waits for an agent that is away, or goes away.

        Raises AgentAwayError if it does not answer in time. A question whose answer may wait for
        something to happen keeps no other one from being asked.
        """
        turn: contextlib.AbstractAsyncContextManager[Any] = self._turns.setdefault(
            node, asyncio.Semaphore(AT_ONCE)
        )
        if isinstance(question, AskOutput) and question.wait_s:
            turn = contextlib.nullcontext()
        limit = asyncio.timeout(patience_s)
        self._limits.add(limit)
        try:
            async with limit, turn:
                while (found := await self._ask_once(node, question)) is None:
                    pass
                return found
        except TimeoutError:
            is_there = node in self._outboxes.queues
            what = f"has not answered in {patience_s:g} s" if is_there else "is not connected"
            raise AgentAwayError(
                f"the agent of node {node} {what}; `rota nodes` shows when it is connected again"
            ) from None
        finally:
            self._limits.discard(limit)

    async def _ask_once(self, node: str, question: Question) -> Found | None:
        """The answer; None if the agent has gone before it answered."""
        number = next(self._numbers)
        while not self._outboxes.tell(node, ask_message(number, question)):
            await self._arrivals.setdefault(node, asyncio.Event()).wait()
        answer: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._open[number] = node, answer
        try:
            return await answer
        finally:
            del self._open[number]

    def answered(self, node: str, message: Message) -> None:
        """An agent has answered; an answer that nobody waits for is passed over."""
        told = answer_of(message)
        asked, answer = self._open.get(told.number, ("", None))
        if answer is not None and asked == node and not answer.done():
            answer.set_result(told.found)

    def came(self, node: str) -> None:
        """The agent of a node is connected: what waited for it is asked now."""
        if (arrival := self._arrivals.pop(node, None)) is not None:
            arrival.set()
        self.on_arrival(node)

    def left(self, node: str) -> None:
        """A connection of the node has ended: what it was asked is asked again at the next one."""
        for asked, answer in self._open.values():
            if asked == node and not answer.done():
                answer.set_result(None)

    def close(self) -> None:
        """Let nobody wait any longer: the controller stops."""
        for limit in list(self._limits):
            limit.reschedule(asyncio.get_running_loop().time())
