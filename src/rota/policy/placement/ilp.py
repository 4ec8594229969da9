"""Spread a gang by an integer linear programme: the least loaded network, at its worst node.

Gu et al., *Tiresias*, NSDI 2019, section 3.3, whose simulator minimises the largest network load of
any node subject to its free GPUs. Each GPU in use counts as one unit of load: in the paper's
architecture every worker pulls a model and pushes its gradients, and a view does not tell sizes.
"""

from rota.errors import PlanError
from rota.model.allocation import Allocation, on_node
from rota.model.cluster import FreeGpus
from rota.model.view import View
from rota.policy.placement.nodesets import lowest_gpus


def balance_load(view: View, free: FreeGpus, row: int) -> Allocation | None:
    """Free GPUs for a gang such that the highest load of any node it uses is as low as can be.

    Of placements with the same highest load, HiGHS gives some; ties are broken by filling the nodes
    in the order of their number up to that load. None only if too few GPUs are free.
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
    return on_node(*parts[0]) if len(parts) == 1 else Allocation(tuple(parts))


def lowest_peak(free: list[int], loads: list[int], num_gpus: int) -> int:
    """The least z such that ``num_gpus`` fit with load + given <= z on every node that gets some.

    ``free`` and ``loads`` are per node. Solved by HiGHS: minimise z over whole x, 0 <= x <= free,
    sum x = num_gpus, and per node load + x <= z or x = 0.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, eye_array, hstack, vstack

    n = len(free)
    # Unknowns: x per node, y per node (1: the node is used), z.
    x, column = eye_array(n), csr_array(np.ones((n, 1)))
    room, load = np.array(free, dtype=float), np.array(loads, dtype=float)
    by_room, by_load = eye_array(n) * room[:, None], eye_array(n) * load[:, None]
    rows = vstack(
        [
            hstack([x, -by_room, 0 * column]),  # x <= free * y
            hstack([x, by_load, -column]),  # load * y + x <= z
            hstack([csr_array(np.ones((1, n))), csr_array((1, n + 1))]),
        ]
    )
    upper = np.concatenate([np.zeros(2 * n), [num_gpus]])
    lower = np.concatenate([np.full(2 * n, -np.inf), [num_gpus]])
    found = milp(
        np.concatenate([np.zeros(2 * n), [1.0]]),
        constraints=LinearConstraint(rows, lower, upper),
        bounds=Bounds(0.0, np.concatenate([room, np.ones(n), [np.inf]])),
        integrality=np.ones(2 * n + 1),
    )
    if found.x is None:
        raise PlanError(f"HiGHS found no placement for {num_gpus} GPUs: {found.message}")
    peak: float = found.x[-1]
    return round(peak)
