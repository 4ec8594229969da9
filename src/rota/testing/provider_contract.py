"""The contract that every provider of nodes keeps: subclass :class:`ProviderContract`.

``provider`` is a fixture that gives one with ``bounds`` that leave room to grow, not yet started.
How its agents end is its engine's: the two methods that raise NotImplementedError do that.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rota.live.provider.base import Provider

PATIENCE_S = 60.0  # with an engine
LOOK_S = 0.01


class ProviderContract:
    """Tests of one provider."""

    def end_agent(self, provider: Any, name: str) -> None:
        """Have the agent of a node end in good order, as one does that its controller tells to."""
        raise NotImplementedError

    def kill_agent(self, provider: Any, name: str) -> None:
        """Kill the agent of a node."""
        raise NotImplementedError

    def run(self, provider: Provider, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a story happen while the provider watches over its agents; then all of them end."""

        async def whole() -> None:
            await provider.start()
            try:
                await self.until(lambda: len(alive(provider)) == least(provider))
                await story()
            finally:
                for name in alive(provider):
                    provider.release(name)
                    self.end_agent(provider, name)
                await self.until(lambda: not provider.nodes())
                await provider.stop()

        asyncio.run(whole())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(LOOK_S)

    # -- the contract --------------------------------------------------------------------------

    def test_it_begins_with_the_least_nodes_and_awaits_no_more(self, provider: Provider) -> None:
        """Their agents live, each under a name of its own, and nothing has gone wrong."""

        async def story() -> None:
            names = [node.name for node in provider.nodes()]
            assert len(names) == len(set(names)) == least(provider)
            assert list(provider.awaited()) == []
            assert list(provider.errors()) == []

        self.run(provider, story)

    def test_a_node_that_is_asked_for_is_awaited_with_the_reason_until_it_is_there(
        self, provider: Provider
    ) -> None:
        """A node is requested once, however often it is asked for."""

        async def story() -> None:
            wanted = least(provider) + 1
            provider.request(wanted)
            provider.request(wanted)
            (awaited,) = provider.awaited()
            assert awaited.why
            assert awaited.name not in alive(provider)
            await self.until(lambda: not provider.awaited())
            provider.request(wanted)
            assert list(provider.awaited()) == []
            assert len(alive(provider)) == len(provider.nodes()) == wanted

        self.run(provider, story)

    def test_no_more_nodes_are_asked_for_than_the_bounds_allow(self, provider: Provider) -> None:
        """And no fewer."""

        async def story() -> None:
            assert provider.bounds is not None
            provider.request(10**6)
            await self.until(lambda: len(alive(provider)) == most(provider))
            assert len(provider.nodes()) + len(provider.awaited()) == most(provider)

        self.run(provider, story)

    def test_fewer_nodes_end_the_waiting_and_take_none_away_that_is_there(
        self, provider: Provider
    ) -> None:
        """A request for fewer nodes never takes a node away: the caller releases it."""

        async def story() -> None:
            there = alive(provider)
            provider.request(least(provider) + 1)
            provider.request(0)
            assert list(provider.awaited()) == []
            await self.until(lambda: provider.names == there)
            provider.request(0)
            assert alive(provider) == there

        self.run(provider, story)

    def test_a_node_that_is_released_is_gone_once_its_agent_has_ended(
        self, provider: Provider
    ) -> None:
        """Until then it is among the nodes; to release it again, or a stranger, changes nothing."""

        async def story() -> None:
            name = min(alive(provider))
            for released in (name, name, "no such node"):
                provider.release(released)
            assert name in provider.names
            self.end_agent(provider, name)
            await self.until(lambda: name not in provider.names)
            provider.release(name)
            provider.request(least(provider))
            await self.until(lambda: len(alive(provider)) == least(provider))

        self.run(provider, story)

    def test_an_agent_that_is_killed_is_replaced(self, provider: Provider) -> None:
        """Its jobs live, and somebody has to look after them."""

        async def story() -> None:
            first = alive(provider)
            provider.request(least(provider) + 1)
            await self.until(lambda: not provider.awaited())
            (name,) = alive(provider) - first
            self.kill_agent(provider, name)
            await self.until(lambda: name not in alive(provider))
            provider.request(0)  # of those that were there none is taken away
            assert list(provider.awaited()) == []
            assert name in provider.names
            await self.until(lambda: name in alive(provider))

        self.run(provider, story)

    def test_what_went_wrong_is_told_once(self, provider: Provider) -> None:
        """A sentence each."""

        async def story() -> None:
            provider.errors()
            assert list(provider.errors()) == []

        self.run(provider, story)


def alive(provider: Provider) -> set[str]:
    """The nodes whose agents live."""
    return {node.name for node in provider.nodes() if node.is_alive}


def least(provider: Provider) -> int:
    """The least nodes that it may have."""
    assert provider.bounds is not None, "the contract needs a provider that adds nodes"
    return provider.bounds[0]


def most(provider: Provider) -> int:
    """The most nodes that it may have."""
    assert provider.bounds is not None, "the contract needs a provider that adds nodes"
    return provider.bounds[1]
