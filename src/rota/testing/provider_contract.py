"""The contract that every provider of nodes keeps: subclass :class:`ProviderContract`.

``provider`` is a fixture that gives one, not yet started. What its engine does is told by methods
that raise NotImplementedError here. A provider that adds nodes keeps :class:`GrowingContract`, one
whose engine takes nodes away :class:`LosingContract`, and one whose nodes have to go some time
:class:`DeadlineContract`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from rota.live.provider.base import Provider

PATIENCE_S = 60.0  # with an engine
LOOK_S = 0.01


class ProviderContract:
    """Tests of any provider."""

    newest: Provider  # the one that looks after the agents: another one after a restart

    def end_agent(self, provider: Any, name: str) -> None:
        """Have the agent of a node end in good order, as one does that its controller tells to."""
        raise NotImplementedError

    def kill_agent(self, provider: Any, name: str) -> None:
        """Kill the agent of a node."""
        raise NotImplementedError

    def run(self, provider: Provider, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a story happen while the provider watches over its agents; then all of them end."""
        self.newest = provider

        async def whole() -> None:
            await provider.start()
            try:
                await self.until(lambda: len(alive(provider)) == least(provider))
                await story()
            finally:
                await self._end()

        asyncio.run(whole())

    async def _end(self) -> None:
        provider = self.newest
        stay = {node.name for node in provider.nodes() if node.stays}

        def all_ended() -> bool:
            for name in alive(provider) - stay:
                provider.release(name)
                self.end_agent(provider, name)
            return provider.names <= stay

        await self.until(all_ended)
        await provider.stop()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(LOOK_S)

    # -- the contract --------------------------------------------------------------------------

    def test_it_begins_with_its_nodes_and_awaits_no_more(self, provider: Provider) -> None:
        """Their agents live, each under a name of its own, and nothing has gone wrong."""

        async def story() -> None:
            nodes = provider.nodes()
            assert len(provider.names) == len(nodes) == least(provider)
            assert all(node.about.isprintable() for node in nodes)
            assert list(provider.awaited()) == list(provider.errors()) == []

        self.run(provider, story)

    def test_a_node_whose_agent_was_killed_is_still_a_node(self, provider: Provider) -> None:
        """Its jobs live, and somebody has to look after them: its agent comes back."""

        async def story() -> None:
            name = min(alive(provider))
            self.kill_agent(provider, name)
            await self.until(lambda: name not in alive(provider))
            provider.scale(0)  # of those that were there none is taken away
            assert list(provider.awaited()) == []
            assert name in provider.names
            await self.until(lambda: name in alive(provider))

        self.run(provider, story)

    def test_to_release_what_it_does_not_have_changes_nothing(self, provider: Provider) -> None:
        """Nor does it to release a node that stays."""

        async def story() -> None:
            stay = [node.name for node in provider.nodes() if node.stays]
            before = list(provider.nodes())
            for name in [*stay, "no such node"]:
                provider.release(name)
            assert list(provider.nodes()) == before

        self.run(provider, story)

    def test_what_went_wrong_is_told_once(self, provider: Provider) -> None:
        """A sentence each."""

        async def story() -> None:
            provider.errors()
            assert list(provider.errors()) == []

        self.run(provider, story)


