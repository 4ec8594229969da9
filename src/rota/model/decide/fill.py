"""The part of a plan for background jobs: how it joins the policy's, and what is wrong with one."""

from collections.abc import Iterable
from typing import NoReturn

from rota.errors import PlanError
from rota.model.allocation import Allocation, background_on_node, gpus_text, indices
from rota.model.decide.device_memory import memory_keepers
from rota.model.decide.plain import check_wake, is_plain
from rota.model.notes import Notes, fault_in
from rota.model.plan import FillPlan, Plan
from rota.model.reason import CODES, Reason
from rota.model.state.state import ClusterState
from rota.model.view import View

STAGE = "fill"  # the name of the stage's marks among those of all stages


def without_stage(state: ClusterState) -> FillPlan:
    """The plan where no stage places background jobs: those that have GPUs give them up."""
    rows = state.background
    return FillPlan(
        {row: None for row in rows if state.target[row] is not None},
        {row: Reason.WAIT_GAPS for row in rows if state.reason[row] != Reason.WAIT_GAPS},
    )


def with_fill(state: ClusterState, plan: Plan, added: FillPlan) -> Plan:
    """A copy of the policy's plan with what its stage adds for background jobs."""
    notes = plan.notes
    if added.why or added.probes or added.undone:
        told = notes or Notes(nodes=state.notes.nodes, reserved=state.notes.reserved)
        notes = told._replace(
            why=told.why | added.why, probes=told.probes | added.probes, undone=added.undone
        )
    stage_marks = plan.stage_marks
    if added.marks:
        stage_marks = (stage_marks or {}) | {STAGE: added.marks}
    return plan._replace(
        allocations=plan.allocations | added.allocations,
        reasons=plan.reasons | added.reasons,
        stage_marks=stage_marks,
        notes=notes,
    )


def check_fill(state: ClusterState, added: FillPlan, now_s: float) -> None:
    """Raise PlanError that names what is wrong with a stage's plan for background jobs."""
    if type(added) is not FillPlan:
        raise PlanError(f"the stage for background jobs decided {added!r:.200}, no FillPlan")
    check_wake(added.wake_at_s, now_s)
    for row in (
        *added.allocations,
        *added.reasons,
        *added.why,
        *added.probes,
        *added.undone,
    ):
        if row not in state.background:
            raise PlanError(
                f"the stage for background jobs speaks of row {row!r:.100}, which is none of them"
            )
    for row, code in added.reasons.items():
        if code not in CODES:
            _refuse(state, row, f"the reason {code!r:.100}")
    if added.marks and not is_plain(added.marks):
        raise PlanError(
            f"the stage for background jobs wants to remember {added.marks!r:.200}, which JSON "
            "can't carry exactly"
        )
    if fault := fault_in(Notes(why=added.why, probes=added.probes, undone=added.undone)):
        raise PlanError(f"of the stage for background jobs, {fault}")
    if added.allocations:
        _check_places(state, added.allocations)


def _check_places(state: ClusterState, places: dict[int, Allocation | None]) -> None:
    free = state.assumed_background.copy()
    for row in places:
        old = state.target[row]
        if old is not None:
            free.give(old)
    for row, place in places.items():
        if place is None:
            continue
        wanted_gpus = state.spec[row].num_gpus
        if not isinstance(place, Allocation) or not (
            place.background and place.num_gpus == wanted_gpus and len(place.parts) == 1
        ):
            what = f"{gpus_text(wanted_gpus)} of one node, on the layer of background jobs"
            _refuse(state, row, f"{place!r:.100}; give it {what}")
        node, home = place.parts[0][0], state.home[row] or state.held[row]
        if not 0 <= node < len(state.offered) or not state.offered[node].alive:
            _refuse(state, row, f"a GPU of node {node}, which is not there, or closed")
        if home is not None and not state.movable[row] and place.parts != home.parts:
            _refuse(state, row, f"{place}; it can go on only on {home}")
        if home is not None and not state.portable[row] and place.nodes() != home.nodes():
            _refuse(state, row, f"{place}; it can go on only on the node of {home}")
        wanted = state.spec[row].gpu_types
        if state.is_live and wanted and state.nodes[node].gpu_type not in wanted:
            _refuse(state, row, f"a GPU of type {state.nodes[node].gpu_type}; it wants {wanted}")
        if not free.take(place):
            _refuse(state, row, f"{place}, where a background job is already")


def leave_room(state: ClusterState, view: View, plan: Plan, added: FillPlan) -> FillPlan:
    """The stage's plan, without background jobs beside foreground jobs that need the memory.

    Where device memory is known not to suffice for both, or not known, the background job waits: it
    is suspended in the very decision that gives the foreground job the GPU.
    """
    if not state.has_device_memory:
        return added
    places = {
        row: place
        for row in state.background
        if (place := added.allocations.get(row, state.target[row])) is not None
    }
    if not places:
        return added
    others = _memory_of_foreground(state, plan)
    allocations, reasons = dict(added.allocations), dict(added.reasons)
    for row, place in places.items():
        node, mask = place.parts[0]
        gpus = (background_on_node(node, 1 << gpu) for gpu in indices(mask))
        beside = [{other for other, where in others if where.meets(gpu)} for gpu in gpus]
        if not all(view.has_room(node, (row, *mates)) for mates in beside):
            allocations[row] = None
            if state.target[row] is None:
                del allocations[row]
            reasons[row] = Reason.WAIT_DEVICE_MEMORY
    return added._replace(allocations=allocations, reasons=reasons)


def _memory_of_foreground(state: ClusterState, plan: Plan) -> Iterable[tuple[int, Allocation]]:
    """The foreground jobs with memory on GPUs once the plan is carried out, and these GPUs."""
    found = list(memory_keepers(state).items())
    for row in (*state.active, *state.staying):
        place = plan.allocations.get(row, state.target[row])
        if place is not None:
            found.append((row, place))
    return found


def _refuse(state: ClusterState, row: int, what: str) -> NoReturn:
    raise PlanError(f"the stage for background jobs gives job {state.spec[row].job_id} {what}")
