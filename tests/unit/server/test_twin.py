"""Copies of the state that are made beside the loop."""

import asyncio
import pickle
import threading

import pytest

from rota.model.events import JobSubmitted, NodeJoined
from rota.model.state.state import ClusterState
from rota.server.twin import TRIES, copied
from rota.testing.builders import job


class State:
    """A state to which something happens while it is copied beside the loop, so many times."""

    def __init__(self, changes, error=None):
        self.events, self.changes, self.error = 0, changes, error
        self.copies = []  # True: beside the loop

    def copy(self):
        beside = threading.current_thread() is not threading.main_thread()
        self.copies.append(beside)
        seen = self.events
        if beside and len(self.copies) <= self.changes:
            self.events += 1
            if self.error is not None:
                raise self.error
        return seen


@pytest.mark.parametrize("error", [None, RuntimeError("dictionary changed size")])
@pytest.mark.parametrize("changes", range(TRIES + 1))
def test_a_copy_is_of_one_moment_and_made_beside_the_loop_unless_events_never_pause(changes, error):
    state = State(changes, error)
    assert asyncio.run(copied(state)) == state.events == changes
    beside = min(changes + 1, TRIES)
    assert state.copies == [True] * beside + [False] * (changes == TRIES)


def test_a_copy_only_reads_the_state():
    state = ClusterState()
    state.apply(NodeJoined(0.0, "here", 2, "cpu"))
    state.apply(JobSubmitted(0.0, job(0)))
    before = pickle.dumps(state)
    twin = state.copy()
    assert pickle.dumps(state) == before
    assert twin.assumed.by_count == state.assumed.by_count
