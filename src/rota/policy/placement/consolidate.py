"""Put a gang on as few nodes as possible, in the tightest holes that take it."""

from rota.model.allocation import Allocation, on_node
from rota.model.cluster import FreeGpus
from rota.policy.placement.nodesets import fewest, lowest_gpus


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
            return on_node(node, mask & -mask if num_gpus == 1 else lowest_gpus(mask, num_gpus))
    parts = fewest(free.by_count, num_gpus) or ()
    return Allocation(tuple(sorted((n, lowest_gpus(free.masks[n], gpus)) for n, gpus in parts)))
