"""The part of a step in which a job waits for its data."""

from typing import Any

from rota.model.job import JobState
from rota.model.measured.phase_times import TRAIN, times_in
from rota.model.state.state import ClusterState

NOTABLE = 0.1  # part of a step from which more cores, or more loader workers, may be worth it


def data_wait_of(state: ClusterState, row: int) -> dict[str, Any] | None:
    """``{"share", "wait_s", "step_s", "workers", "sentence"}``, JSON-able, by the last report.

    None unless the job runs and its program measures how long it waits. Where CPU cores are
    controlled, steps count that the job began with those that it has.
    """
    if state.state[row] != JobState.RUNNING:
        return None
    profiles, since_s = state.profiles, 0.0
    if profiles is not None and row in state.held_cpus:
        since_s = profiles.unchanged_since_s(row)
    for time in times_in(state.progress[row] or {}):
        share = time.wait_share
        if time.phase == TRAIN and share is not None and time.since_s >= since_s:
            return {
                "share": share,
                "wait_s": time.wait_s,
                "step_s": time.step_s,
                "workers": time.workers,
                "sentence": f"waits for data {100 * share:.0f} % of each step",
            }
    return None
