"""Placements by name."""

from collections.abc import Callable
from difflib import get_close_matches

from rota.errors import PolicySettingError
from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.view import View
from rota.policy.placement.best_fit import BestFit
from rota.policy.placement.consolidate import consolidate
from rota.policy.placement.ilp import balance_load
from rota.policy.placement.skew import PACK_LIMIT, Skew
from rota.policy.placement.spread import spread
from rota.policy.placement.strict import consolidate_strictly
from rota.policy.placement.topology import Topology

# GPUs among the free ones for the whole gang of a row, or None if it can't be placed there.
Placement = Callable[[View, FreeGpus, int], Allocation | None]

# Only those that end in -strict ever refuse a gang for which enough GPUs are free.
NAMES = (
    "best-fit",
    "consolidate",
    "consolidate-strict",
    "ilp",
    "skew",
    "skew-strict",
    "spread",
    "topology",
)


def placement(name: str, pack_limit: float = PACK_LIMIT) -> Placement:
    """The placement called ``name``; ``pack_limit`` is for the skew-aware ones.

    Raises PolicySettingError naming the close ones.
    """
    if name == "best-fit":
        return BestFit()
    if name == "consolidate":
        return _consolidate
    if name == "consolidate-strict":
        return consolidate_strictly
    if name == "ilp":
        return balance_load
    if name in ("skew", "skew-strict"):
        return Skew(pack_limit, strict=name == "skew-strict")
    if name == "spread":
        return _spread
    if name == "topology":
        return Topology()
    close = get_close_matches(name, NAMES, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise PolicySettingError(f"placement: there is no {name!r}{hint}; known: {', '.join(NAMES)}")


def _consolidate(view: View, free: FreeGpus, row: int) -> Allocation | None:
    return consolidate(free, view.num_gpus[row])


def _spread(view: View, free: FreeGpus, row: int) -> Allocation | None:
    return spread(free, view.num_gpus[row])
