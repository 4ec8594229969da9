"""Nodes that the cluster has asked an engine for: each has a token and a lease, as a member has."""

import json
import time
from collections.abc import Callable, Collection

from rota.live.controller.leases import Leases
from rota.live.controller.outboxes import Outboxes
from rota.live.wire import clock
from rota.store.members import Members


class Admission:
    """Lets in agents of the nodes whose names ``is_own`` is true of.

    Agents find the controller at ``url``, whose certificate ``authority`` vouches for; they are
    connected if they have one of the ``outboxes``.
    """

    def __init__(
        self,
        members: Members,
        leases: Leases,
        url: str,
        authority: str,
        is_own: Callable[[str], bool],
    ) -> None:
        self.outboxes = Outboxes()
        self.has_jobs: Callable[[str], bool] = lambda node: False  # if it may have processes
        self._members, self._leases = members, leases
        self._url, self._authority, self._is_own = url, authority, is_own

    def admit(self, node: str) -> str:
        """The text of the file by which the agent of a new node is let in."""
        token = self._members.admit(node, time.time())
        return json.dumps({"url": self._url, "token": token, "ca": self._authority})

    def keep(self, nodes: Collection[str]) -> None:
        """Let in none but these from now on."""
        for name in sorted(self._members.names):
            if self._is_own(name) and name not in nodes:
                self._members.remove(name)
                self.outboxes.dismiss(name, {"type": "removed"})

    @property
    def others(self) -> set[str]:
        """The members that have joined by themselves."""
        return {name for name in self._members.names if not self._is_own(name)}

    def is_connected(self, node: str) -> bool:
        """True if its agent is connected."""
        return node in self.outboxes.queues

    def may_run(self, node: str) -> bool:
        """True if its lease is not over."""
        return not self._leases.is_over(node, clock.boottime_s())
