"""Machines that have joined the cluster: their agents were started there, by their owners.

Nothing here starts or ends an agent: one that is away may come back at any time.
"""

import asyncio
from collections.abc import Callable, Collection

from rota.live.provider.base import ProvidedNode, Provider

END_POLL_S = 0.02


class JoinedProvider(Provider):
    """The nodes of machines that have joined and were not removed, by ``names``.

    ``is_connected`` says whether a node's agent is, and ``has_jobs`` whether it may have processes
    of jobs.
    """

    def __init__(self, names: Callable[[], Collection[str]]) -> None:
        self._names = names
        self.is_connected: Callable[[str], bool] = lambda name: False
        self.has_jobs: Callable[[str], bool] = lambda name: False

    def nodes(self) -> Collection[ProvidedNode]:
        """The nodes, in the order of their names; none of them can be released."""
        return [
            ProvidedNode(name, self.is_connected(name), stays=True)
            for name in sorted(self._names())
        ]

    async def end(self) -> None:
        """Return when no node whose agent is connected has jobs. Agents go on, without jobs."""
        while any(node.is_alive and self.has_jobs(node.name) for node in self.nodes()):
            await asyncio.sleep(END_POLL_S)
