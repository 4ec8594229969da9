"""Turns in which nothing else changes: cheap, and the same as whole decisions would give."""

import pytest

from rota.model.events import AttemptLost, NodeClosed, NodeLost
from rota.model.reason import Reason
from rota.policy.gandiva import policy as gandiva
from rota.policy.registry import create
from rota.sim.machine import FREE, Costs
from rota.testing.builders import job, random_trace, simulation, trace

SLOW = Costs(suspend_s=0.5, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0)


class Forgetful(gandiva.Gandiva):
    """Takes a whole decision every time."""

    def decide(self, view):
        self._rotation = None
        return super().decide(view)


def crowd(jobs, *, sizes=(1,)):
    """Long jobs that arrive at once, of these sizes in turn."""
    return trace(*(job(i, sizes[i % len(sizes)], lasts=40_000 + 100 * i) for i in range(jobs)))


def events(sim, meddle=None, until_s=100_000.0):
    sim.state.log = []
    while sim.engine.now_s < until_s and sim.step():
        if meddle is not None:
            meddle(sim)
    return sim.state.log


@pytest.fixture
def whole_decisions(monkeypatch):
    """When whole decisions were taken."""
    taken = []

    class Counted(gandiva.Round):
        def plan(self):
            taken.append(self.view.now_s)
            return super().plan()

    monkeypatch.setattr(gandiva, "Round", Counted)
    return taken


@pytest.mark.parametrize("queue", [0, 20, 300])
@pytest.mark.parametrize("costs", [FREE, SLOW], ids=["free", "slow"])
def test_a_turn_looks_at_those_who_ran_however_many_wait(whole_decisions, queue, costs):
    policy = create("gandiva")
    sim = simulation(crowd(16 + queue), policy, "1x4", costs)
    events(sim, until_s=1000.0)  # by then nobody in the queue is passed any more
    begun, before = sim.decisions, policy._rotation.looked_at
    events(sim, until_s=13_000.0)
    turns = sim.decisions - begun
    assert turns == 200
    assert policy._rotation.looked_at - before <= 8 * turns  # who ran, and who runs now
    assert whole_decisions[-1] <= 1000.0


def test_gangs_that_wait_beside_idle_gpus_take_their_turn_without_a_whole_decision(
    whole_decisions,
):
    sim = simulation(crowd(40, sizes=(1, 1, 2, 4, 3)), create("gandiva"), "2x4")
    events(sim, until_s=13_000.0)
    assert sim.decisions > 200
    assert not [at_s for at_s in whole_decisions if at_s > 1000.0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("costs", [FREE, SLOW], ids=["free", "slow"])
def test_turns_are_those_of_whole_decisions(seed, costs):
    jobs = random_trace(seed, num_jobs=40)
    long = trace(*(each._replace(duration_s=9 * each.duration_s) for each in jobs))
    found = [
        events(simulation(long, policy(quantum_s=20.0), "1x8,2x2", costs))
        for policy in (gandiva.Gandiva, Forgetful)
    ]
    names = [[repr(event).replace("Forgetful", "Gandiva") for event in log] for log in found]
    assert names[0] == names[1]


def test_a_job_that_loses_its_processes_in_a_turn_waits_for_a_home_again(whole_decisions):
    sim = simulation(crowd(16), create("gandiva"), "1x4")
    events(sim, until_s=1000.0)
    del whole_decisions[:]
    sim.state.apply(AttemptLost(1000.0, 3, sim.state.attempt[3], "its node burnt"))
    events(sim, until_s=1100.0)
    assert whole_decisions
    assert sim.state.marks[3]["home"] == [[0, 1]]


def test_jobs_are_told_when_a_closed_node_is_lost_for_good():
    sim = simulation(crowd(3, sizes=(8,)), create("gandiva"), "1x4,1x8")
    events(sim, until_s=600.0)
    sim.state.apply(NodeClosed(sim.engine.now_s, "node1", True))
    events(sim, until_s=900.0)
    waiting = [row for row in sim.state.active if sim.state.target[row] is None]
    assert {Reason(sim.state.reason[row]) for row in waiting} == {Reason.NODE_CLOSED}
    sim.state.apply(NodeLost(sim.engine.now_s, "node1"))
    sim.step()
    assert {Reason(sim.state.reason[row]) for row in waiting} == {Reason.NEVER_FITS}
