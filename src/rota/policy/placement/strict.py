"""Put a gang on the fewest nodes that could ever hold it, or let it wait."""

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.view import View
from rota.policy.placement.consolidate import consolidate


def consolidate_strictly(view: View, free: FreeGpus, row: int) -> Allocation | None:
    """As :func:`~rota.policy.placement.consolidate.consolidate`, but refuses to scatter a gang.

    None if the gang would get more nodes than it would on the same cluster with all GPUs free.
    """
    num_gpus = view.num_gpus[row]
    allocation = consolidate(free, num_gpus)
    if allocation is None or len(allocation.parts) <= _fewest_nodes(view, num_gpus):
        return allocation
    return None


def _fewest_nodes(view: View, num_gpus: int) -> int:
    nodes = 0
    for size in sorted((n.num_gpus for n in view.state.nodes if n.alive), reverse=True):
        if num_gpus <= 0:
            break
        num_gpus -= size
        nodes += 1
    return nodes
