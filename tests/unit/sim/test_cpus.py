"""Simulated jobs run as fast as their cores let them."""

import pytest

from rota.model.allocation import shared_on_node
from rota.model.cluster import parse_cluster
from rota.model.commands import SetCpus
from rota.model.events import CommandSent, CpusSet, DecisionTaken
from rota.policy.base import Policy
from rota.policy.cpus.even import Equal
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.report.history import History
from rota.sim.machine import FREE, Phase
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.trace import Trace


class Needs:
    """A job of model ``N`` runs at full speed with N cores, and slower with fewer."""

    def __init__(self):
        self.asked = []

    def factor(self, spec, allocation, nodes, millicores, work_s):
        self.asked.append((spec.job_id, millicores, work_s))
        return min(1.0, millicores / (1000 * float(spec.model)))


class Packed(Policy):
    """All jobs on one GPU, each with its part of the cores."""

    cpus = Equal()

    def decide(self, view):
        what_if = view.what_if()
        for row in view.active:
            if view.target[row] is None:
                what_if.give(row, shared_on_node(0, 1))
        return what_if.plan()


def simulated(jobs, cpus="equal", cluster="1x4:cpus=8", policy="fifo-backfill", **more):
    given = {} if cpus == "off" else {"cpus": cpus}
    more = {"cpus": Needs()} | more
    sim = Simulation(Trace(jobs), parse_cluster(cluster), create(policy, given), FREE, **more)
    sim.state.log = []
    return sim, sim.run().state


def test_a_job_slows_down_as_others_take_cores_and_speeds_up_as_they_end():
    jobs = [job("a", lasts=20, model="8"), job("b", at=10, lasts=5, model="1")]
    sim, state = simulated(jobs)
    # Alone a has 8 cores, and half of them for the 5 s of b.
    assert list(state.finish_s) == [22.5, 15.0]
    sent = [e.command for e in state.log if isinstance(e, CommandSent)]
    assert [(c.row, c.millicores) for c in sent if isinstance(c, SetCpus)] == [(0, 4000), (0, 8000)]
    assert [e.speed for e in state.log if isinstance(e, CpusSet)] == [0.5, 1.0]
    assert ("a", 4000, 10.0) in sim.machine.cpus.asked
    history = History(state.log, sim.state.nodes)
    assert history.figures()


def test_a_static_share_leaves_cores_of_idle_gpus_idle():
    _, state = simulated([job("a", lasts=20, model="8")], "proportional")
    assert list(state.finish_s) == [80.0]


def test_without_control_cores_make_nobody_slower():
    _, state = simulated([job("a", lasts=20, model="8"), job("b", lasts=20, model="8")], "off")
    assert list(state.finish_s) == [20.0, 20.0]
    assert not any(event.cpus for event in state.log if isinstance(event, DecisionTaken))


def test_a_change_of_cores_alone_calls_for_no_decision():
    jobs = [job("a", lasts=20, model="8"), job("b", at=10, lasts=5, model="1")]
    with_cores, without = (simulated(jobs, cpus)[0].decisions for cpus in ("equal", "off"))
    assert with_cores == without


def test_jobs_take_turns_with_their_cores():
    jobs = [job("a", 4, lasts=400, model="8"), job("b", 4, lasts=400, model="16")]
    _, state = simulated(jobs, policy="round-robin")
    assert state.preemptions[0] > 0
    assert sum(state.service_s) == pytest.approx(400 + 800)
    assert state.target_cpus == state.held_cpus == {}


@pytest.mark.parametrize(
    ("needed", "beside", "speed"),
    [
        ("1", 0.75, 0.75),  # the GPU is what both wait for
        ("8", 0.75, 0.5),  # here it is the cores, and the loss on the GPU is not told again
        ("8", 0.4, 0.4),
        ("1", 1.02, 1.02),
    ],
)
def test_packed_jobs_are_as_fast_as_the_scarcer_of_cores_and_gpu(needed, beside, speed):
    jobs = [job(name, lasts=20, model=needed, gpu_util=0.5) for name in "ab"]
    pairs = Interference({(needed, needed): (beside, beside)})
    more = {"cpus": Needs(), "interference": pairs}
    sim = Simulation(Trace(jobs), parse_cluster("1x1:cpus=8"), Packed(), FREE, **more)
    state = sim.run().state
    assert list(state.finish_s) == pytest.approx([20 / speed] * 2)


def test_cores_multiply_the_speed_of_the_place_and_of_the_phase():
    class Half:
        def speed(self, spec, allocation, nodes):
            return 0.5

        def phase(self, spec, allocation, nodes, work_s):
            return Phase(0.5, 10.0) if work_s < 10.0 else Phase(0.25, float("inf"))

    _, state = simulated([job("a", lasts=20, model="16")], speeds=Half())
    assert list(state.finish_s) == [10 / 0.25 + 10 / 0.125]
