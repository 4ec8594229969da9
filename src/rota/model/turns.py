"""Who takes turns with a job on the nodes where it lives, as its policy tells."""

from typing import Any, NamedTuple

from rota.model.reason import Reason
from rota.model.state import ClusterState


class Turns(NamedTuple):
    """Who takes turns on ``nodes``: rows that have their turn together, those that run now and
    those that wait, the next one first. The present turn ends at ``ends_s``.
    """

    nodes: tuple[int, ...]
    running: tuple[tuple[int, ...], ...]
    waiting: tuple[tuple[int, ...], ...]
    ends_s: float

    def position(self, row: int) -> int | None:
        """The job's place among those that wait, from 1; None if it runs."""
        places = (place for place, rows in enumerate(self.waiting, 1) if row in rows)
        return next(places, None)

    def left_s(self, now_s: float) -> float:
        """Seconds until the present turn ends."""
        return max(0.0, self.ends_s - now_s)


def tell(state: ClusterState, row: int, turns: Turns | None) -> dict[str, Any] | None:
    """Turns as the API tells them; None where nobody has to wait for one.

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
    """That it waits for its turn, as an entry of a verdict."""
    nodes = ", ".join(state.nodes[node].name for node in turns.nodes)
    position, waiting = turns.position(row), len(turns.waiting)
    place = "it is the one that waits" if waiting == 1 else f"it is number {position} of {waiting}"
    return {
        "rule": Reason.SLICE_WAITING_TURN.name,
        "need": f"its turn on {nodes}",
        "have": f"{place}; the turn ends in {turns.left_s(now_s):.0f} s",
        "held_by": state.ids(row for rows in turns.running for row in rows),
    }
