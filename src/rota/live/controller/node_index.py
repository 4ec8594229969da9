"""The jobs of each node: those that hold GPUs or have their state there, or are on their way."""

from rota.model.events import CommandSent, Event, NodeLost
from rota.model.state.state import ClusterState


class NodeIndex:
    """Rows of jobs by the index of a node, kept as events are applied.

    A question about a node takes time in proportion to the jobs of that node, not to all jobs.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._rows: dict[int, set[int]] = {}
        self._nodes: dict[int, frozenset[int]] = {}  # by row

    def rows(self, index: int | None) -> list[int]:
        """The rows of the jobs of a node, rising; none for None, which is no node."""
        return [] if index is None else sorted(self._rows.get(index, ()))

    def note(self, event: Event) -> None:
        """Take in an event that has been applied."""
        if isinstance(event, NodeLost):
            for row in self.rows(self._state.node_index[event.name]):
                self._place(row)
            return
        about = event.command if isinstance(event, CommandSent) else event
        if (changed := getattr(about, "row", None)) is not None:
            self._place(changed)

    def _place(self, row: int) -> None:
        state, before = self._state, self._nodes.get(row, frozenset())
        places = (state.held[row], state.home[row], state.parking.get(row))
        now = frozenset(node for place in places if place is not None for node in place.nodes())
        if now == before:
            return
        for index in before - now:
            self._rows[index].discard(row)
        for index in now - before:
            self._rows.setdefault(index, set()).add(row)
        self._nodes[row] = now
        if not now:
            del self._nodes[row]
