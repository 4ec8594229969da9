"""Turns in the API's form, and the wait for a turn as an entry of a verdict."""

from typing import Any

from rota.model.allocation import gpus_text
from rota.model.naming import jobs_text
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.turns import Ahead, Cause, Turns

BECAUSE = {  # of one job, and of several
    Cause.OWNER: (
        "its owner has had less of a fair share",
        "their owners have had less of a fair share",
    ),
    Cause.PRIORITY: ("its priority is higher", "their priority is higher"),
    Cause.SERVED: ("it has had less time", "they have had less time"),
    Cause.EARLIER: ("it came earlier", "they came earlier"),
}


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


def ahead_text(state: ClusterState, ahead: Ahead) -> str:
    """How many jobs share GPUs, and which of those that wait come first for what cause."""
    verb = "job uses" if ahead.sharing == 1 else "jobs share"
    told = [f"{ahead.sharing} {verb} {gpus_text(ahead.gpus)}"]
    for cause, rows in ahead.before:
        one, several = BECAUSE[cause]
        names = jobs_text(state.ids(rows))
        come = f"comes before it, because {one}"
        told.append(f"{names} {come if len(rows) == 1 else f'come before it, because {several}'}")
    return "; ".join(told if ahead.before else [*told, "it is the next one"])
