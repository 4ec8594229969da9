import pytest

from rota.model.events import ResumeRequested, SuspendRequested
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.testing.builders import job, simulation
from support.driven import DrivenCluster

DAY = 86400.0


def service_at(until_s, jobs, cluster="1x4", costs=FREE):
    sim = simulation(jobs, create("round-robin"), cluster, costs)
    while (
        min(t for t in (sim.engine.next_time_s(), sim.state.wake_at_s) if t is not None) <= until_s
    ):
        sim.step()
    return [sim.state.service(row, until_s) for row in range(len(sim.state.spec))]


def test_everybody_has_the_same_run_time_whatever_the_size_of_the_gang():
    jobs = [job("wide", 4, lasts=DAY), *(job(f"x{i}", lasts=DAY) for i in range(4))]
    assert service_at(6000.0, jobs) == pytest.approx([3000.0] * 5, rel=0.03)


def test_slow_starts_are_made_up_for():
    jobs = [job(i, lasts=DAY) for i in range(3)]
    served = service_at(60.0 * 300, jobs, "1x1", FREE._replace(cold_start_s=50.0, resume_s=5.0))
    assert max(served) - min(served) <= 60.0


def test_priorities_are_classes_here_not_weights():
    jobs = [job("a", lasts=600, priority=100), job("b", lasts=DAY, priority=50)]
    assert service_at(600.0, jobs, "1x1") == [600.0, 0.0]


def test_a_newcomer_starts_level_with_the_least_served():
    jobs = [*(job(i, lasts=DAY) for i in range(4)), job(9, at=7200.0, lasts=DAY)]
    after = service_at(7200.0 + 6000.0, jobs)
    gained = [late - early for late, early in zip(after, [7200.0] * 4 + [0.0], strict=True)]
    assert gained == pytest.approx([4800.0] * 5, rel=0.03)


def test_a_job_that_its_owner_held_back_does_not_shut_the_others_out():
    cluster = DrivenCluster(
        job("a"), job("b"), cluster="1x1", policy=create("round-robin", {"quantum_s": "10"})
    )
    cluster.settle()
    cluster.happens(SuspendRequested, 1)
    cluster.passes(1000.0)
    cluster.happens(ResumeRequested, 1)
    cluster.settle()
    assert cluster.state.marks[1] == 1000.0
