"""Copies of the cluster's state that are made beside the controller's loop."""

from contextlib import suppress

from rota.model.state.state import ClusterState
from rota.server.threads import in_thread

TRIES = 3  # beside the loop; a state that changes all the time is copied on it


async def copied(state: ClusterState) -> ClusterState:
    """An independent copy of a state that only the event loop changes.

    With many jobs a copy takes tens of milliseconds. The loop goes on meanwhile: a copy only reads
    the state, and one during which an event was applied is thrown away.
    """
    for _ in range(TRIES):
        events = state.events
        with suppress(RuntimeError):  # a dict or set that changes while it is walked
            twin = await in_thread(state.copy)
            if state.events == events:
                return twin
    return state.copy()
