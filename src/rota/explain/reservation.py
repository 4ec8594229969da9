"""For whom GPUs are set aside, told of that job and of those that may not pass it."""

from rota.model.naming import jobs_text
from rota.model.notes import Reserved
from rota.model.state.state import ClusterState

Blocker = tuple[str, str, list[str]]  # need, supply, and the jobs in the way


def is_for(state: ClusterState, row: int) -> bool:
    """True if GPUs are set aside for the job."""
    return state.notes.reserved is not None and state.notes.reserved.row == row


def standing(state: ClusterState, now_s: float) -> Blocker:
    """The latest start of the job for which GPUs are set aside, and the jobs before it."""
    reserved = _of(state)
    ids = state.ids(reserved.awaited)
    if reserved.at_s is None:
        endless = "one of them has no time limit" if len(ids) > 1 else "it has no time limit"
        have = f"held by {jobs_text(ids)}; when they are free nobody can tell: {endless}"
    elif reserved.at_s <= now_s:
        have = f"due now: {jobs_text(ids)} ran for as long as was to be expected"
    else:
        have = f"free in {_in(reserved, now_s)} at the latest, by time limits: {jobs_text(ids)}"
    return "the GPUs that are set aside for it", have, ids


def in_the_way(state: ClusterState, now_s: float) -> Blocker:
    """The blocker of a job that could start, but would delay the one with set-aside GPUs."""
    reserved = _of(state)
    need = f"GPUs that {_name(state)} leaves"
    if reserved.at_s is None:
        have = f"it would use what is set aside for {_name(state)}"
    elif reserved.at_s <= now_s:
        have = f"it would use what is set aside for {_name(state)}, which is to start now"
    else:
        need += f", or a time limit of {_in(reserved, now_s)} at most"
        have = (
            f"it would use what is set aside for {_name(state)}, which starts in "
            f"{_in(reserved, now_s)} at the latest"
        )
    return need, have, state.ids([reserved.row])


def would_start_if(state: ClusterState, now_s: float) -> str:
    """The changes that would let that job start."""
    reserved = _of(state)
    text = f"{_name(state)} had started, or left it GPUs"
    if reserved.at_s is not None and reserved.at_s > now_s:
        text += f"; or its time limit were {_in(reserved, now_s)} or less"
    return text


def _of(state: ClusterState) -> Reserved:
    assert state.notes.reserved is not None
    return state.notes.reserved


def _name(state: ClusterState) -> str:
    return jobs_text(state.ids([_of(state).row]))


def _in(reserved: Reserved, now_s: float) -> str:
    return f"{(reserved.at_s or now_s) - now_s:.0f} s"
