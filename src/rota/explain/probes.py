"""Probes as the API tells them."""

from collections.abc import Iterable
from typing import Any

from rota.model.probe import Probe
from rota.model.state.state import ClusterState


def tell(state: ClusterState, probes: Iterable[Probe]) -> list[dict[str, Any]]:
    """Probes as the API tells them; ``with``, ``on`` and ``from`` as far as they are known."""
    told = []
    for each in probes:
        fields = each._asdict()
        mates, on, before = (fields.pop(name) for name in ("mates", "on", "before"))
        if mates:
            fields["with"] = state.ids(mates)
        fields |= {
            name: state.places(parts) for name, parts in (("on", on), ("from", before)) if parts
        }
        told.append(fields)
    return told
