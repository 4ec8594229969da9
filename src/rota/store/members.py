"""Machines that have joined the cluster, and invitations to join, in the event log's file.

Tokens are kept as SHA-256 hashes: they are long and random, so that a hash tells nobody a token.
"""

import hashlib
import secrets
from typing import NamedTuple

from rota.errors import AuthError, InputError
from rota.store.events import EventStore

INVITED_S = 3600.0  # an invitation is good for so long
FORGOTTEN_S = 86_400.0  # and then told from one that never was for so long
JOIN_PREFIX, NODE_PREFIX = "rota-join-", "rota-node-"
REVOKED = "revoked: "  # in place of the hash of a token, before the node's name


class Member(NamedTuple):
    """A machine that has joined under the name of a ``node``."""

    node: str
    token_hash: str
    joined_s: float


class Members:
    """The members and the invitations. Changes are on disk when a method returns.

    Every failure of the file is a StoreError.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store
        rows = store.read("SELECT node, token_hash, joined_s FROM member")
        self._members = {row[0]: Member(*row) for row in rows}

    @property
    def names(self) -> set[str]:
        """The nodes whose machines have joined, those that are leaving among them."""
        return set(self._members)

    @property
    def leaving(self) -> set[str]:
        """The nodes whose tokens are revoked, and whose processes may run on yet."""
        found = self._members.values()
        return {each.node for each in found if each.token_hash.startswith(REVOKED)}

    def stays(self, node: str) -> bool:
        """True if the node's machine has joined and is not leaving."""
        member = self._members.get(node)
        return member is not None and not member.token_hash.startswith(REVOKED)

    def invite(self, now_s: float) -> tuple[str, float]:
        """A new join token, good once, and the time until which it is good."""
        token, until_s = JOIN_PREFIX + secrets.token_urlsafe(32), now_s + INVITED_S
        with self._store.transaction(durable=True) as driver:
            driver.execute("DELETE FROM invitation WHERE until_s < ?", (now_s - FORGOTTEN_S,))
            driver.execute(
                "INSERT INTO invitation (token_hash, until_s) VALUES (?, ?)",
                (_hash(token), until_s),
            )
        return token, until_s

    def check_invitation(self, token: str, now_s: float) -> None:
        """Raise AuthError, with the reason, for a join token that is not good."""
        rows = self._store.read(
            "SELECT until_s, used_by FROM invitation WHERE token_hash = ?", _hash(token)
        )
        again = "`rota node invite` makes another one"
        if not rows:
            raise AuthError(f"the join token is none of this cluster's; {again} there")
        ((until_s, used_by),) = rows
        if used_by is not None:
            raise AuthError(f"the join token was used before, by node {used_by}; {again}")
        if until_s <= now_s:
            raise AuthError(f"the join token has expired: it was good for an hour; {again}")

    def join(self, token: str, node: str, now_s: float, *, is_known: bool = False) -> str:
        """Use a join token up, and give a new node token for it, in place of that of a node that
        ``is_known``.

        Raises AuthError for a token that is not good, and InputError for a node that has joined
        already; neither uses the token up.
        """
        self.check_invitation(token, now_s)
        if node in self.leaving:
            raise InputError(
                f"node: {node} is being removed, and its processes may run on until its lease is "
                "over; try again then, or give this machine another name with --node"
            )
        if node in self._members and not is_known:
            raise InputError(
                f"node: {node} has joined already; give this machine another name with --node, or "
                f"if it is the same machine remove it first: rota node remove {node}"
            )
        own = NODE_PREFIX + secrets.token_urlsafe(32)
        member = Member(node, _hash(own), now_s)
        with self._store.transaction(durable=True) as driver:
            driver.execute(
                "UPDATE invitation SET used_by = ? WHERE token_hash = ?", (node, _hash(token))
            )
            driver.execute("DELETE FROM member WHERE node = ?", (node,))
            driver.execute(
                "INSERT INTO member (node, token_hash, joined_s) VALUES (?, ?, ?)", member
            )
        self._members[node] = member
        return own

    def admit(self, node: str, now_s: float) -> str:
        """A new token for a node that the cluster has asked for itself; no other one is good."""
        own = NODE_PREFIX + secrets.token_urlsafe(32)
        member = Member(node, _hash(own), now_s)
        with self._store.transaction(durable=True) as driver:
            driver.execute("DELETE FROM member WHERE node = ?", (node,))
            driver.execute(
                "INSERT INTO member (node, token_hash, joined_s) VALUES (?, ?, ?)", member
            )
        self._members[node] = member
        return own

    def node_of(self, token: str) -> str | None:
        """The node whose token this is; None if it is nobody's, or was revoked."""
        shown = _hash(token)
        for member in self._members.values():
            if secrets.compare_digest(member.token_hash, shown):
                return member.node
        return None

    def revoke(self, node: str) -> None:
        """Revoke a node's token; it stays one that is leaving until it is removed."""
        member = self._members[node]._replace(token_hash=REVOKED + node)
        with self._store.transaction(durable=True) as driver:
            driver.execute(
                "UPDATE member SET token_hash = ? WHERE node = ?", (member.token_hash, node)
            )
        self._members[node] = member

    def remove(self, node: str) -> bool:
        """Revoke a node's token, and forget the node; False if it has not joined."""
        if node not in self._members:
            return False
        with self._store.transaction(durable=True) as driver:
            driver.execute("DELETE FROM member WHERE node = ?", (node,))
        del self._members[node]
        return True


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
