"""Put a gang on the nodes with the most free GPUs, each taken as far as it goes."""

from rota.model.allocation import Allocation, of_parts
from rota.model.cluster import FreeGpus
from rota.policy.placement.nodesets import emptiest_first, lowest_gpus


def emptiest(free: FreeGpus, num_gpus: int) -> Allocation | None:
    """Free GPUs for a gang: all of the emptiest node, then of the next one, as many as it takes.

    Of nodes with as many free GPUs the lowest-numbered comes first. None only if fewer than
    ``num_gpus`` are free. So places the simulator of Pollux (OSDI 2021) its baselines' jobs.
    """
    if num_gpus > free.count:
        return None
    parts, left = [], num_gpus
    for node in emptiest_first(free.by_count):
        mask = free.masks[node]
        gets = min(mask.bit_count(), left)
        parts.append((node, lowest_gpus(mask, gets)))
        left -= gets
        if not left:
            break
    return of_parts(sorted(parts))
