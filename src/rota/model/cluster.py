"""Nodes of a cluster, and its free GPUs."""

from typing import NamedTuple

from rota.errors import ClusterSpecError
from rota.model.allocation import Allocation


class Node(NamedTuple):
    """A machine with GPUs, or with device slots that stand for them.

    GPUs of one ``island`` (so many neighbouring indices; 0: all of the node) are joined by the
    fastest links. ``gpu_type`` and ``rack`` are empty if unknown; ``memory_gb`` is that of each
    GPU, 0 if unknown. ``millicores`` are the CPU cores that its jobs may use, in thousandths, and
    ``host_memory_gb`` is the memory of the machine that they may use; 0 if unknown. Processes on
    other nodes find those of this one at the address ``reach``, "" if they can't. With
    ``whole_cores`` a job there has whole CPU cores: it can't be held to parts of one.
    """

    name: str
    num_gpus: int
    kind: str = "gpu"  # "gpu": simulated; "cuda": real ones; "cpu": one slot per core
    alive: bool = True
    gpu_type: str = ""
    rack: str = ""
    island: int = 0
    memory_gb: float = 0.0
    millicores: int = 0
    host_memory_gb: float = 0.0
    reach: str = ""
    whole_cores: bool = False

    @property
    def is_live(self) -> bool:
        """True if an agent runs there; a gang is on one node then, or on nodes with a ``reach``."""
        return self.kind != "gpu"

    @property
    def has_device_memory(self) -> bool:
        """True if a job there can run out of device memory, and would be lost then."""
        return self.kind == "cuda"


class Closing(NamedTuple):
    """State of a closed node: with ``drains``, its jobs leave it, by ``by_s`` if given."""

    drains: bool = False
    by_s: float | None = None


def parse_cluster(text: str) -> list[Node]:
    """The nodes that ``text`` describes.

    ``15x4`` is 15 nodes of 4 GPUs; ``16x4:t4,4x8:a100`` combines two kinds and names their GPU
    types; ``:rack=4`` puts every 4 nodes of a kind into a rack, ``:island=2`` joins every 2 GPUs of
    a node by fast links; ``:cpus=24`` gives each node 24 CPU cores, ``:mem=500`` 500 GB of memory.
    Raises ClusterSpecError.
    """
    nodes: list[Node] = []
    racks = 0
    for part in text.split(","):
        shape, *traits = part.strip().split(":")
        count, size = _shape(shape, text)
        gpu_type, numbers = _traits(part, traits, size)
        rack_size = numbers["rack"]
        kind = Node(
            "",
            size,
            gpu_type=gpu_type,
            island=numbers["island"],
            millicores=1000 * numbers["cpus"],
            host_memory_gb=float(numbers["mem"]),
        )
        for i in range(count):
            rack = f"rack{racks + i // rack_size}" if rack_size else ""
            nodes.append(kind._replace(name=f"node{len(nodes)}", rack=rack))
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


def _traits(part: str, traits: list[str], num_gpus: int) -> tuple[str, dict[str, int]]:
    gpu_type, numbers = "", {"rack": 0, "island": 0, "cpus": 0, "mem": 0}
    for trait in traits:
        key, equals, value = trait.partition("=")
        if not equals and not gpu_type and trait.replace("-", "").replace("_", "").isalnum():
            gpu_type = trait
        elif key in numbers and value.isascii() and value.isdigit() and 0 < int(value) <= 1_000_000:
            numbers[key] = int(value)
        else:
            raise ClusterSpecError(
                f"cluster: {trait!r} in {part.strip()!r} can't be read; after NODESxGPUS come the "
                "GPU type, rack=NODES, island=GPUS, cpus=CORES and mem=GB, each a whole number "
                "from 1 to 1000000, for example 16x8:a100:rack=4:island=4:cpus=24:mem=500"
            )
    island = numbers["island"]
    if island and num_gpus % island:
        raise ClusterSpecError(
            f"cluster: island={island} in {part.strip()!r} does not divide {num_gpus} GPUs"
        )
    return gpu_type, numbers


