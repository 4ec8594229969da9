"""A policy's plan: a target for every job."""

from typing import Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.notes import Notes, Undone
from rota.model.probe import Probe


class Plan(NamedTuple):
    """A target for every job, written as changes against the plan before.

    ``allocations`` maps rows to the GPUs they should hold from now on (None: none), ``reasons``
    rows to the code that says why they hold none, ``marks`` rows to what the policy wants to
    remember. The policy is asked again at ``wake_at_s`` at the latest. ``notes`` are what it tells
    people; None for nothing new.

    ``cpus`` maps rows to the thousandths of a CPU core that the whole job may use from now on,
    split over its nodes as its GPUs are (None: as many as it likes). A job that loses its GPUs
    loses its cores. ``stage_marks`` are what stages beside the policy want to remember, by stage.
    """

    allocations: dict[int, Allocation | None]
    reasons: dict[int, int]
    marks: dict[int, Any]
    policy_mark: Any = None
    wake_at_s: float | None = None
    notes: Notes | None = None
    cpus: dict[int, int | None] | None = None
    stage_marks: dict[str, Any] | None = None


class FillPlan(NamedTuple):
    """The part of a plan that a stage adds for background jobs, as changes to the plan before.

    ``allocations`` maps rows of background jobs to the GPUs that each should hold beside the main
    layer from now on (None: none), ``reasons`` to the code that says why they hold none. ``marks``
    is what the stage wants to remember, by keys of its own: JSON-able values, None to forget one;
    an entry whose key is the number of a row is forgotten with its job. The stage is asked again at
    ``wake_at_s`` at the latest. ``why`` (the reason for a job's GPU, a sentence), ``probes``
    (that have ended now) and ``undone`` (trials) are told with the notes of the policy.
    """

    allocations: dict[int, Allocation | None]
    reasons: dict[int, int]
    marks: dict[str, Any] = {}
    wake_at_s: float | None = None
    why: dict[int, str] = {}
    probes: dict[int, tuple[Probe, ...]] = {}
    undone: dict[int, Undone] = {}


class CpuPlan(NamedTuple):
    """The part of a plan that a stage of CPU cores adds, as changes to the plan before.

    ``millicores`` becomes the column ``cpus`` of the plan. ``marks`` is what the stage wants to
    remember, by keys of its own: JSON-able values, None to forget one; an entry whose key is the
    number of a row is forgotten with its job. The stage is asked again at ``wake_at_s`` at the
    latest. ``why`` (the reason for a job's cores, a sentence) and ``probes`` (that have ended now)
    are told with the notes of the policy.
    """

    millicores: dict[int, int | None]
    marks: dict[str, Any] = {}
    wake_at_s: float | None = None
    why: dict[int, str] = {}
    probes: dict[int, tuple[Probe, ...]] = {}
