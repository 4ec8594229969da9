"""The contract of node providers: agents on their nodes, and the list of nodes."""

from collections.abc import Collection, Mapping
from typing import Protocol


class Provider(Protocol):
    """Gets an agent onto each of its nodes, and keeps it alive. Agents call the controller."""

    @property
    def names(self) -> Collection[str]:
        """The nodes that it looks after; some may come and go while the controller runs.

        A node is among them until nothing of its jobs can run there. From then on it is gone.
        """
        ...

    @property
    def leaves(self) -> Mapping[str, float]:
        """The nodes among them that must go, and when, in seconds since 1970.

        They are drained by then. What an administrator asks of such a node does not last.
        """
        ...

    @property
    def alive(self) -> Collection[str]:
        """The nodes among them whose agents live."""
        ...

    async def start(self) -> None:
        """Begin to watch over the agents."""
        ...

    async def stop(self) -> None:
        """Stop watching. An agent ends by itself when it has nothing left to do."""
        ...

    async def end(self) -> None:
        """Return when all agents, told to end, are gone, and all jobs with them.

        An agent that dies before its jobs have ended is replaced by one that ends them.
        """
        ...

    async def wait_for_end(self, *, connected: Collection[str]) -> None:
        """Wait until all agents, told to end, are gone; those never ``connected`` are killed."""
        ...
