"""Nodes that can't be given back: jobs have GPUs or state there, or are to have some."""

from rota.model.state.state import ClusterState


def nodes_in_use(state: ClusterState) -> set[int]:
    """The indexes of the nodes on which a job has GPUs or state, or is to have some."""
    used: set[int] = set()
    for row in state.placed_rows():
        places = (state.target[row], state.held[row], state.home[row], state.parking.get(row))
        for place in places:
            used.update(() if place is None else place.nodes())
    return used
