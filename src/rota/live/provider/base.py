"""The contract of node providers: agents on their nodes, and the list of nodes.

A provider knows an engine, and nothing of the controller; the controller knows no engine. Nothing
here waits for an engine: what is asked for shows later, in :meth:`Provider.nodes`. A controller may
be killed at any time: the next one's provider finds by name what the engine was asked for, and asks
for nothing twice (:mod:`rota.live.provider.asked` writes names down). The suite
:mod:`rota.testing.provider_contract` holds a provider against this contract.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple


class ProvidedNode(NamedTuple):
    """A node, whether its agent lives, and when it must go, in seconds since 1970.

    ``leaves_s`` may change at any time; None: the node need not go. A node that ``stays`` can't be
    released. ``about`` is what people who know the engine look for, such as ``Slurm job 17``. A
    node that is ``wanted_back`` is released before ``leaves_s``, once its jobs have left it.
    """

    name: str
    is_alive: bool
    leaves_s: float | None = None
    stays: bool = False
    about: str = ""
    wanted_back: bool = False


class AwaitedNode(NamedTuple):
    """A node that was asked for and whose agent has not lived yet: the reason, in the engine's
    own words if it has any.
    """

    name: str
    why: str


class Provider:
    """Gets an agent onto each of its nodes, and keeps it alive. Agents call the controller.

    This one's nodes are what they are; one that adds nodes has ``bounds``: the least and the most
    that it may have.
    """

    bounds: tuple[int, int] | None = None

    def nodes(self) -> Collection[ProvidedNode]:
        """The nodes that it looks after; some may come and go while the controller runs.

        A node stays among them until the engine says for certain that nothing of its jobs can run
        there. From then on it is lost, whether or not it was released, and replaced only if it is
        asked for.
        """
        raise NotImplementedError

    @property
    def names(self) -> set[str]:
        """The names of these nodes."""
        return {node.name for node in self.nodes()}

    def scale(self, desired: int) -> None:
        """Have ``desired`` nodes in all, within the bounds.

        Asked for again, it changes nothing. Nodes that are awaited and are more than that are
        awaited no longer; those that are there stay until they are released.
        """

    def release(self, name: str) -> None:
        """Give a node up that has no jobs and whose agent was told to end.

        The agent is not replaced, and the node is gone once it has ended. A node that is given up
        already, or that there is not, stays so.
        """

    def awaited(self) -> Sequence[AwaitedNode]:
        """The nodes that were asked for and are no capacity yet."""
        return ()

    def errors(self) -> Sequence[str]:
        """Everything that has gone wrong since it was asked last, a sentence each."""
        return ()

    async def start(self) -> None:
        """Begin to watch over the agents."""

    async def stop(self) -> None:
        """Stop watching. An agent ends by itself when it has nothing left to do."""

    async def end(self) -> None:
        """Return when all agents, told to end, are gone, and all jobs with them.

        An agent that dies before its jobs have ended is replaced by one that ends them.
        """

    async def wait_for_end(self, *, connected: Collection[str]) -> None:
        """Wait until all agents, told to end, are gone; those never ``connected`` are killed.

        Agents that outlive the cluster are not waited for.
        """
