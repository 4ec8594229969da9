"""Put a gang on the fewest nodes that could ever hold it, or let it wait."""

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.view import View
from rota.policy.placement.consolidate import consolidate
from rota.predict.step_time import fewest_nodes


def consolidate_strictly(view: View, free: FreeGpus, row: int) -> Allocation | None:
    """Like :func:`~rota.policy.placement.consolidate.consolidate`, but never scatters a gang.

    None if the gang would get more nodes than it would on the same cluster with all GPUs free.
    """
    num_gpus = view.num_gpus[row]
    allocation = consolidate(free, num_gpus)
    if allocation is None or len(allocation.parts) == 1:
        return allocation
    sizes = sorted((node.num_gpus for node in view.nodes if node.alive), reverse=True)
    return allocation if len(allocation.parts) <= fewest_nodes(sizes, num_gpus) else None
