"""Simulated jobs that share a GPU slow each other down, for as long as they do."""

import pytest

from rota.model.allocation import on_node, shared_on_node
from rota.model.cluster import Node
from rota.model.job import FOREGROUND, JobSpec, Share
from rota.model.reason import Reason
from rota.policy.base import Policy
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation, simulate
from rota.workload.trace import Trace


class PackBetween(Policy):
    """Two jobs on one GPU: the first alone, both from 10 s to 20 s, then the first again."""

    def decide(self, view):
        what_if = view.what_if()
        shared = 10 <= view.now_s < 20
        for row in list(view.active):
            if view.target[row] is not None:
                what_if.release(row, Reason.SLICE_WAITING_TURN)
        for row in view.active:
            gpu = shared_on_node(0, 1) if shared else on_node(0, 1)
            if what_if.free.fits(gpu):
                what_if.give(row, gpu)
        times = [at_s for at_s in (10.0, 20.0) if at_s > view.now_s]
        return what_if.plan(wake_at_s=times[0] if times else None)


def flow(weight):
    return Share(FOREGROUND, weight=weight)


def run(utils, interference=None, weights=(None, None)):
    jobs = [
        JobSpec(name, 1, 0.0, 20.0, model=name, gpu_util=util, share=weight and flow(weight))
        for name, util, weight in zip("ab", utils, weights, strict=True)
    ]
    simulation = Simulation(
        Trace(jobs), [Node("n", 1)], PackBetween(), FREE, interference=interference
    )
    while simulation.step():
        simulation.state.validate()
    return list(simulation.state.finish_s)


def test_jobs_that_leave_their_gpu_idle_half_of_the_time_do_not_disturb_each_other():
    assert run((0.5, 0.5)) == pytest.approx([20, 30])


def test_jobs_that_need_more_than_there_is_share_it_out():
    # 10 s alone, 10 s at 1 / 1.2; what is left of the second begins when the first has ended.
    first = 20 + 10 - 10 / 1.2
    assert run((0.6, 0.6)) == pytest.approx([first, first + 20 - 10 / 1.2])


def test_nobody_knows_their_utilisation_so_they_gain_nothing():
    assert run((None, None)) == pytest.approx([25, 40])


def test_a_measured_pair_runs_as_measured():
    speeds = Interference({("a", "b"): (0.8, 0.7)})
    assert run((0.5, 0.5), speeds) == pytest.approx([22, 35])


def test_flow_jobs_share_a_gpu_by_weight():
    # 10 s alone, 10 s at 3/4, then alone; the second is at 1/4 while both run.
    assert run((1.0, 1.0), weights=(3.0, 1.0)) == pytest.approx([22.5, 40])


def test_flow_jobs_that_fit_a_gpu_together_lose_nothing_whatever_was_measured():
    measured = Interference({("a", "b"): (0.8, 0.7)})
    assert run((0.5, 0.5), measured, weights=(1.0, 4.0)) == pytest.approx([20, 30])


def test_gandiva_packs_flow_jobs_that_fit_a_gpu_together():
    jobs = [
        JobSpec(name, 1, 0.0, 7200.0, gpu_util=0.4, memory_gb=4.0, share=flow(1.0))
        for name in "abcd"
    ]
    policy = create("gandiva", {"gpu_memory_gb": "16"})
    state = simulate(Trace(jobs), [Node("n", 2)], policy, FREE).state
    assert sum(state.preemptions) == 0
    assert max(state.finish_s) < 0.6 * 14_400  # that they would take one after another
