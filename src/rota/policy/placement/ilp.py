"""Spread a gang by the paper's integer linear programme: the least network load at the worst node.

Gu et al., *Tiresias*, NSDI 2019, section 3.3, whose simulator minimises the largest network load of
any node subject to its free GPUs. Each GPU in use counts as one unit of load: in the paper's
architecture every worker pulls a model and pushes its gradients, and a view does not tell sizes.
"""

from bisect import bisect_left

from rota.model.allocation import Allocation, of_parts
from rota.model.cluster import FreeGpus
from rota.model.view import View
from rota.policy.placement.nodesets import lowest_gpus


def balance_load(view: View, free: FreeGpus, row: int) -> Allocation | None:
    """Free GPUs for a gang such that the highest load of any node it uses is as low as can be.

    Of placements with the same highest load, the one that fills the nodes in the order of their
    number up to that load. None only if too few GPUs are free.
    """
    num_gpus = view.num_gpus[row]
    if num_gpus > free.count:
        return None
    room = [(node, mask.bit_count()) for node, mask in enumerate(free.masks) if mask]
    loads = [view.nodes[node].num_gpus - count for node, count in room]
    highest = lowest_peak([count for _, count in room], loads, num_gpus)
    parts = []
    for (node, count), load in zip(room, loads, strict=True):
        gets = min(count, num_gpus, max(0, highest - load))
        if gets:
            parts.append((node, lowest_gpus(free.masks[node], gets)))
            num_gpus -= gets
    return of_parts(parts)


def lowest_peak(free: list[int], loads: list[int], num_gpus: int) -> int:
    """The least z such that ``num_gpus`` fit with load + given <= z on every node that gets some.

    ``free`` and ``loads`` are per node, and ``num_gpus`` at most the sum of ``free``. A higher peak
    never leaves room for fewer GPUs, so that bisection finds the least one.
    """
    nodes = list(zip(free, loads, strict=True))

    def room_below(peak: int) -> int:
        return sum(min(count, max(0, peak - load)) for count, load in nodes)

    highest = max(count + load for count, load in nodes)
    return bisect_left(range(highest), num_gpus, key=room_below)
