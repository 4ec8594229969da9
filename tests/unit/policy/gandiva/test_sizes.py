"""Under Gandiva, a job that changes its size is not compared with what it was before."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.commands import Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandFailed,
    CommandSent,
    JobLaunched,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    ResumeRequested,
    RetryDue,
    SuspendRequested,
)
from rota.model.job import Elastic
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace

DAY = 86400.0
SWITCH = Costs(suspend_s=0.125, resume_s=0.125, migrate_s=1.5, cold_start_s=0.25)


class BySize:
    """As fast as it has GPUs; half as fast on the second node."""

    def speed(self, spec, allocation, _):
        return allocation.num_gpus * (0.5 if 1 in allocation.nodes() else 1.0)


def elastic(name, sizes, **more):
    return job(name, sizes[0], lasts=DAY, **more)._replace(elastic=Elastic(tuple(sizes)))


def after(jobs, cluster, until_s, **settings):
    policy = create("gandiva", settings)
    sim = Simulation(trace(*jobs), parse_cluster(cluster), policy, SWITCH, speeds=BySize())
    while (
        min(t for t in (sim.engine.next_time_s(), sim.state.wake_at_s) if t is not None) <= until_s
    ):
        sim.step()
        sim.state.validate()
    return sim.state


def test_a_job_does_not_grow_while_its_move_is_on_trial():
    """On two slow GPUs it would be as fast as it was on one fast GPU, and the move be kept."""
    jobs = [elastic("e", (1, 2)), job("b", 2, at=100, lasts=DAY)]
    state = after(jobs, "2x4", 125.0, idle_s="102")
    assert state.marks[0]["home"] == [[1, 1]]
    state = after(jobs, "2x4", 3600.0, idle_s="102")
    [(_, what, _, measured, kept, *_)] = state.notes.probes[0]
    assert (what, kept, measured) == ("move", False, pytest.approx(0.5))
    assert state.marks[0]["home"] == [[0, 2]]


def test_a_job_that_shrinks_for_an_arrival_is_on_trial_no_more():
    """It gives its GPU back at once: nobody waits for a trial, and nothing is measured then."""
    jobs = [
        elastic("e", (1, 2)),
        job("b", 5, at=100, lasts=DAY),
        job("c", 8, at=110, lasts=DAY),
        job("d", 2, at=111, lasts=DAY),
    ]
    state = after(jobs, "2x8", 3600.0, idle_s="30")
    assert [mark["home"] for mark in state.marks[:4:3]] == [[[1, 1]], [[1, 2]]]
    assert [probe[1:5] for probe in state.notes.probes[0]] == [("move", 1.0, None, True)]
    assert state.first_start_s[3] < 112.0


@pytest.mark.parametrize("sizes", [[(1, 2), (1, 2)], [(1, 3), (1, 2), (1, 2)], [(2, 4), (1, 2)]])
def test_jobs_that_grow_in_one_decision_keep_their_own_gpus(sizes):
    """Each runs on: neither is suspended because another one took the GPU that it had."""
    jobs = [elastic(str(number), each) for number, each in enumerate(sizes)]
    state = after(jobs, "1x8", 120.0)
    assert [held.num_gpus for held in state.held] == [each[-1] for each in sizes]
    assert list(state.preemptions) == [0] * len(sizes)


def test_a_job_that_goes_on_with_fewer_gpus_than_its_home_has_is_given_these():
    """Its change of size had failed, and it was suspended."""
    state, policy = ClusterState(), create("gandiva")
    state.apply(NodeJoined(0.0, "n0", 4))
    state.apply(JobSubmitted(0.0, elastic("e", (1, 2))))
    (launch,) = decided(state, policy, 0.0)
    state.apply(JobLaunched(1.0, 0, launch.attempt))
    (resize,) = decided(state, policy, 40.0)
    assert resize.allocation.num_gpus == 2
    state.apply(SuspendRequested(41.0, 0))
    state.apply(CommandFailed(42.0, 0, resize.command_id, "its ranks did not answer"))
    state.apply(RetryDue(42.5, 0))
    (suspend,) = decided(state, policy, 43.0)
    assert isinstance(suspend, Suspend)
    state.apply(JobSuspended(44.0, 0, 44.0))
    state.apply(ResumeRequested(45.0, 0))
    state.marks[0] = {"home": [[0, 2]]}
    (resume,) = decided(state, policy, 46.0)
    assert (resume.allocation.num_gpus, state.marks[0]["home"]) == (1, [[0, 1]])


def decided(state, policy, now_s):
    take_decision(state, policy, now_s)
    commands = diff(state)
    for command in commands:
        state.apply(CommandSent(now_s, command))
    return commands
