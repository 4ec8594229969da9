"""The part of a step in which a job waits for its data."""

from typing import Any

from rota.model.job import JobState
from rota.model.measured.phase_times import TRAIN, times_in
from rota.model.state.state import ClusterState

NOTABLE = 0.1  # part of a step from which more cores, or more loader workers, may be worth it


def data_wait_of(state: ClusterState, row: int) -> dict[str, Any] | None:
    """``{"share", "wait_s", "step_s", "workers", "sentence"}``, JSON-able, by the last report.

    None unless the job runs and its program measures how long it waits.
    """
    if state.state[row] != JobState.RUNNING:
        return None
    for time in times_in(state.progress[row] or {}):
        share = time.wait_share
        if time.phase == TRAIN and share is not None:
            return {
                "share": share,
                "wait_s": time.wait_s,
                "step_s": time.step_s,
                "workers": time.workers,
                "sentence": f"waits for data {100 * share:.0f} % of each step",
            }
    return None
