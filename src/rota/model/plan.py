"""A policy's plan: a target for every job."""

from typing import Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.notes import Notes


class Plan(NamedTuple):
    """A target for every job, written as changes against the plan before.

    ``allocations`` maps rows to the GPUs they should hold from now on (None: none), ``reasons``
    rows to the code that says why they hold none, ``marks`` rows to what the policy wants to
    remember. The policy is asked again at ``wake_at_s`` at the latest. ``notes`` are what it tells
    people; None for nothing new.
    """

    allocations: dict[int, Allocation | None]
    reasons: dict[int, int]
    marks: dict[int, Any]
    policy_mark: Any = None
    wake_at_s: float | None = None
    notes: Notes | None = None
