"""Nodes that must go by some time, whoever says so: when they take no more jobs, and are left.

The last turn that a job could get there begins ``turn_s`` before its jobs have to leave: from then
on the node takes no new one. ``VACATE_S`` before the node goes it is drained.
"""

from __future__ import annotations

from rota.model.cluster import Closing
from rota.model.events import NodeClosed
from rota.model.state.state import ClusterState

VACATE_S = 120.0  # for the state of all jobs of a node to get to other nodes


def closings_due(state: ClusterState, now_s: float, turn_s: float) -> list[NodeClosed]:
    """The closings of nodes that are due by now and have not been applied.

    ``turn_s`` is the policy's: how long a job that it starts runs until its next turn.
    """
    events = []
    for index, leaves_s in state.leaves_s.items():
        last_turn_s, vacate_s = closing_times(leaves_s, turn_s)
        had = state.closed.get(index)
        if now_s >= vacate_s:
            had_by_s = had.by_s if had is not None and had.drains else None
            is_due = had_by_s is None or had_by_s > leaves_s
        else:
            is_due = now_s >= last_turn_s and had is None
        if is_due:
            closing = Closing(drains=now_s >= vacate_s, by_s=leaves_s)
            events.append(NodeClosed(now_s, state.nodes[index].name, *closing))
    return events


def closing_times(leaves_s: float, turn_s: float) -> tuple[float, float]:
    """When a node that goes at ``leaves_s`` takes no more jobs, and when it is drained."""
    vacate_s = leaves_s - VACATE_S
    return vacate_s - turn_s, vacate_s
