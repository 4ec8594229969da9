"""Other homes for the state of suspended jobs on nodes that are drained.

A job to which the plan gives GPUs elsewhere takes its state along. That of the others would be lost
with the node: it is sent to another one, where the job goes on waiting. It stays where it is if it
can't leave its node, if it is of a gang over several nodes, or of a background job.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from rota.model.allocation import Allocation, of_parts
from rota.model.job import JobState
from rota.model.state.state import ClusterState

SUSPENDED = int(JobState.SUSPENDED)


def homes_wanted(state: ClusterState) -> list[tuple[int, Allocation]]:
    """(row, new home) of each job whose state is to be sent to another node now.

    States that must leave sooner come first, then earlier rows. Their nodes are chosen in that
    order: open ones with the same type of GPU and enough of them, which do not have to go sooner.
    Of these it is the one to which sending this state has failed the fewest times, then one that
    need not go, then the one with the least state for its host memory (or for its GPUs where the
    host memory of some is not known), then the first.
    """
    leaving = {
        index
        for index, closing in state.closed.items()
        if closing.drains and state.nodes[index].alive and index not in state.unreachable
    }
    if not leaving:
        return []
    rows = [
        (_leaves_s(state, home.nodes()[0]), row)
        for row in state.stored
        if (row in state.active or row in state.held_back)
        if (home := state.home[row]) is not None and home.nodes()[0] in leaving
        if _may_be_sent(state, row)
    ]
    if not rows:
        return []
    kept, found = _kept(state), []
    for _, row in sorted(rows):
        home = state.home[row]
        assert home is not None
        if (node := _node_for(state, row, home, kept)) is not None:
            kept[node] += home.num_gpus
            parts = ((node, (1 << home.num_gpus) - 1),)
            found.append((row, of_parts(parts, False, home.batch)))
    return found


def _may_be_sent(state: ClusterState, row: int) -> bool:
    """True if the job waits with a state that can be sent, and no command for it is on its way."""
    if state.state[row] != SUSPENDED or state.outstanding[row] is not None or row in state.backoff:
        return False
    if state.target[row] is not None or state.spec[row].is_background:
        return False
    home = state.home[row]
    is_whole = home is not None and len(home.parts) == 1
    return is_whole and bool(state.movable[row]) and bool(state.portable[row])


def _leaves_s(state: ClusterState, node: int) -> float:
    """The time by which a node's jobs must have left it; infinity if there is none."""
    closing = state.closed.get(node)
    by_s = inf if closing is None or closing.by_s is None else closing.by_s
    return min(by_s, state.leaves_s.get(node, inf))


def _kept(state: ClusterState) -> Counter[int]:
    """GPUs of the jobs whose state lies on a node or is on its way there, by node."""
    kept = Counter[int]()
    for row in state.stored:
        if not (state.is_open(row) or row in state.held_back):
            continue
        place = state.parking.get(row) or state.home[row]
        for node, mask in place.parts if place is not None and state.held[row] is None else ():
            kept[node] += mask.bit_count()
    return kept


def _node_for(state: ClusterState, row: int, home: Allocation, kept: Counter[int]) -> int | None:
    former = state.nodes[home.nodes()[0]]
    by_s = _leaves_s(state, home.nodes()[0])
    shut = state.shut
    nodes = [
        index
        for index, node in enumerate(state.nodes)
        if node.alive and index not in shut and node.num_gpus >= home.num_gpus
        if (node.kind, node.gpu_type) == (former.kind, former.gpu_type)
        if index not in state.leaves_s or state.leaves_s[index] > by_s
    ]
    in_vain = state.parked_in_vain.get(row, {})
    by_memory = all(state.nodes[index].host_memory_gb for index in nodes)

    def rank(index: int) -> tuple[int, bool, float, int]:
        node = state.nodes[index]
        room = node.host_memory_gb if by_memory else node.num_gpus
        return in_vain.get(index, 0), index in state.leaves_s, kept[index] / room, index

    return min(nodes, key=rank, default=None)
