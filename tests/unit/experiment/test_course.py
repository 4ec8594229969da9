import pytest

from rota.experiment.runs.course import Course
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace


def course(policy, *jobs, work_s=60.0, pairs=None):
    nodes, interference = parse_cluster("1x1"), Interference(pairs)
    simulation = Simulation(
        trace(*jobs), nodes, create(policy, {}), FREE, interference=interference
    )
    return Course(simulation, work_s)


def test_the_first_work_is_counted_from_each_jobs_arrival():
    made = course("fifo", job("a", lasts=100), job("b", at=30, lasts=500))
    made.until_all_have()
    assert made.first_s == {0: 60.0, 1: pytest.approx(70 + 60)}


def test_a_job_that_runs_slower_beside_another_needs_longer():
    alike = [job(name, lasts=1e5)._replace(model="x", gpu_util=0.1) for name in "ab"]
    made = course("gandiva", *alike, work_s=3000.0, pairs={("x", "x"): (0.75, 0.75)})
    made.until_all_have()
    assert made.num_sharing() == 2
    for row in (0, 1):
        assert made.work_s(made.first_s[row])[row] == pytest.approx(3000.0)
        assert made.first_s[row] == pytest.approx(3000 / 0.75, rel=0.05)


def test_it_goes_as_far_as_it_is_told():
    made = course("fifo", job("a", lasts=100), job("b", lasts=100), job("c", at=900))
    made.until(150.0)
    assert made.work_s(150.0) == [100.0, 50.0]
    assert made.num_sharing() == 0
    made.until(1e9)
    assert made.work_s(1e9) == [100.0, 100.0, 60.0]