class GrowingContract(ProviderContract):
    """Tests of a provider that adds nodes: its ``bounds`` leave room to grow."""

    def again(self, provider: Any) -> Provider:
        """Another provider of the same cluster, not yet started, as the next controller makes it.

        The controller of ``provider`` was killed: nothing is told to it any more.
        """
        raise NotImplementedError

    def test_a_node_that_is_asked_for_is_awaited_with_the_reason_until_it_is_there(
        self, provider: Provider
    ) -> None:
        """It is asked for once, however often that is said."""

        async def story() -> None:
            wanted = least(provider) + 1
            provider.scale(wanted)
            provider.scale(wanted)
            (awaited,) = provider.awaited()
            assert awaited.why
            assert awaited.name not in alive(provider)
            await self.until(lambda: not provider.awaited())
            provider.scale(wanted)
            assert list(provider.awaited()) == []
            assert len(alive(provider)) == len(provider.nodes()) == wanted

        self.run(provider, story)

    def test_no_more_nodes_are_asked_for_than_the_bounds_allow(self, provider: Provider) -> None:
        """And no fewer."""

        async def story() -> None:
            provider.scale(10**6)
            await self.until(lambda: len(alive(provider)) == most(provider))
            assert len(provider.names | awaited(provider)) == most(provider)

        self.run(provider, story)

    def test_fewer_nodes_end_the_waiting_and_take_none_away_that_is_there(
        self, provider: Provider
    ) -> None:
        """A request for fewer nodes never takes a node away: the caller releases it."""

        async def story() -> None:
            there = alive(provider)
            provider.scale(least(provider) + 1)
            provider.scale(0)
            assert list(provider.awaited()) == []
            await self.until(lambda: provider.names == there)
            provider.scale(0)
            assert alive(provider) == there

        self.run(provider, story)

    def test_a_node_that_is_released_is_gone_once_its_agent_has_ended(
        self, provider: Provider
    ) -> None:
        """Until then it is among the nodes; to release it again changes nothing."""

        async def story() -> None:
            name = min(alive(provider))
            provider.release(name)
            provider.release(name)
            assert name in provider.names
            self.end_agent(provider, name)
            await self.until(lambda: name not in provider.names)
            provider.release(name)
            provider.scale(least(provider))
            await self.until(lambda: len(alive(provider)) == least(provider))

        self.run(provider, story)

    def test_what_was_asked_for_is_found_again_after_a_kill(self, provider: Provider) -> None:
        """It has the same names, whether its agent lived or was awaited; nothing is there twice."""

        async def story() -> None:
            wanted = least(provider) + 1
            first = alive(provider)
            provider.scale(wanted)
            asked = provider.names | awaited(provider)
            self.newest = second = self.again(provider)
            await provider.stop()
            await second.start()
            second.scale(wanted)
            second.scale(wanted)
            await self.until(lambda: len(alive(second)) == wanted)
            assert first < asked == second.names
            assert list(second.awaited()) == []

        self.run(provider, story)


class LosingContract(ProviderContract):
    """Tests of a provider whose engine may take nodes away, or a person by the engine's means."""

    def lose(self, provider: Any, name: str) -> None:
        """Have the engine take a node away, and say so."""
        raise NotImplementedError

    def test_a_node_that_the_engine_takes_away_is_lost(self, provider: Provider) -> None:
        """It does not come back by itself; to release it changes nothing."""

        async def story() -> None:
            name, *others = sorted(alive(provider))
            self.lose(provider, name)
            await self.until(lambda: name not in provider.names)
            provider.release(name)
            assert sorted(provider.names | awaited(provider)) == others

        self.run(provider, story)


class DeadlineContract(ProviderContract):
    """Tests of a provider whose nodes may have to go by some time."""

    def set_deadline(self, provider: Any, name: str, leaves_s: float) -> None:
        """Have the engine say by when a node must go."""
        raise NotImplementedError

    def test_a_node_tells_by_when_it_must_go(self, provider: Provider) -> None:
        """It is there until then, and the time may change."""

        async def story() -> None:
            name = min(alive(provider))
            for leaves_s in (4e9, 5e9):
                self.set_deadline(provider, name, leaves_s)
                told = name, leaves_s
                await self.until(partial(self._tells, provider, told))

        self.run(provider, story)

    def _tells(self, provider: Provider, told: tuple[str, float]) -> bool:
        return told in [(node.name, node.leaves_s) for node in provider.nodes()]


def alive(provider: Provider) -> set[str]:
    """The nodes whose agents live."""
    return {node.name for node in provider.nodes() if node.is_alive}


def awaited(provider: Provider) -> set[str]:
    """The nodes that were asked for and are not there yet."""
    return {node.name for node in provider.awaited()}


def least(provider: Provider) -> int:
    """The nodes that it begins with."""
    return len(provider.nodes()) if provider.bounds is None else provider.bounds[0]


def most(provider: Provider) -> int:
    """The most nodes that it may have."""
    assert provider.bounds is not None, "the contract needs a provider that adds nodes"
    return provider.bounds[1]
