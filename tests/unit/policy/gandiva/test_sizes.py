"""Under Gandiva, a job that changes its size is not compared with what it was before."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.job import Elastic
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
