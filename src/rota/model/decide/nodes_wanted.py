"""The number of nodes that the queue asks for, for policies that ask for none themselves."""

from __future__ import annotations

from rota.model.decide.in_use import nodes_in_use
from rota.model.decide.live_limits import further_node, most_gpus
from rota.model.state.state import ClusterState


def nodes_wanted(state: ClusterState, most_nodes: int = 0) -> int:
    """The nodes on which all foreground jobs that want GPUs now have them, largest jobs first.

    Nodes in use are among them, and nodes that are there and take no jobs: those of their jobs that
    can leave want GPUs elsewhere. Further nodes count as like the largest one that is there: a job
    that wants another type of GPU asks for none. One that is larger than that node asks for several
    if it can have its GPUs on ``most_nodes``, and else for none. Where no node is there, it is 0.
    """
    there = {index: node for index, node in enumerate(state.nodes) if node.alive}
    largest = further_node(state)
    if largest is None:
        return 0
    shut = state.shut & there.keys()
    used = (nodes_in_use(state) & there.keys()) | shut
    free = {index: state.assumed.masks[index].bit_count() for index in there.keys() - shut}
    further: list[int] = []  # free GPUs of each
    for row in sorted(_want(state), key=lambda row: (-state.num_gpus[row], row)):
        gpus, types = state.num_gpus[row], state.spec[row].gpu_types
        fits = [
            index
            for index, number in free.items()
            if gpus <= number and (not types or there[index].gpu_type in types)
        ]
        if fits:
            index = min(fits, key=lambda index: (index not in used, free[index], index))
            free[index] -= gpus
            used.add(index)
        elif gpus <= largest.num_gpus and (not types or largest.gpu_type in types):
            room = [number for number, left in enumerate(further) if gpus <= left]
            if not room:
                further.append(largest.num_gpus)
            number = min(room, key=further.__getitem__) if room else len(further) - 1
            further[number] -= gpus
        elif _may_span(state, row, most_nodes):
            reached = [index for index in free if there[index].reach]
            for index in sorted(reached, key=lambda index: (-free[index], index)):
                taken = min(gpus, free[index])
                gpus, free[index] = gpus - taken, free[index] - taken
                used.update((index,) if taken else ())
            for number, left in enumerate(further):
                taken = min(gpus, left)
                gpus, further[number] = gpus - taken, left - taken
            while gpus > 0:
                taken = min(gpus, largest.num_gpus)
                further.append(largest.num_gpus - taken)
                gpus -= taken
    return len(used) + len(further)


def _may_span(state: ClusterState, row: int, most_nodes: int) -> bool:
    """True if a gang that is on no node yet can have its GPUs on so many nodes that reach each
    other.
    """
    spec = state.spec[row]
    begins = state.home[row] is None and state.held[row] is None
    if not (state.is_live and spec.spans_nodes and begins) or spec.gpu_types:
        return False
    return state.num_gpus[row] <= most_gpus(state, spans=True, most_nodes=most_nodes)


def _want(state: ClusterState) -> list[int]:
    """The jobs that want GPUs of nodes that are open, and may have them there."""
    waiting = [row for row in state.active if state.target[row] is None]
    return [
        row
        for row in [*waiting, *state.staying]
        if state.portable[row] or (state.home[row] is None and state.held[row] is None)
    ]
