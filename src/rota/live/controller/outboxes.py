"""What agents that are connected are to be told: a queue for each, which its session sends."""

import asyncio

from rota.live.wire import Message

Outbox = asyncio.Queue[Message | bytes]


class Outboxes:
    """The queues of the connected agents, by node, and what each agent calls itself."""

    def __init__(self) -> None:
        self._queues: dict[str, Outbox] = {}
        self._agents: dict[str, str | None] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._queues

    @property
    def nodes(self) -> set[str]:
        """The nodes whose agents are connected."""
        return set(self._queues)

    def of(self, node: str) -> Outbox:
        """The outbox of a node whose agent is connected."""
        return self._queues[node]

    def agent(self, node: str) -> str | None:
        """What the connected agent of a node calls itself; None if it has not told, or is not."""
        return self._agents.get(node)

    def open(self, node: str, agent: str | None) -> Outbox:
        """The outbox of a node's new connection, which takes the place of an older one."""
        self._queues[node], self._agents[node] = Outbox(), agent
        return self._queues[node]

    def close(self, node: str, outbox: Outbox) -> None:
        """The connection has ended, unless another has taken its place."""
        if self._queues.get(node) is outbox:
            del self._queues[node], self._agents[node]

    def tell(self, node: str, message: Message | bytes) -> bool:
        """Send an agent something; False if it is not connected."""
        outbox = self._queues.get(node)
        if outbox is not None:
            outbox.put_nowait(message)
        return outbox is not None

    def tell_all(self, message: Message) -> None:
        """Send every connected agent something."""
        for outbox in self._queues.values():
            outbox.put_nowait(message)
