"""The parts of the state that measurements use: jobs, their GPUs and CPU cores, and the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rota.model.allocation import Allocation
    from rota.model.cluster import Node
    from rota.model.job import JobSpec


class Rows(Protocol):
    """Columns by row; see :class:`rota.model.state.ledger.Ledger`."""

    spec: list[JobSpec]
    held: list[Allocation | None]
    nodes: list[Node]
    held_cpus: dict[int, int]
    target_cpus: dict[int, int]

    def note_change(self, row: int) -> None:
        """Note that a job has changed, which calls for a decision."""
        ...
