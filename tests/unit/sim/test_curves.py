from rota.model.cluster import parse_cluster
from rota.model.view import View
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.trace import Trace


def test_a_trial_tells_its_metric_evenly_over_its_work_and_nobody_else_does():
    jobs = [job(0, lasts=40), job(1, lasts=40)]
    policy = create("fifo")
    curves = {"0": (0.1, 0.2, 0.3, 0.4)}
    sim = Simulation(Trace(jobs), parse_cluster("1x2"), policy, FREE, curves=curves)
    sim.step()
    told = [tuple(View(sim.state, at_s, policy).curve(0)) for at_s in (0.0, 9.9, 10.0, 39.9, 40.0)]
    assert told == [(), (), (0.1,), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4)]
    assert tuple(View(sim.state, 40.0, policy).curve(1)) == ()


def test_without_curves_nobody_tells_anything():
    policy = create("fifo")
    sim = Simulation(Trace([job(0)]), parse_cluster("1x1"), policy, FREE)
    sim.step()
    assert tuple(View(sim.state, 30.0, policy).curve(0)) == ()
