"""Tickets: by them the state of a job that moves goes directly from agent to agent.

A ticket is a secret that both ends of one migration are told, and the one who fetches also where
the other listens, with its certificate. Agents of the controller's own machine hand nothing out
this way: what they tell goes through the controller, and crosses the network once as well.
"""

import secrets
from collections.abc import Callable
from typing import NamedTuple

from rota.live.controller.record import Record
from rota.live.controller.relay import migration
from rota.live.wire import Message
from rota.model.commands import Migrate, Park
from rota.store.members import Members

Certify = Callable[[str], tuple[str, str]]  # a new certificate of that name and its key, as PEM


class Server(NamedTuple):
    """A place where an agent hands pieces out, and its certificate."""

    host: str
    port: int
    certificate: str


class Given(NamedTuple):
    """The migration of a ticket: its command, the nodes that were told, and their attempt."""

    command_id: int
    source: str
    destination: str
    about: Message


class Tickets:
    """The tickets of all migrations. Without ``certify`` there are none."""

    def __init__(self, record: Record, members: Members, certify: Certify | None) -> None:
        self._record, self._members, self._certify = record, members, certify
        self._servers: dict[str, Server] = {}
        self._given: dict[int, Given] = {}  # by row

    def came(self, node: str, address: str, port: int | None) -> Message:
        """The certificate and key for an agent that listens there, for its welcome.

        Its tickets of before are void with that.
        """
        self._servers.pop(node, None)
        if self._certify is None or not port or not address:
            return {}
        certificate, key = self._certify(node)
        self._servers[node] = Server(address, port, certificate)
        return {"certificate": certificate, "key": key}

    def leaving(self, node: str) -> list[int]:
        """The rows of jobs that are leaving a node."""
        state = self._record.state
        rows = (
            row for row in state.unsettled if isinstance(state.outstanding[row], Migrate | Park)
        )
        moving = ((row, migration(self._record, row)) for row in rows)
        return [row for row, nodes in moving if nodes is not None and nodes[0] == node]

    def give(self, row: int) -> None:
        """Tell both ends of a migration a new ticket, if its source listens."""
        given = self._migration(row)
        if given is None or given.source not in self._servers:
            return
        ticket = given.about | {"ticket": secrets.token_urlsafe(32)}
        if self._record.outboxes.tell(given.source, {"type": "admit", **ticket}):
            server = self._servers[given.source]._asdict()
            self._record.outboxes.tell(given.destination, {"type": "ticket", **ticket, **server})
            self._given[row] = given

    def look(self) -> None:
        """Revoke the tickets of migrations that are over."""
        for row, given in list(self._given.items()):
            if self._migration(row) != given:
                del self._given[row]
                over = given.about | {"ticket": None}
                self._record.outboxes.tell(given.source, {"type": "admit", **over})
                self._record.outboxes.tell(given.destination, {"type": "ticket", **over})

    def _migration(self, row: int) -> Given | None:
        """A job's migration; None if it does not move, or one of its nodes is removed."""
        state, nodes = self._record.state, migration(self._record, row)
        command = state.outstanding[row]
        if nodes is None or command is None or self._members.leaving.intersection(nodes):
            return None
        about = {"job_id": state.spec[row].job_id, "attempt": state.attempt[row]}
        return Given(command.command_id, *nodes, about)
