"""The column of CPU cores of a plan: how a stage's part joins it, and what is wrong with one."""

from typing import NoReturn

from rota.errors import PlanError
from rota.model.allocation import Allocation, cores_text
from rota.model.decide.plain import check_wake, is_plain
from rota.model.notes import Notes
from rota.model.plan import CpuPlan, Plan
from rota.model.state.state import ClusterState

STAGE = "cpus"  # the name of the stage's marks among those of all stages


def with_cpus(state: ClusterState, plan: Plan, added: CpuPlan, now_s: float) -> Plan:
    """A copy of the policy's plan with what its stage of CPU cores adds. Raises PlanError."""
    if type(added) is not CpuPlan:
        raise PlanError(f"the stage of CPU cores decided {added!r:.200}, which is no CpuPlan")
    check_wake(added.wake_at_s, now_s)
    if added.marks and not is_plain(added.marks):
        raise PlanError(
            f"the stage of CPU cores wants to remember {added.marks!r:.200}, which JSON can't "
            "carry exactly"
        )
    wakes = [at_s for at_s in (plan.wake_at_s, added.wake_at_s) if at_s is not None]
    notes = plan.notes
    if added.why or added.probes:
        told = notes or Notes(nodes=state.notes.nodes, reserved=state.notes.reserved)
        probes = dict(told.probes)
        for row, more in added.probes.items():
            probes[row] = (*probes.get(row, ()), *more)
        notes = told._replace(probes=probes, why_cpus=added.why)
    return plan._replace(
        cpus=added.millicores,
        stage_marks={STAGE: added.marks} if added.marks else None,
        wake_at_s=min(wakes, default=None),
        notes=notes,
    )


def check_cpus(state: ClusterState, plan: Plan) -> None:
    """Raise PlanError if the plan gives cores to nobody, or more of a node than that has.

    Where jobs have more of a node already, as after a command that failed or on a node that has
    fewer cores than before, the plan may leave it at that.
    """
    cpus = plan.cpus or {}
    if not cpus and not plan.allocations:
        return
    for row, millicores in cpus.items():
        if row not in state.active and row not in state.staying:
            raise PlanError(
                f"the plan gives CPU cores to row {row!r:.100}, which is not an active job"
            )
        if millicores is None:
            continue
        if type(millicores) is not int or millicores < 1:
            _refuse(state, row, f"{millicores!r:.100} thousandths of a CPU core; the least is 1")
        if plan.allocations.get(row, state.target[row]) is None:
            _refuse(state, row, f"{cores_text(millicores)} and no GPUs")
    given = _given(state, cpus, plan.allocations)
    before: dict[int, int] | None = None
    for node, total in given.items():
        limit = state.nodes[node].millicores
        if total > limit:
            before = _given(state, {}, {}) if before is None else before
            if total <= before.get(node, 0):
                continue
            has = cores_text(limit) if limit else "a number of them that is not known"
            raise PlanError(
                f"the plan gives jobs {cores_text(total)} of node {state.nodes[node].name}, "
                f"which has {has}"
            )


def _given(
    state: ClusterState, cpus: dict[int, int | None], planned: dict[int, Allocation | None]
) -> dict[int, int]:
    """Thousandths of a core that jobs have of each node with these changes."""
    given: dict[int, int] = {}
    target = state.target
    for row, millicores in (state.target_cpus | cpus).items():
        place = planned[row] if row in planned else target[row]
        if millicores is None or place is None:
            continue
        if len(place.parts) == 1:  # the usual case, made fast
            node = place.parts[0][0]
            given[node] = given.get(node, 0) + millicores
            continue
        for node, share in place.shares(millicores):
            given[node] = given.get(node, 0) + share
    return given


def _refuse(state: ClusterState, row: int, what: str) -> NoReturn:
    raise PlanError(f"the plan gives job {state.spec[row].job_id} {what}")
