"""One decision on a copy of the state with one more job: where and when that job would start."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.decide.decision import take_decision
from rota.model.events import JobSubmitted
from rota.model.job import JobSpec
from rota.model.state.displacement import loss
from rota.model.state.state import ClusterState


class Displaced(NamedTuple):
    """A job that would lose GPUs: ``how`` is ``suspended``, ``moved`` or ``shrunk``."""

    row: int
    how: str
    before: Allocation


class Preview(NamedTuple):
    """The state after the decision, and what the new job, in the last row, would bring about.

    ``displaced`` are the jobs that this decision changes and would not change without the new job;
    ``in_the_way`` hold GPUs that it would get, and have yet to give them up.
    """

    state: ClusterState
    row: int
    displaced: tuple[Displaced, ...]
    in_the_way: tuple[int, ...]


def preview(
    state: ClusterState,
    new_policy: Callable[[], Any],
    spec: JobSpec,
    now_s: float,
    most_nodes: int = 0,
) -> Preview:
    """Submit the job on ``state``, a copy of its own, and decide once.

    ``most_nodes`` is the most nodes that there can be, if more can be asked for; else 0.
    Each decision is taken by a policy object of its own. Raises what a decision raises.
    """
    without, before = state.copy(), list(state.target)
    row = len(before)
    state.apply(JobSubmitted(now_s, spec))
    take_decision(state, new_policy(), now_s, most_nodes=most_nodes)
    given = state.target[row]
    if given is None:
        return Preview(state, row, (), ())
    displaced = [
        Displaced(other, how, old)
        for other, old in enumerate(before)
        if old is not None and (how := loss(old, state.target[other]))
    ]
    if displaced:
        take_decision(without, new_policy(), now_s)
        displaced = [
            each for each in displaced if without.target[each.row] != state.target[each.row]
        ]
    holding = [
        other
        for other, held in enumerate(state.held)
        if held is not None and held.overlaps(given) and loss(held, state.target[other])
    ]
    return Preview(state, row, tuple(displaced), tuple(holding))
