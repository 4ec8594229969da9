"""The contract of a stage that places background jobs."""

from __future__ import annotations

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

        A job of ``view.background`` that is not mentioned keeps the GPUs that it has, or none. An
        allocation is one of :func:`rota.model.allocation.background_on_node` with as many GPUs as
        the job wants, of a node that is alive in ``view.nodes`` and of a type that the job asked
        for; no two jobs have the same GPU. A job with processes that is not ``view.movable`` goes
        on on the GPUs that it holds or held, one that is not ``view.portable`` on that node.
        Where device memory does not suffice for it beside the foreground jobs
        (``view.has_room``), it is taken out of the plan.
        """
        raise NotImplementedError
