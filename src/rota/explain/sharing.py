"""The jobs with which a job shares its GPUs, and what its policy knows of that."""

from typing import Any

from rota.model.state.state import ClusterState


def sharing_of(state: ClusterState, row: int) -> dict[str, Any] | None:
    """``{"with", "on", "on_trial", "gain"}``, JSON-able; None for a job that has its GPUs alone.

    The first two are ids of jobs, and GPUs. ``gain`` is the work of all of them, relative to that
    of turns on these GPUs, if it was measured; ``on_trial`` is True while it is being measured.
    Both come from the policy's notes on the pack.
    """
    mates, held = state.sharers(row), state.held[row]
    if not mates or held is None:
        return None
    pack = state.notes.packs.get(row)
    rows, gain = ((), None) if pack is None else pack
    known = set(rows) == {row, *mates}
    return {
        "with": state.ids(mates),
        "on": state.places(held.parts),
        "on_trial": known and gain is None,
        "gain": gain if known else None,
    }
