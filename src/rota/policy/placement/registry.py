"""Placements by name."""

from collections.abc import Callable

from rota.errors import PolicySettingError, did_you_mean
from rota.policy.placement import PACK_LIMIT, Placement, by_size
from rota.policy.placement.best_fit import BestFit
from rota.policy.placement.consolidate import consolidate
from rota.policy.placement.emptiest import emptiest
from rota.policy.placement.ilp import balance_load
from rota.policy.placement.skew import Skew
from rota.policy.placement.spread import spread
from rota.policy.placement.strict import consolidate_strictly
from rota.policy.placement.topology import Topology

# Name -> what makes the placement, given the limit of the skew-aware ones. Only those that end in
# -strict ever refuse a gang for which enough GPUs are free.
PLACEMENTS: dict[str, Callable[[float], Placement]] = {
    "best-fit": lambda _: BestFit(),
    "consolidate": lambda _: by_size(consolidate),
    "consolidate-strict": lambda _: consolidate_strictly,
    "emptiest": lambda _: by_size(emptiest),
    "ilp": lambda _: balance_load,
    "skew": Skew,
    "skew-strict": lambda pack_limit: Skew(pack_limit, strict=True),
    "spread": lambda _: by_size(spread),
    "topology": lambda _: Topology(),
}


def placement(name: str, pack_limit: float = PACK_LIMIT) -> Placement:
    """The placement called ``name``; ``pack_limit`` is for the skew-aware ones.

    Raises PolicySettingError naming the close ones.
    """
    if name not in PLACEMENTS:
        hint = did_you_mean(name, PLACEMENTS)
        known = ", ".join(PLACEMENTS)
        raise PolicySettingError(f"placement: there is no {name!r}{hint}; known: {known}")
    return PLACEMENTS[name](pack_limit)
