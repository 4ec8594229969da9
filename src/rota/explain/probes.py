"""Probes in the API's form."""

from collections.abc import Iterable
from typing import Any

from rota.model.probe import Probe
from rota.model.state.state import ClusterState


def tell(state: ClusterState, probes: Iterable[Probe]) -> list[dict[str, Any]]:
    """Probes in the API's form; ``with``, ``on`` and ``from`` only if they are known."""
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
