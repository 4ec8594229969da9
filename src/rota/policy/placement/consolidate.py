"""Put a gang on as few nodes as possible, in the tightest holes that take it."""

from rota.model.allocation import Allocation, on_node
from rota.model.cluster import FreeGpus


def consolidate(free: FreeGpus, num_gpus: int) -> Allocation | None:
    """Free GPUs for a gang: one node if any has room, else as few nodes as can be.

    The node with the least room that suffices is taken, the lowest-numbered of those; a gang that
    fits on no node takes the emptiest nodes whole and the rest on the tightest one. None only if
    fewer than ``num_gpus`` are free.
    """
    if num_gpus > free.count:
        return None
    for nodes in free.by_count[num_gpus:]:
        if nodes:
            node = (nodes & -nodes).bit_length() - 1
            mask = free.masks[node]
            return on_node(node, mask & -mask if num_gpus == 1 else _lowest_bits(mask, num_gpus))
    return _over_nodes(free, num_gpus)


def _over_nodes(free: FreeGpus, num_gpus: int) -> Allocation:
    """The emptiest nodes whole, and the rest on the tightest one."""
    parts: list[tuple[int, int]] = []
    nodes_left = free.by_count.copy()
    missing = num_gpus
    while missing:
        node = _tightest(nodes_left, missing)
        if node is None:
            node = _emptiest(nodes_left)
        mask = free.masks[node]
        nodes_left[mask.bit_count()] &= ~(1 << node)
        mask = _lowest_bits(mask, min(missing, mask.bit_count()))
        parts.append((node, mask))
        missing -= mask.bit_count()
    return Allocation(tuple(sorted(parts)))


def _tightest(by_count: list[int], num_gpus: int) -> int | None:
    for count in range(num_gpus, len(by_count)):
        nodes = by_count[count]
        if nodes:
            return (nodes & -nodes).bit_length() - 1
    return None


def _emptiest(by_count: list[int]) -> int:
    for nodes in reversed(by_count):
        if nodes:
            return (nodes & -nodes).bit_length() - 1
    raise AssertionError("the count of free GPUs disagrees with the nodes")


def _lowest_bits(mask: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        bit = mask & -mask
        taken |= bit
        mask ^= bit
    return taken
