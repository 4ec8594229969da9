"""What a cluster is made of, and which of its GPUs are free."""

from typing import NamedTuple

from rota.errors import ClusterSpecError
from rota.model.allocation import Allocation


class Node(NamedTuple):
    """A machine with GPUs, or with device slots that stand for them."""

    name: str
    num_gpus: int
    kind: str = "gpu"  # "gpu": simulated; "cuda": real ones; "cpu": one slot per core
    alive: bool = True


def parse_cluster(text: str) -> list[Node]:
    """The nodes that ``text`` describes: ``15x4`` is 15 nodes of 4 GPUs, ``2x4,1x8`` adds up.

    Raises ClusterSpecError.
    """
    nodes: list[Node] = []
    for part in text.split(","):
        count, x, size = part.strip().partition("x")
        if not (x and count.isascii() and count.isdigit() and size.isascii() and size.isdigit()):
            raise ClusterSpecError(
                f"cluster: {text!r} is not of the form NODESxGPUS; "
                "write for example 15x4 (15 nodes of 4 GPUs) or 2x4,1x8"
            )
        if len(count) > 7 or len(size) > 4 or not 1 <= int(count) <= 1_000_000:
            raise ClusterSpecError(f"cluster: {part!r} has too many or no nodes; 1 to 1000000 work")
        if not 1 <= int(size) <= 1024:
            raise ClusterSpecError(f"cluster: {part!r} has too many or no GPUs; 1 to 1024 work")
        start = len(nodes)
        nodes += [Node(f"node{start + i}", int(size)) for i in range(int(count))]
    return nodes


class FreeGpus:
    """Which GPUs are free: a bit mask per node, and for each free count a bit set of nodes.

    Finding the tightest node costs one look per possible free count, whatever the number of
    nodes. ``count`` is the number of free GPUs of the whole cluster.
    """

    __slots__ = ("by_count", "count", "masks")

    def __init__(self) -> None:
        self.masks: list[int] = []
        self.by_count: list[int] = [0]
        self.count = 0

    def copy(self) -> "FreeGpus":
        """An independent copy."""
        twin = FreeGpus.__new__(FreeGpus)
        twin.masks = self.masks.copy()
        twin.by_count = self.by_count.copy()
        twin.count = self.count
        return twin

    def set_mask(self, node: int, mask: int) -> None:
        """Say that exactly the GPUs in ``mask`` are free on ``node``; new nodes come in order."""
        if node == len(self.masks):
            self.masks.append(0)
            self.by_count[0] |= 1 << node
        old, new = self.masks[node].bit_count(), mask.bit_count()
        while new >= len(self.by_count):
            self.by_count.append(0)
        self.masks[node] = mask
        self.by_count[old] &= ~(1 << node)
        self.by_count[new] |= 1 << node
        self.count += new - old

    def fits(self, allocation: Allocation) -> bool:
        """Whether every GPU of ``allocation`` is free."""
        masks = self.masks
        return all(masks[node] & mask == mask for node, mask in allocation.parts)

    def take(self, allocation: Allocation) -> None:
        """Mark the GPUs of ``allocation``, all of them free, as taken."""
        for node, mask in allocation.parts:
            self.set_mask(node, self.masks[node] & ~mask)

    def give(self, allocation: Allocation) -> None:
        """Mark the GPUs of ``allocation``, all of them taken, as free."""
        for node, mask in allocation.parts:
            self.set_mask(node, self.masks[node] | mask)
