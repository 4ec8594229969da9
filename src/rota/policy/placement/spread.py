"""Put a gang on as many nodes as possible, to balance their network load."""

from rota.model.allocation import Allocation, of_parts
from rota.model.cluster import FreeGpus
from rota.policy.placement.nodesets import emptiest_first, lowest_gpus


def spread(free: FreeGpus, num_gpus: int) -> Allocation | None:
    """Free GPUs for a gang, dealt out one by one over the nodes that have any.

    Each round gives one GPU to every node that still has one; the nodes with the most free GPUs
    come first, then the lowest-numbered. None only if fewer than ``num_gpus`` are free.
    """
    if num_gpus > free.count:
        return None
    rounds, left = 0, num_gpus
    nodes_with = _nodes_with(free.by_count)
    while rounds + 1 < len(nodes_with) and nodes_with[rounds + 1] <= left:
        rounds += 1
        left -= nodes_with[rounds]
    parts = []
    for node in emptiest_first(free.by_count):
        has = free.masks[node].bit_count()
        gets = min(has, rounds)
        if left and has > rounds:
            gets += 1
            left -= 1
        if gets:
            parts.append((node, lowest_gpus(free.masks[node], gets)))
        elif not left:
            break
    return of_parts(sorted(parts))


def _nodes_with(by_count: list[int]) -> list[int]:
    """For each count, the number of nodes with at least so many free GPUs."""
    nodes_with = [0] * len(by_count)
    total = 0
    for count in range(len(by_count) - 1, 0, -1):
        total += by_count[count].bit_count()
        nodes_with[count] = total
    return nodes_with
