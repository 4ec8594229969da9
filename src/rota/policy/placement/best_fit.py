"""Place where the GPUs that are left stay useful to the jobs that are there.

Fragmentation is measured as by Weng et al., *Beware of Fragmentation*, USENIX ATC 2023: a node's
free GPUs, times the share of the load whose gangs they are too few for. The node is taken on which
it grows the least.
"""

from collections import Counter
from collections.abc import Sequence

from rota.model.allocation import Allocation, of_parts
from rota.model.cluster import FreeGpus
from rota.model.job import JobSpec
from rota.model.view import View
from rota.policy.placement.nodesets import lowest, lowest_gpus


class BestFit:
    """The node on which fragmentation grows the least, else as few nodes as can be.

    The load is the active jobs of the view, each of which counts once. Of equal nodes the one with
    the fewest free GPUs comes first, then the lowest-numbered. None only if too few GPUs are free.
    """

    def __init__(self) -> None:
        self._decision: tuple[float, ...] = ()  # the one that the shares were counted for
        self._of: Sequence[JobSpec] | None = None  # all jobs of that view
        self._too_small: list[float] = []

    def __call__(self, view: View, free: FreeGpus, row: int) -> Allocation | None:
        """GPUs for the job of ``row``."""
        num_gpus = view.num_gpus[row]
        if num_gpus > free.count:
            return None
        decision = (view.now_s, view.decision_seq, len(view.active), len(free.by_count))
        if decision != self._decision or view.spec is not self._of:
            self._decision, self._of = decision, view.spec
            self._too_small = share_too_small(_demand(view), len(free.by_count) - 1)
        by_count, parts = free.by_count.copy(), []
        while num_gpus:
            fitting = [c for c in range(num_gpus, len(by_count)) if by_count[c]]
            if fitting:
                growth = {c: self._fragments(c - num_gpus) - self._fragments(c) for c in fitting}
                count = min(fitting, key=lambda c: (growth[c], c))
            else:
                count = max(c for c in range(len(by_count)) if by_count[c])
            node = lowest(by_count[count])
            by_count[count] &= ~(1 << node)
            gets = min(count, num_gpus)
            parts.append((node, lowest_gpus(free.masks[node], gets)))
            num_gpus -= gets
        return of_parts(sorted(parts))

    def _fragments(self, free: int) -> float:
        return free * self._too_small[free]


def share_too_small(demand: Counter[int], most: int) -> list[float]:
    """For 0 to ``most`` free GPUs of a node, the share of jobs whose gang needs more.

    ``demand`` is GPUs -> number of jobs. A gang that fits on no node asks for whole ones.
    """
    jobs = demand.total()
    if not jobs:
        return [0.0] * (most + 1)
    smaller = 0
    shares = []
    for free in range(most + 1):
        smaller += sum(n for gpus, n in demand.items() if min(gpus, most) == free)
        shares.append(1 - smaller / jobs)
    return shares


def _demand(view: View) -> Counter[int]:
    return Counter(view.num_gpus[row] for row in view.active)
