"""Outgoing messages to connected agents: a queue for each, sent by its session."""

import asyncio

from rota.live.wire import Message

Outbox = asyncio.Queue[Message | bytes]
# An agent's id, the number of its start, its machine's boot, and the machine.
Process = tuple[str, int, str, str]


def process_of(hello: Message) -> Process | None:
    """The agent's process that says hello; None if it does not tell."""
    agent = hello.get("agent")
    if agent is None:
        return None
    return agent, hello.get("start", 0), hello.get("boot_id", ""), hello.get("machine", "")


class Outboxes:
    """The queues of the connected agents, by node, and their processes if they tell."""

    def __init__(self) -> None:
        self.queues: dict[str, Outbox] = {}
        self.agents: dict[str, Process | None] = {}

    def open(self, node: str, agent: Process | None) -> Outbox:
        """The outbox of a node's new connection, which replaces an older one."""
        self.queues[node], self.agents[node] = Outbox(), agent
        return self.queues[node]

    def close(self, node: str, outbox: Outbox) -> None:
        """Close a connection's outbox, unless another connection has replaced it."""
        if self.queues.get(node) is outbox:
            del self.queues[node], self.agents[node]

    def dismiss(self, node: str, message: Message) -> None:
        """Send a node's agent a last message, after which its connection counts no longer."""
        self.tell(node, message)
        if node in self.queues:
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
