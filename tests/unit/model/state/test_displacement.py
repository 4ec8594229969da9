"""The story of a job names the jobs that got its GPUs."""

import pytest

from rota.model.allocation import on_node
from rota.model.cluster import Node
from rota.model.commands import Suspend
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandSent,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    JobSuspended,
    joined,
)
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.model.state.displacement import loss, takers_text
from rota.model.state.state import ClusterState
from rota.testing.builders import job


def running(*jobs, gpus=2):
    """A node with these jobs, of which the first ones run, one GPU each."""
    state = ClusterState()
    state.apply(joined(0.0, Node("here", gpus)))
    for each in jobs:
        state.apply(JobSubmitted(0.0, each))
    plan(state, 1.0, {row: on_node(0, 1 << row) for row in range(min(gpus, len(jobs)))})
    for command in diff(state):
        state.apply(CommandSent(1.0, command))
        state.apply(JobLaunched(1.0, command.row, command.attempt))
    return state


def plan(state, at_s, allocations, reasons=None):
    event = DecisionTaken(at_s, 2, "", allocations, reasons or {}, {}, None, None)
    state.apply(event)


def last_line(state, row):
    return state.story(row)[-1][1]


def test_a_suspended_job_names_the_job_that_got_its_gpus():
    state = running(job(1), job(2), job(3, name="train", user="alice"))
    plan(state, 5.0, {0: None, 2: on_node(0, 0b01)}, {0: Reason.PREEMPTED_BY})
    (suspend,) = [command for command in diff(state) if isinstance(command, Suspend)]
    state.apply(CommandSent(5.0, suspend))
    state.apply(JobSuspended(6.0, 0, 6.0))
    assert last_line(state, 0) == "suspended in favour of job 3 (train) of alice"
    assert state.displaced == {0: (2,)}


def test_it_is_forgotten_when_the_job_gets_gpus_again_or_ends():
    state = running(job(1), job(2), job(3))
    plan(state, 5.0, {0: None, 1: None, 2: on_node(0, 0b01)})
    assert state.displaced == {0: (2,), 1: ()}
    plan(state, 6.0, {0: on_node(0, 0b10)})
    assert state.displaced == {1: ()}
    state.apply(JobFinished(7.0, 1, JobState.FAILED, 1))
    assert state.displaced == {}


def test_nobody_is_named_where_nobody_got_the_gpus():
    state = running(job(1))
    plan(state, 5.0, {0: None})
    (suspend,) = diff(state)
    state.apply(CommandSent(5.0, suspend))
    state.apply(JobSuspended(6.0, 0, 6.0))
    assert last_line(state, 0) == "suspended"


def test_a_job_that_moves_gives_its_gpus_to_who_comes_there():
    state = running(job(1), job(2), gpus=3)
    plan(state, 5.0, {0: on_node(0, 0b100), 1: on_node(0, 0b011)})
    assert state.displaced == {0: (1,)}


def test_a_state_without_stories_keeps_nothing():
    state = ClusterState(keep_stories=False)
    state.apply(joined(0.0, Node("here", 1)))
    state.apply(JobSubmitted(0.0, job(1)))
    state.apply(JobSubmitted(0.0, job(2)))
    plan(state, 1.0, {0: on_node(0, 1)})
    plan(state, 2.0, {0: None, 1: on_node(0, 1)})
    assert state.displaced == {}


def test_of_many_the_first_are_named():
    state = running(*(job(number) for number in range(12)), gpus=1)
    assert takers_text(state, (1, 2)) == "job 1 and job 2"
    assert takers_text(state, tuple(range(12))).endswith("job 9 and 2 more")


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        (on_node(0, 0b11), None, "suspended"),
        (on_node(0, 0b11), on_node(0, 0b01), "shrunk"),
        (on_node(0, 0b11), on_node(1, 0b01), "shrunk"),
        (on_node(0, 0b01), on_node(0, 0b10), "moved"),
        (on_node(0, 0b01), on_node(1, 0b01), "moved"),
        (on_node(0, 0b01), on_node(0, 0b11), ""),
        (on_node(0, 0b01), on_node(0, 0b01).with_sharing(True), ""),
    ],
)
def test_how_a_job_loses_gpus(before, after, how):
    assert loss(before, after) == how
