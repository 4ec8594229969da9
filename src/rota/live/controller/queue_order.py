"""The waiting jobs in the order of the policy in force."""

from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.base import Policy


def positions(state: ClusterState, now_s: float, policy: Policy) -> dict[int, int]:
    """The position of each job that wants GPUs and has none, from 1, by row."""
    order = policy.order(View(state, now_s, policy))
    waits = [row for row in order if state.held[row] is None and state.target[row] is None]
    return {row: position for position, row in enumerate(waits, 1)}
