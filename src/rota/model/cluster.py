"""What a cluster is made of, and which of its GPUs are free."""

from typing import NamedTuple

from rota.errors import ClusterSpecError
from rota.model.allocation import Allocation


class Node(NamedTuple):
    """A machine with GPUs, or with device slots that stand for them.

    GPUs of one ``island`` (so many neighbouring indices; 0: all of the node) are joined by the
    fastest links. An empty ``gpu_type`` or ``rack`` is one that nobody named.
    """

    name: str
    num_gpus: int
    kind: str = "gpu"  # "gpu": simulated; "cuda": real ones; "cpu": one slot per core
    alive: bool = True
    gpu_type: str = ""
    rack: str = ""
    island: int = 0


def parse_cluster(text: str) -> list[Node]:
    """The nodes that ``text`` describes.

    ``15x4`` is 15 nodes of 4 GPUs; ``16x4:t4,4x8:a100`` adds two kinds up and names their GPU
    types; ``:rack=4`` puts every 4 nodes of a kind into a rack, ``:island=2`` joins every 2 GPUs of
    a node by fast links. Raises ClusterSpecError.
    """
    nodes: list[Node] = []
    racks = 0
    for part in text.split(","):
        shape, *traits = part.strip().split(":")
        count, size = _shape(shape, text)
        gpu_type, rack_size, island = _traits(part, traits, size)
        for i in range(count):
            rack = f"rack{racks + i // rack_size}" if rack_size else ""
            name = f"node{len(nodes)}"
            nodes.append(Node(name, size, gpu_type=gpu_type, rack=rack, island=island))
        racks += -(-count // rack_size) if rack_size else 0
    return nodes


def _shape(shape: str, text: str) -> tuple[int, int]:
    count, x, size = shape.partition("x")
    if not (x and count.isascii() and count.isdigit() and size.isascii() and size.isdigit()):
        raise ClusterSpecError(
            f"cluster: {text!r} is not of the form NODESxGPUS; "
            "write for example 15x4 (15 nodes of 4 GPUs), 2x4,1x8 or 16x4:t4,4x8:a100"
        )
    if len(count) > 7 or not 1 <= int(count) <= 1_000_000:
        raise ClusterSpecError(f"cluster: {shape!r} has too many or no nodes; 1 to 1000000 work")
    if len(size) > 4 or not 1 <= int(size) <= 1024:
        raise ClusterSpecError(f"cluster: {shape!r} has too many or no GPUs; 1 to 1024 work")
    return int(count), int(size)


def _traits(part: str, traits: list[str], num_gpus: int) -> tuple[str, int, int]:
    gpu_type, numbers = "", {"rack": 0, "island": 0}
    for trait in traits:
        key, equals, value = trait.partition("=")
        if not equals and not gpu_type and trait.replace("-", "").replace("_", "").isalnum():
            gpu_type = trait
        elif key in numbers and value.isascii() and value.isdigit() and 0 < int(value) <= 1_000_000:
            numbers[key] = int(value)
        else:
            raise ClusterSpecError(
                f"cluster: {trait!r} in {part.strip()!r} can't be read; after NODESxGPUS come the "
                "GPU type, rack=NODES and island=GPUS, for example 16x8:a100:rack=4:island=4"
            )
    island = numbers["island"]
    if island and num_gpus % island:
        raise ClusterSpecError(
            f"cluster: island={island} in {part.strip()!r} does not divide {num_gpus} GPUs"
        )
    return gpu_type, numbers["rack"], island


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
