"""A decision on a live cluster whose policy fails: a policy can't stop the cluster.

The policy is asked again without what it remembered of the jobs that its error names. Else, and for
any other error, the policy's ``fallback()`` decides: by default jobs that wait start in order of
arrival where they fit, and no job loses GPUs. The policy is asked again at every decision, and
after :func:`retry_after_s` if nothing else calls for one. If it has failed ``MOST_FAILURES`` times,
it is asked without all of its memory as well.

All of this follows from the state and the policy: a replay of the log comes to the same decisions.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rota.model.state.state import ClusterState

RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
MOST_DOUBLINGS = 10
MOST_FAILURES = 3


def retry_after_s(failures: int) -> float:
    """Seconds after which a policy that has failed so often before is asked again."""
    return min(RETRY_S * 2.0 ** min(failures, MOST_DOUBLINGS), LONGEST_RETRY_S)


@contextmanager
def without_memory(state: ClusterState, rows: Iterable[int], *, whole: bool) -> Iterator[None]:
    """Hide what the policy remembers of these jobs, or the ``whole`` of its memory, for one plan.

    Indexes that the policy keeps are not valid meanwhile, nor afterwards.
    """
    marks, policy_mark, stage_marks = list(state.marks), state.policy_mark, state.stage_marks
    for row in rows:
        state.marks[row] = None
    if whole:
        state.policy_mark, state.stage_marks = None, {}
    state.plan = None
    try:
        yield
    finally:
        state.marks[:] = marks
        state.policy_mark, state.stage_marks = policy_mark, stage_marks
        state.plan = None
