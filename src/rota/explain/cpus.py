"""A job's CPU cores, and why it has no more of them."""

from rota.explain.data_wait import NOTABLE, data_wait_of
from rota.model.job import JobState
from rota.model.state.state import ClusterState


def cpus_of(state: ClusterState, row: int) -> str | None:
    """``it has 1.5 CPU cores; one core more would make it 21 % faster``, by the last decision.

    A notable wait for data stands before the worth of more cores.
    None unless the job runs and something controls its cores.
    """
    millicores = state.held_cpus.get(row)
    if millicores is None or state.state[row] != JobState.RUNNING:
        return None
    has = f"it has {millicores / 1000:g} CPU core{'s'[: millicores != 1000]}"
    why = state.notes.why_cpus.get(row)
    if why is None:
        return has
    wait = data_wait_of(state, row)
    waits = f"{wait['sentence']}; " if wait is not None and wait["share"] > NOTABLE else ""
    return f"{has}; {waits}{why}"
