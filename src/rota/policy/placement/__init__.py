"""Placements: which of the free GPUs a gang gets."""

from collections.abc import Callable

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.view import View

# Largest tensor over model size above which the skew-aware placements consolidate a job: anything
# from 0.14 to 0.61 parts the models of Tiresias' paper alike.
PACK_LIMIT = 0.3

# GPUs among the free ones for the whole gang of a row, or None if it can't be placed there.
Placement = Callable[[View, FreeGpus, int], Allocation | None]


def by_size(place: Callable[[FreeGpus, int], Allocation | None]) -> Placement:
    """The placement that goes by the size of the gang alone."""
    return lambda view, free, row: place(free, view.num_gpus[row])
