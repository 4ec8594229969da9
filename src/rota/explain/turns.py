"""Turns in the API's form, and the wait for a turn as an entry of a verdict."""

from typing import Any

from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.turns import Turns


def tell(state: ClusterState, row: int, turns: Turns | None) -> dict[str, Any] | None:
    """Turns in the API's form; None where no job has to wait for one.

    ``{"nodes", "running", "waiting", "position", "ends_s"}``: names of nodes, and lists of ids of
    the jobs that have their turn together.
    """
    if turns is None or not turns.waiting:
        return None
    return {
        "nodes": [state.nodes[node].name for node in turns.nodes],
        "running": [state.ids(rows) for rows in turns.running],
        "waiting": [state.ids(rows) for rows in turns.waiting],
        "position": turns.position(row),
        "ends_s": turns.ends_s,
    }


def blocker(state: ClusterState, row: int, turns: Turns, now_s: float) -> dict[str, Any]:
    """A verdict's entry for a job that waits for its turn."""
    nodes = ", ".join(state.nodes[node].name for node in turns.nodes)
    position, waiting = turns.position(row), len(turns.waiting)
    place = "it is the one that waits" if waiting == 1 else f"it is number {position} of {waiting}"
    return {
        "rule": Reason.SLICE_WAITING_TURN.name,
        "need": f"its turn on {nodes}",
        "have": f"{place}; the turn ends in {turns.left_s(now_s):.0f} s",
        "held_by": state.ids(row for rows in turns.running for row in rows),
    }
