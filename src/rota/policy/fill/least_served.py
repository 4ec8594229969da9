"""Background jobs by least attained service, on idle GPUs first."""

from __future__ import annotations

from rota.model.allocation import Allocation, background_on_node
from rota.model.plan import FillPlan, Plan
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.fill.stage import FillStage, Gpu, gpus_after


class LeastServed(FillStage):
    """Gives each waiting background job, the least served first, a GPU that no other one has.

    A GPU without a foreground job comes before one with; a job that has a GPU keeps it.
    """

    def place(self, view: View, plan: Plan) -> FillPlan:
        waiting = [row for row in view.background if view.target[row] is None]
        if not waiting:
            return FillPlan({}, {})
        waiting.sort(key=lambda row: (view.attained_s(row), row))
        taken = view.free_for_background().masks
        gpus = [gpu for gpu in gpus_after(view, plan) if taken[gpu.node] >> gpu.gpu & 1]
        gpus.sort(key=lambda gpu: (len(gpu.rows), gpu.node, gpu.gpu))
        allocations: dict[int, Allocation | None] = {}
        reasons: dict[int, int] = {}
        for row in waiting:
            chosen = next((gpu for gpu in gpus if fits(view, row, gpu)), None)
            if chosen is not None:
                gpus.remove(chosen)
                allocations[row] = background_on_node(chosen.node, 1 << chosen.gpu)
            elif view.reason[row] != Reason.WAIT_GAPS:
                reasons[row] = Reason.WAIT_GAPS
        return FillPlan(allocations, reasons)


def fits(view: View, row: int, gpu: Gpu) -> bool:
    """True if a waiting background job can go on, or start, on this GPU."""
    home, node = view.home[row], view.nodes[gpu.node]
    if home is not None:
        if view.must_stay(row) and home.parts != ((gpu.node, 1 << gpu.gpu),):
            return False
        if view.stays_on_node(row) and home.nodes() != (gpu.node,):
            return False
    wanted = view.spec[row].gpu_types
    if wanted and view.one_node_gangs and node.gpu_type not in wanted:
        return False
    return view.has_room(gpu.node, (row, *gpu.rows))
