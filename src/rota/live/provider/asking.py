"""The provider of nodes that an engine is asked for: the contract, kept with a book of them."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from rota.live.provider.base import AwaitedNode, ProvidedNode, Provider
from rota.live.provider.book import Book

GIVE_BACK_S = 120.0  # for all nodes to be given back
POLL_S = 0.02

log = logging.getLogger("rota.provider")


class Engine(Protocol):
    """The part that differs between engines: asks for the nodes of ``book``, and tells of them.

    ``pace_s`` is the time between two turns.
    """

    book: Book
    pace_s: float

    def begin(self) -> None:
        """Take note that the turns begin."""

    async def turn(self) -> None:
        """Ask the engine for whatever is due first."""

    def close(self) -> None:
        """End a request that goes on."""

    async def leave(self) -> None:
        """Give up what the engine holds beside the nodes, as there are no more turns."""

    def about(self, name: str) -> str:
        """The engine's own names for a node, by which its commands list it."""

    def leaves_s(self, name: str) -> float | None:
        """When a node must go, in seconds since 1970."""

    def wants_back(self, name: str) -> bool:
        """True if somebody waits until the jobs of a node have left."""

    def why(self, name: str) -> str:
        """The reason why a node is awaited."""

    def is_placed(self, name: str) -> bool:
        """True if an agent may run there already."""


class AskingProvider(Provider):
    """The nodes that an ``engine`` is asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._book = engine, engine.book
        self.bounds = engine.book.bounds
        self._task: asyncio.Task[None] | None = None

    def nodes(self) -> Collection[ProvidedNode]:
        """The nodes that were asked for, but for those given up before they began."""
        return [
            ProvidedNode(
                name,
                self._book.is_alive(name),
                self._engine.leaves_s(name),
                about=self._engine.about(name),
                wanted_back=self._engine.wants_back(name),
            )
            for name in self._book.nodes
        ]

    def scale(self, desired: int) -> None:
        """Note how many more are asked for, or give up some that wait."""
        self._book.scale(desired, self._engine.is_placed)

    def release(self, name: str) -> None:
        """Have a node go when its agent has ended, and otherwise after a minute."""
        self._book.release(name)

    def awaited(self) -> Sequence[AwaitedNode]:
        """Those that wait, in the engine's words, and those whose agents have yet to connect."""
        return [AwaitedNode(name, self._engine.why(name)) for name in self._book.awaited]

    def errors(self) -> Sequence[str]:
        """Refusals, lost nodes, ends of agents and silence, each told once."""
        return self._book.errors()

    async def start(self) -> None:
        """Begin to ask the engine, for no fewer nodes than the last controller."""
        if self._task is None:
            self._engine.begin()
        self.scale(len(self._book.wanted))
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ask the engine no more; what it has given stays."""
        if self._task is not None:
            self._task.cancel()
            self._engine.close()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self._engine.leave()

    async def end(self) -> None:
        """Return when the engine has nothing any more; it ends what was never connected."""
        self._book.release_all()
        await self.start()
        while self._book.asked.names:
            await asyncio.sleep(POLL_S)
        await self.stop()

    async def wait_for_end(self, *, connected: Collection[str]) -> None:
        """The same, for two minutes at most: nodes are given back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await self.end()
        await self.stop()

    async def _run(self) -> None:
        book = self._book
        while True:
            await asyncio.sleep(self._engine.pace_s)  # at first too: it was asked for a check
            try:
                await self._engine.turn()
                book.content("turn")
            except Exception as error:  # such as a full disk: what can't be noted waits
                if book.complain("turn", f"{book.engine} can't be asked: {error}"):
                    log.exception("%s can't be asked", book.engine)
