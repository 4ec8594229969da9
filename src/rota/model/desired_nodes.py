"""How many nodes a policy would like there to be, as it notes under ``nodes`` in its mark."""

from __future__ import annotations

from typing import Any, NamedTuple


class DesiredNodes(NamedTuple):
    """The ``desired`` number, and the ``utility`` of the GPUs that jobs are given now.

    Utility is what part of their GPUs' best the jobs make of all GPUs: the jobs' speedups over one
    GPU, added up, over the number of GPUs. ``below_since_s`` is since when that of the desired
    nodes has been too low; None if it is not.
    """

    desired: int
    utility: float
    below_since_s: float | None = None


def desired_nodes(policy_mark: Any) -> DesiredNodes | None:
    """What a policy's mark says of it; None if the policy asks for no number of nodes."""
    noted = policy_mark.get("nodes") if isinstance(policy_mark, dict) else None
    return None if noted is None else DesiredNodes(**noted)
