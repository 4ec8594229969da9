"""Nodes that must go by some time, whoever says so: when they take no more jobs, and are left.

The last turn that a job could get there begins ``turn_s`` before its jobs have to leave: from then
on the node takes no new one. ``VACATE_S`` before the node goes it is drained; earlier, if the
longest grace of its jobs and ``MOVE_S`` after that take longer.
"""

from __future__ import annotations

from rota.model.cluster import Closing
from rota.model.events import NodeClosed
from rota.model.state.state import ClusterState

VACATE_S = 120.0  # for the state of all jobs of a node to get to other nodes
MOVE_S = 60.0  # the same, once jobs with a grace have written their checkpoints


def closings_due(state: ClusterState, now_s: float, turn_s: float) -> list[NodeClosed]:
    """The closings of nodes that are due by now and have not been applied.

    ``turn_s`` is the policy's: how long a job that it starts runs until its next turn.
    """
    events = []
    for index, leaves_s in state.leaves_s.items():
        last_turn_s, vacate_s = closing_times(leaves_s, turn_s, _longest_grace_s(state, index))
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


def closing_times(leaves_s: float, turn_s: float, grace_s: float = 0.0) -> tuple[float, float]:
    """When a node that goes at ``leaves_s`` takes no more jobs, and when it is drained.

    ``grace_s`` is the longest that its jobs may take to end.
    """
    vacate_s = leaves_s - max(VACATE_S, grace_s + MOVE_S)
    return vacate_s - turn_s, vacate_s


def _longest_grace_s(state: ClusterState, index: int) -> float:
    """The longest grace of the jobs on a node; 0.0 if none has asked for one."""
    graces_s = [0.0]
    for row in state.holding:
        held, program = state.held[row], state.spec[row].program
        if held is not None and program is not None and index in held.nodes():
            graces_s.append(program.grace_s if program.suspend == "restart" else 0.0)
    return max(graces_s)
