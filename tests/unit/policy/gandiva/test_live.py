"""Gandiva on live jobs: what it knows of a job that reports while nothing is decided."""

import pytest

from rota.model.commands import Launch, Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandSent,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    NodeJoined,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import JobState, Program, Suspension
from rota.model.state.state import ClusterState
from rota.policy.gandiva.jobs import MEASURED_S, Notes
from rota.policy.registry import create
from rota.testing.builders import job


def decides(state, policy, now_s):
    """One decision; launches happen at once, the other commands are given back."""
    take_decision(state, policy, now_s)
    others = []
    for command in diff(state):
        state.apply(CommandSent(now_s, command))
        if isinstance(command, Launch):
            state.apply(JobLaunched(now_s, command.row, command.attempt))
        else:
            others.append(command)
    return others


def submit(state, now_s, name, gpus=1):
    number = len(state.spec) + 1
    spec = job(number, gpus, at=now_s)._replace(program=Program(name, "/work"), duration_s=None)
    state.apply(JobSubmitted(now_s, spec))
    return number - 1


def tells(state, row, at_s, step):
    progress = {"at_s": at_s, "step": step, "samples": step, "batch": 1, "metrics": {}}
    state.apply(WorkerReported(at_s, row, progress))


def node_of(state, row):
    return state.held[row].parts[0][0]


@pytest.mark.parametrize("told_s", [0.5, 30.0])
def test_a_job_that_had_told_nothing_at_the_last_decision_is_measured_all_the_same(told_s):
    """It makes room for a gang; its move is judged by its speed if that is known."""
    state, policy = ClusterState(), create("gandiva", {"pack": "off", "limit": "1"})
    for name in ("n0", "n1"):
        state.apply(NodeJoined(0.0, name, 2, "cpu"))
    moves, short, stays = (submit(state, 0.0, name) for name in ("moves", "short", "stays"))
    decides(state, policy, 0.0)
    assert [node_of(state, row) for row in (moves, short, stays)] == [0, 0, 1]
    state.apply(WorkerRegistered(1.0, stays, Suspension.PROCESS, movable=False, portable=False))
    state.apply(JobFinished(2.0, short, JobState.SUCCEEDED, 0, ""))
    assert not decides(state, policy, 2.0)
    assert state.wake_at_s is None

    for step in range(1, 11):
        tells(state, moves, 10.0 + step * told_s / 10, 10 * step)
    gang = submit(state, 60.0, "gang", gpus=2)
    assert [type(command) for command in decides(state, policy, 60.0)] == [Suspend]
    move = Notes(state.marks[moves]).move
    if told_s < MEASURED_S:
        assert move is None, "it is not known how fast it was"
    else:
        assert move.what == f"move to make room for job {state.spec[gang].job_id}"
        assert move.was == pytest.approx(100 / told_s)