class FreeGpus:
    """The free GPUs: a bit mask per node, and for each free count a bit set of nodes.

    Finding the tightest node costs one look per possible free count, whatever the number of nodes.
    ``count`` is the number of free GPUs of the whole cluster, ``steps`` how often GPUs have been
    taken or given back since this object was made. A GPU that jobs share is not free; ``sharers``
    counts them, by (node, GPU).
    """

    __slots__ = ("_by_count", "_largest", "count", "masks", "sharers", "steps")

    def __init__(self) -> None:
        self.masks: list[int] = []
        self.count = 0
        self.steps = 0
        self.sharers: dict[tuple[int, int], int] = {}
        self._by_count: list[int] | None = None  # made on request: some users only need the masks
        self._largest = 0  # most GPUs that a node has had free

    @property
    def by_count(self) -> list[int]:
        """For each number of GPUs, the nodes with so many free GPUs, as a bit set."""
        if self._by_count is None:
            self._by_count = _nodes_by_count(self.masks, self._largest)
        return self._by_count

    def copy(self) -> "FreeGpus":
        """An independent copy. Both have the nodes by count."""
        if self._by_count is None:
            self._by_count = _nodes_by_count(self.masks, self._largest)
        return self.__copy__()

    def __copy__(self) -> "FreeGpus":
        """An independent copy, made without a change of this object: other threads may use it."""
        twin = _blank(FreeGpus)
        twin.masks = self.masks.copy()
        twin.count = self.count
        twin.steps = 0
        twin.sharers = self.sharers.copy() if self.sharers else {}
        twin._by_count = by_count.copy() if (by_count := self._by_count) is not None else None
        twin._largest = self._largest
        return twin

    def set_mask(self, node: int, mask: int) -> None:
        """Set the free GPUs of ``node`` to exactly those in ``mask``; new nodes come in order."""
        masks = self.masks
        if node == len(masks):
            masks.append(0)
        count = mask.bit_count()
        self.count += count - masks[node].bit_count()
        self._largest = max(self._largest, count)
        masks[node] = mask
        self._by_count = None

    def fits(self, allocation: Allocation) -> bool:
        """True if the job can have every GPU of ``allocation``, which names no node twice.

        A GPU must be free, or shared by others if the allocation is shared.
        """
        masks, parts = self.masks, allocation.parts
        if allocation.shared and self.sharers:
            parts = self._unshared(allocation)
        for node, mask in parts:
            if masks[node] & mask != mask:
                return False
        return len(parts) == 1 or len({node for node, _ in parts}) == len(parts)

    def take(self, allocation: Allocation) -> bool:
        """Mark the GPUs of ``allocation`` as taken; False, and none is, unless it :meth:`fits`."""
        if allocation.shared:
            return self._take_shared(allocation)
        masks, by_count, parts = self.masks, self._by_count, allocation.parts
        if len(parts) > 1 and not self.fits(allocation):
            return False
        for node, mask in parts:
            old = masks[node]
            if old & mask != mask:
                return False
            masks[node] = new = old ^ mask
            if by_count is not None:
                bit = 1 << node
                by_count[old.bit_count()] ^= bit
                by_count[new.bit_count()] ^= bit
        self.count -= allocation.num_gpus
        self.steps += 1
        return True

    def give(self, allocation: Allocation) -> None:
        """Mark the GPUs of ``allocation``, all taken, as free, or as shared by one job less."""
        if allocation.shared:
            self._give_shared(allocation)
            return
        masks, by_count = self.masks, self._by_count
        for node, mask in allocation.parts:
            old = masks[node]
            masks[node] = new = old | mask
            if by_count is not None:
                bit = 1 << node
                by_count[old.bit_count()] ^= bit
                by_count[new.bit_count()] ^= bit
        self.count += allocation.num_gpus
        self.steps += 1

    # -- sharing -------------------------------------------------------------------------------

    def _unshared(self, allocation: Allocation) -> tuple[tuple[int, int], ...]:
        """GPUs of the allocation that no job shares."""
        parts = []
        for node, gpus in allocation.gpus():
            mask = sum(1 << gpu for gpu in gpus if (node, gpu) not in self.sharers)
            parts.append((node, mask))
        return tuple(parts)

    def _take_shared(self, allocation: Allocation) -> bool:
        if not self.fits(allocation):
            return False
        for node, gpus in allocation.gpus():
            for gpu in gpus:
                others = self.sharers.get((node, gpu), 0)
                self.sharers[node, gpu] = others + 1
                if not others:
                    self._flip(node, 1 << gpu)
        self.steps += 1
        return True

    def _give_shared(self, allocation: Allocation) -> None:
        for node, gpus in allocation.gpus():
            for gpu in gpus:
                others = self.sharers[node, gpu] - 1
                if others:
                    self.sharers[node, gpu] = others
                else:
                    del self.sharers[node, gpu]
                    self._flip(node, 1 << gpu)
        self.steps += 1

    def _flip(self, node: int, bit: int) -> None:
        """Mark one GPU that is free as taken, or the other way round."""
        self.set_mask(node, self.masks[node] ^ bit)


_blank = FreeGpus.__new__


def _nodes_by_count(masks: list[int], largest: int) -> list[int]:
    sets: dict[int, bytearray] = {}
    for node, mask in enumerate(masks):
        count = mask.bit_count()
        bits = sets.get(count)
        if bits is None:
            bits = sets[count] = bytearray((len(masks) + 7) // 8)
        bits[node >> 3] |= 1 << (node & 7)
    by_count = [0] * (largest + 1)
    for count, bits in sets.items():
        by_count[count] = int.from_bytes(bits, "little")
    return by_count
