"""The API's preview of a job: where and when it would start if it were submitted."""

from typing import Any

from rota.explain.why import explain
from rota.model.allocation import Allocation
from rota.model.decide.preview import Preview, preview
from rota.model.job import JobSpec
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.view import View


def plan(controller: Any, state: ClusterState, spec: JobSpec, now_s: float) -> dict[str, Any]:
    """One decision on ``state``, a copy of its own, with the job added.

    ``start`` is ``now``, ``after`` (the jobs of that name have given their GPUs up), ``waits`` or
    ``never``; ``verdict`` is that of :func:`rota.explain.why.explain`.
    """
    most_nodes = controller.supply.most_nodes()
    seen = preview(state, controller.new_policy, spec, now_s, most_nodes)
    row, given = seen.row, state.target[seen.row]
    policy = controller.new_policy()
    view = View(state, now_s, policy)
    verdict = explain(
        state,
        row,
        now_s,
        resizes=policy.resizes,
        adapts=policy.adapts,
        fills=policy.fill is not None,
        turns=policy.turns(view, row) if row in state.active else None,
        ahead=policy.ahead(view, row) if row in state.active else None,
        quota=policy.quota(view, row),
        most_nodes=most_nodes,
        shortage=controller.room.shortage() if controller.room.is_tight else None,
    )
    start = "waits"
    if given is not None:
        start = "after" if seen.in_the_way else "now"
    elif Reason.NEVER_FITS.name in (verdict["reason"], *_rules(verdict)):
        start = "never"
    return {
        "policy": controller.policy_name,
        "start": start,
        "gpus": _gpus(state, given),
        "after": state.ids(seen.in_the_way),
        "shares_with": state.ids(_mates(state, row)),
        "beside": state.ids(_beside(state, row)),
        "displaces": [_displaced(seen, number) for number in range(len(seen.displaced))],
        "verdict": verdict,
    }


def _rules(verdict: dict[str, Any]) -> list[str]:
    return [blocker["rule"] for blocker in verdict["blockers"]]


def _displaced(seen: Preview, number: int) -> dict[str, Any]:
    state, (row, how, before) = seen.state, seen.displaced[number]
    spec = state.spec[row]
    told = {"id": spec.job_id, "name": spec.name, "user": spec.user, "how": how}
    return told | {"gpus": _gpus(state, before), "then": _gpus(state, state.target[row])}


def _mates(state: ClusterState, row: int) -> list[int]:
    """The rows of the jobs that the new one would share GPUs with."""
    given = state.target[row]
    if given is None or not given.shared:
        return []
    targets = ((other, state.target[other]) for other in sorted(state.active) if other != row)
    return [other for other, target in targets if target is not None and target.overlaps(given)]


def _beside(state: ClusterState, row: int) -> list[int]:
    """The rows of the foreground jobs on the GPUs that a new background job would get."""
    given = state.target[row]
    if given is None or not given.background:
        return []
    rows = sorted({*state.active, *state.staying})
    return [other for other in rows if (target := state.target[other]) and target.meets(given)]


def _gpus(state: ClusterState, allocation: Allocation | None) -> list[dict[str, Any]]:
    """The GPUs of a job in the API's form."""
    if allocation is None:
        return []
    parts = allocation.gpus()
    return [{"node": state.nodes[node].name, "gpus": list(gpus)} for node, gpus in parts]
