"""Simulated jobs on several nodes slow each other down where they share one."""

import pytest

from rota.model.allocation import Allocation
from rota.model.cluster import parse_cluster
from rota.policy.base import Policy
from rota.predict.interference import Interference
from rota.sim.faults import Fault, Faults, What
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace


class Put(Policy):
    """Gives jobs these GPUs, by row, as soon as they are free."""

    def __init__(self, *parts):
        self._places = [Allocation(each) for each in parts]

    def decide(self, view):
        what_if = view.what_if()
        for row in sorted(view.active):
            place = self._places[row]
            if view.target[row] is None and what_if.free.fits(place):
                what_if.give(row, place)
        return what_if.plan()


BESIDE = (((0, 0b11), (1, 0b01)), ((1, 0b10), (2, 0b11)))  # both have a GPU of node 1


def run(jobs, places, *, costs=FREE, faults=None, links=0.25):
    simulation = Simulation(
        trace(*jobs),
        parse_cluster("3x2"),
        Put(*places),
        costs,
        interference=Interference(links=links),
        faults=faults,
    )
    while simulation.step():
        simulation.state.validate()
    return list(simulation.state.finish_s)


def test_jobs_that_share_a_node_lose_a_part_of_their_speed_while_both_run():
    ends = run([job(1, gpus=3, lasts=75), job(2, gpus=3, lasts=100, at=10)], BESIDE)
    first = 10 + 65 / 0.75  # alone for 10 s
    assert ends == pytest.approx([first, first + 100 - 65])


def test_jobs_lose_nothing_where_nothing_is_said_of_it():
    ends = run([job(1, gpus=3, lasts=75), job(2, gpus=3, lasts=100)], BESIDE, links=0.0)
    assert ends == [75, 100]


@pytest.mark.parametrize(
    "places",
    [
        (((0, 0b11),), ((1, 0b11), (2, 0b11))),
        (((1, 0b01),), ((1, 0b10), (2, 0b11))),
        (((0, 0b11), (1, 0b01)), ((1, 0b10),)),
    ],
    ids=["on other nodes", "one on a part of a node", "the other on a part of a node"],
)
def test_a_job_on_one_node_disturbs_nobody(places):
    jobs = [
        job(i, gpus=sum(m.bit_count() for _, m in parts), lasts=50)
        for i, parts in enumerate(places)
    ]
    assert run(jobs, places) == [50, 50]


def test_a_job_that_starts_disturbs_nobody_before_it_runs():
    costs = Costs(suspend_s=0.0, resume_s=0.0, migrate_s=0.0, cold_start_s=20.0)
    jobs = [job(1, gpus=3, lasts=75), job(2, gpus=3, lasts=300, at=10)]
    first = 30 + (75 - 10) / 0.75  # from 20 s on, beside the other from 30 s on
    assert run(jobs, BESIDE, costs=costs)[0] == pytest.approx(first)


def test_a_job_goes_on_at_its_own_speed_when_the_other_is_lost():
    fault = Fault(at_s=40.0, what=What.FAIL, node="node2", for_s=1000.0)
    jobs = [job(1, gpus=3, lasts=75), job(2, gpus=3, lasts=75)]
    ends = run(jobs, BESIDE, faults=Faults(script=(fault,)))
    assert ends[0] == pytest.approx(40 + 75 - 40 * 0.75)
