"""Administrators' requests about nodes: cordon, drain, enable."""

from rota.errors import NotFoundError, did_you_mean
from rota.live.controller.journal import Journal
from rota.live.controller.record import Record
from rota.model.cluster import Closing
from rota.model.events import NodeClosed, NodeOpened


class NodeApi:
    """Each request is checked, written down, and only then done. NotFoundError: no such node."""

    def __init__(self, record: Record, journal: Journal) -> None:
        self._record, self._journal, self._state = record, journal, record.state

    def cordon(self, name: str, user: str = "") -> bool:
        """Have a node take no new job; False if it was cordoned before."""
        return self._close(name, Closing(), user)

    def drain(self, name: str, within_s: float | None = None, user: str = "") -> bool:
        """Have a node's jobs leave it as well; False if it was being drained by the same time.

        Jobs that are still there in ``within_s`` seconds are stopped then, and start anew.
        """
        by_s = None if within_s is None else self._record.now_s() + within_s
        return self._close(name, Closing(drains=True, by_s=by_s), user)

    def enable(self, name: str, user: str = "") -> bool:
        """Have a node take jobs again; False if it does."""
        if self._index(name) not in self._state.closed:
            return False
        self._journal.write_first(NodeOpened(self._record.now_s(), name, user))
        return True

    def _close(self, name: str, closing: Closing, user: str) -> bool:
        if self._state.closed.get(self._index(name)) == closing:
            return False
        self._journal.write_first(NodeClosed(self._record.now_s(), name, *closing, user))
        return True

    def _index(self, name: str) -> int:
        index = self._state.node_index.get(name)
        if index is None:
            hint = did_you_mean(name, self._state.node_index)
            raise NotFoundError(
                f"there is no node {name!r:.80}{hint}; `rota nodes --all` lists them"
            )
        return index
