"""The contract of a stage that places background jobs, and the GPUs that such a stage goes by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rota.model.allocation import indices
from rota.model.plan import FillPlan, Plan
from rota.model.view import View


class FillStage:
    """The base class of every stage for background jobs: asked after the policy, at each decision.

    Like a policy it is a function of the view, and of the plan that the policy has just made on it;
    what it must remember comes back in ``view.stage_marks["fill"]``. It is not asked while there is
    no background job. Where nothing has changed but background jobs, the policy is not asked, and
    ``plan`` is one without changes.
    """

    def place(self, view: View, plan: Plan) -> FillPlan:
        """The GPUs of background jobs once ``plan`` is carried out, as changes to the last plan.

        A job of ``view.background`` that is not mentioned keeps the GPU that it has, or none. An
        allocation is one of :func:`rota.model.allocation.background_on_node` with one GPU of a node
        that is alive in ``view.nodes`` and of a type that the job asked for; no two jobs have the
        same. A suspended job goes on where ``view.must_stay`` and ``view.stays_on_node`` allow it.
        Where device memory does not suffice for it beside the foreground jobs
        (``view.has_room``), it is taken out of the plan.
        """
        raise NotImplementedError


class Gpu(NamedTuple):
    """A GPU of a living node, and the rows of the foreground jobs that a plan gives it to."""

    node: int
    gpu: int
    rows: tuple[int, ...]


def gpus_after(view: View, plan: Plan) -> Iterator[Gpu]:
    """Every GPU of a living, open node once ``plan`` is carried out, by rising node and index."""
    held: dict[tuple[int, int], list[int]] = {}
    for row in sorted({*view.active, *view.staying}):
        place = plan.allocations.get(row, view.target[row])
        for node, mask in () if place is None else place.parts:
            for gpu in indices(mask):
                held.setdefault((node, gpu), []).append(row)
    for node, has in enumerate(view.nodes):
        for gpu in range(has.num_gpus if has.alive else 0):
            yield Gpu(node, gpu, tuple(held.get((node, gpu), ())))
