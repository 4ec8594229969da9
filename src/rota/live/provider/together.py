"""Several providers of one cluster, held together as one."""

import asyncio
from collections.abc import Collection, Sequence

from rota.live.provider.base import AwaitedNode, ProvidedNode, Provider


class Together(Provider):
    """The nodes of all ``providers``, whose names differ. At most the first one adds nodes."""

    def __init__(self, *providers: Provider) -> None:
        self._providers = providers

    @property
    def bounds(self) -> tuple[int, int] | None:  # type: ignore[override]
        """The first provider's, with the nodes of the others, which are there in any case."""
        bounds, others = self._providers[0].bounds, self._others()
        return None if bounds is None else (bounds[0] + others, bounds[1] + others)

    def _others(self) -> int:
        return sum(len(provider.nodes()) for provider in self._providers[1:])

    def nodes(self) -> Collection[ProvidedNode]:
        """The nodes of all, in their order."""
        return [node for provider in self._providers for node in provider.nodes()]

    def scale(self, desired: int) -> None:
        """Have so many nodes in all, of which the first provider adds what the others lack."""
        self._providers[0].scale(desired - self._others())

    def release(self, name: str) -> None:
        """Give a node up, whosever it is."""
        for provider in self._providers:
            provider.release(name)

    def awaited(self) -> Sequence[AwaitedNode]:
        """The nodes that any of them awaits."""
        return [node for provider in self._providers for node in provider.awaited()]

    def errors(self) -> Sequence[str]:
        """Whatever went wrong with any of them."""
        return [error for provider in self._providers for error in provider.errors()]

    async def start(self) -> None:
        """Start all, one after another."""
        for provider in self._providers:
            await provider.start()

    async def stop(self) -> None:
        """Stop all."""
        await asyncio.gather(*(provider.stop() for provider in self._providers))

    async def end(self) -> None:
        """Return when all have ended."""
        await asyncio.gather(*(provider.end() for provider in self._providers))

    async def wait_for_end(self, *, connected: Collection[str]) -> None:
        """Wait until the agents of all are gone, but for those that outlive the cluster."""
        await asyncio.gather(
            *(provider.wait_for_end(connected=connected) for provider in self._providers)
        )
