"""Placements: which of the free GPUs a gang gets."""

from collections.abc import Callable

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.view import View

# GPUs among the free ones for the whole gang of a row, or None if it can't be placed there.
Placement = Callable[[View, FreeGpus, int], Allocation | None]
