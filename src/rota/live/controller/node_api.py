"""Administrators' requests about nodes: cordon, drain, enable, invite, remove."""

import re
from collections.abc import Callable
from typing import Any

from rota.errors import InputError, NotFoundError, TransitionError, did_you_mean
from rota.live.controller.journal import Journal
from rota.live.controller.leases import Leases
from rota.live.controller.record import Record
from rota.live.controller.recovery import NODE_GONE, places_of, seats
from rota.live.controller.supply import Supply
from rota.live.wire import clock
from rota.model.cluster import Closing
from rota.model.events import NodeClosed, NodeOpened, NodeUnreachable
from rota.model.naming import jobs_text
from rota.store.members import Members

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")


class NodeApi:
    """Each request is checked, written down, and only then done. NotFoundError: no such node."""

    def __init__(
        self,
        record: Record,
        journal: Journal,
        members: Members,
        leases: Leases,
        supply: Supply,
    ) -> None:
        self._record, self._journal, self._state = record, journal, record.state
        self._members, self._leases, self._supply = members, leases, supply
        # Tells whether a node may have processes of gangs that are over.
        self.has_parts: Callable[[str], bool] = lambda name: False

    def invite(self) -> tuple[str, float]:
        """A new token to join with, good once, and the time until which it is good."""
        return self._members.invite(self._record.now_s())

    def is_known(self, node: Any, token: Any) -> bool:
        """True if this is the token of a node whose agent is away: its machine may join again."""
        is_own = isinstance(token, str) and self._members.node_of(token) == node
        return is_own and node not in self._record.outboxes.queues

    def join(self, token: str, node: Any, *, is_known: bool = False) -> str:
        """Have a machine join as ``node`` by a join token; the token of the node.

        A machine that ``is_known`` is that node already, and has its token replaced. A node that
        was removed takes jobs again, even if it was cordoned or drained then.
        Raises InputError for a name that can't be used, AuthError for a token that is not good.
        """
        if not isinstance(node, str) or not NODE_NAME.fullmatch(node):
            raise InputError(
                f"node: {node!r:.80} is no name of a node; use up to 63 letters, digits, . and -"
            )
        if node in self._supply.names and node not in self._members.names:
            raise InputError(
                f"node: {node} is the name of a node of the controller's machine; give this "
                "machine another name with --node"
            )
        now_s = self._record.now_s()
        own = self._members.join(token, node, now_s, is_known=is_known)
        if not is_known and self._state.node_index.get(node) in self._state.closed:
            self._journal.note(NodeOpened(now_s, node))
            self._journal.kick.set()
        return own

    def remove(self, name: str, *, force: bool = False) -> float:
        """Have a machine that has joined be none of the cluster's any more: its token is revoked.

        Raises TransitionError while it may have processes of jobs. With ``force`` these jobs start
        anew elsewhere, once its agent has ended them or its lease is over: until then the node
        stays, unreachable. Returns the seconds until it is none at the latest; 0.0: it is gone.
        """
        if name not in self._members.names:
            hint = did_you_mean(name, self._members.names)
            raise NotFoundError(
                f"there is no node {name!r:.80} that has joined{hint}; nodes of the controller's "
                "own machine go with `rota down`"
            )
        ids = [self._state.spec[row].job_id for row in self._rows_on(name)]
        left_s = self._leases.left_s(name, clock.boottime_s()) if ids else 0.0
        if name not in self._members.leaving:
            if ids and not force:
                raise TransitionError(
                    f"node {name} has {jobs_text(ids)}: have it left first with `rota node drain "
                    f"{name}`, or add --force, and they are ended and start anew elsewhere"
                )
            if left_s:
                self._members.revoke(name)
                self._part(name, left_s)
                return left_s
        if not left_s:
            self._dismiss(name)
            self._supply.look()
            self._journal.kick.set()
        return left_s

    def _part(self, name: str, left_s: float) -> None:
        """Have a node's jobs ended, and nothing placed there; it is lost when its lease is over."""
        now_s = self._record.now_s()
        self._journal.note(NodeUnreachable(now_s, name, now_s + left_s))
        self._end_jobs(name)

    def _end_jobs(self, name: str) -> None:
        """Have the agents of a node's jobs end them."""
        for row in self._rows_on(name):
            agents = [self._state.nodes[index].name for index in seats(self._state, row)]
            about = {"job_id": self._state.spec[row].job_id, "attempt": self._state.attempt[row]}
            kill = {"type": "kill", **about, "why": NODE_GONE}
            self._record.outboxes.tell(name if name in agents else agents[0], kill)

    def _dismiss(self, name: str) -> None:
        self._members.remove(name)
        self._record.outboxes.dismiss(name, {"type": "removed"})

    def let_go(self) -> None:
        """Remove the nodes that are leaving and have ended their jobs, or whose leases are over.

        A StoreError changes nothing of those that are left.
        """
        for name in sorted(self._members.leaving):
            has_jobs = self.has_jobs(name) or self.has_parts(name)
            if not (has_jobs and self._leases.left_s(name, clock.boottime_s())):
                self._dismiss(name)
            else:
                self._end_jobs(name)

    def has_jobs(self, name: str) -> bool:
        """True if a node may have processes of jobs."""
        return bool(self._rows_on(name))

    def _rows_on(self, name: str) -> list[int]:
        index = self._state.node_index.get(name)
        return [
            row
            for row in self._record.on_node.rows(index)
            if self._state.has_processes(row) and index in places_of(self._state, row)
        ]

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
