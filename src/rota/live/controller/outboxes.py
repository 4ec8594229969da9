"""Outgoing messages to connected agents: a queue for each, sent by its session."""

import asyncio

from rota.live.wire import Message

Outbox = asyncio.Queue[Message | bytes]


class Outboxes:
    """The queues of the connected agents, by node, and the agents' own ids if they sent them."""

    def __init__(self) -> None:
        self.queues: dict[str, Outbox] = {}
        self.agents: dict[str, str | None] = {}

    def open(self, node: str, agent: str | None) -> Outbox:
        """The outbox of a node's new connection, which replaces an older one."""
        self.queues[node], self.agents[node] = Outbox(), agent
        return self.queues[node]

    def close(self, node: str, outbox: Outbox) -> None:
        """Close a connection's outbox, unless another connection has replaced it."""
        if self.queues.get(node) is outbox:
            del self.queues[node], self.agents[node]

    def tell(self, node: str, message: Message | bytes) -> bool:
        """Send an agent something; False if it is not connected."""
        outbox = self.queues.get(node)
        if outbox is not None:
            outbox.put_nowait(message)
        return outbox is not None

    def tell_all(self, message: Message) -> None:
        """Send every connected agent something."""
        for outbox in self.queues.values():
            outbox.put_nowait(message)
