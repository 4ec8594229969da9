"""Common data of the parts of a Gandiva decision."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.model.view import View
from rota.policy.gandiva.charges import Charges
from rota.policy.gandiva.jobs import Notes
from rota.policy.gandiva.owners import Owners
from rota.policy.gandiva.servers import Servers, Vain


class Turn(NamedTuple):
    """The data that all parts of a decision read and change."""

    view: View
    servers: Servers
    notes: Mapping[int, Notes]
    lodged: dict[int, Notes]  # those with a home, in the same order
    charges: Charges
    owners: Owners
    settings: Mapping[str, Any]
    vain: Vain


class Part:
    """A part of a decision, which looks at its turn."""

    def __init__(self, turn: Turn) -> None:
        self._view, self._servers, self._notes, self._lodged = turn[:4]
        self._charges, self._owners, self._set, self._vain = turn[4:]
