"""The jobs of each node: they hold GPUs there, have their state there, or are on their way."""

from rota.model.events import CommandSent, Event, NodeLost
from rota.model.state.state import ClusterState


class NodeIndex:
    """Rows of jobs by the index of a node, kept as events are applied.

    What is asked about one node takes time in proportion to its own jobs, not to those that have
    ever been, or go on anywhere.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._rows: dict[int, set[int]] = {}
        self._nodes: dict[int, frozenset[int]] = {}  # by row

    def rows(self, index: int | None) -> list[int]:
        """The rows of the jobs of a node, rising; of None, which is no node, there are none."""
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
