"""Consolidate only the jobs whose model has one tensor that outweighs the rest.

Gu et al., *Tiresias*, NSDI 2019, section 3.3: a model whose largest tensor is a large part of it
loads the network unevenly, and suffers when its gang is scattered; the others hardly notice.
"""

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.view import View
from rota.policy.placement import PACK_LIMIT, Placement, by_size
from rota.policy.placement.consolidate import consolidate
from rota.policy.placement.spread import spread
from rota.policy.placement.strict import consolidate_strictly


class Skew:
    """Consolidate a gang iff its model's skew is above ``pack_limit``; spread the others.

    Skew is the largest tensor over the model's size. A job whose skew nobody knows is consolidated.
    With ``strict`` a skewed gang waits until it can be consolidated, as in the paper; else it takes
    the fewest nodes that are to be had now, and None means that too few GPUs are free.
    """

    def __init__(self, pack_limit: float = PACK_LIMIT, *, strict: bool = False) -> None:
        self.pack_limit = pack_limit
        self._gather: Placement = consolidate_strictly if strict else by_size(consolidate)

    def __call__(self, view: View, free: FreeGpus, row: int) -> Allocation | None:
        """GPUs for the job of ``row``."""
        if is_skewed(view.skew[row], self.pack_limit):
            return self._gather(view, free, row)
        return spread(free, view.num_gpus[row])


def is_skewed(skew: float, pack_limit: float = PACK_LIMIT) -> bool:
    """True if a model of this skew (-1: unknown) is to be consolidated."""
    return skew < 0 or skew > pack_limit
