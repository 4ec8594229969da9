"""Where Pollux puts jobs: whole nodes for those on several, and no two of these on one."""

import pytest

from rota.model.allocation import on_node
from rota.model.cluster import parse_cluster
from rota.model.decide.decision import take_decision
from rota.model.events import JobSubmitted, NodeJoined
from rota.model.job import Elastic
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.pollux.layout import Layout
from rota.policy.registry import create
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace

AS_IT_RUNS = Elastic((1, 2, 4))


def placed(*jobs, cluster, interference):
    """The GPUs on each node of each job as it is placed first."""
    sim = Simulation(
        trace(*jobs), parse_cluster(cluster), create("pollux", {"interference": interference})
    )
    sim.step()
    return [
        {node: mask.bit_count() for node, mask in held.parts} if held is not None else None
        for held in sim.state.held
    ]


@pytest.mark.parametrize(("interference", "shared"), [("avoid", 0), ("ignore", 1)])
def test_no_two_jobs_on_several_nodes_share_one_if_they_can_avoid_it(interference, shared):
    gangs = [job(1, gpus=6), job(2, gpus=6)]
    first, second = placed(*gangs, cluster="4x4", interference=interference)
    assert sum(first.values()) == sum(second.values()) == 6
    assert len(first.keys() & second.keys()) == shared


def test_a_gang_shares_a_node_rather_than_wait():
    gangs = [job(1, gpus=6), job(2, gpus=6)]
    first, second = placed(*gangs, cluster="3x4", interference="avoid")
    assert len(first.keys() & second.keys()) == 1


def test_jobs_on_one_node_share_it_with_a_job_on_several():
    assert placed(job(1, gpus=6), job(2, gpus=2), cluster="2x4", interference="avoid") == [
        {0: 4, 1: 2},
        {1: 2},
    ]


@pytest.mark.parametrize(("interference", "nodes"), [("avoid", 2), ("ignore", 3)])
def test_whole_nodes_are_cleared_for_a_large_job_only_to_avoid_interference(interference, nodes):
    small = [job(i, gpus=2, at=0.0, lasts=10.0 + 1000.0 * (i % 2)) for i in range(6)]
    sim = Simulation(
        trace(*small, job(9, gpus=8, at=20.0)),
        parse_cluster("4x4"),
        create("pollux", {"interference": interference}),
    )
    while sim.engine.now_s < 20.0 and sim.step():
        pass
    assert len(sim.state.target[-1].parts) == nodes


# -- who may be moved, and how --------------------------------------------------------------------


class AsTold(Policy):
    """A policy that gives the jobs these GPUs, as (node, bits) by row."""

    name = identity = "as told"

    def __init__(self, parts):
        self._parts = parts

    def decide(self, view):
        what_if = view.what_if()
        for row, (node, bits) in self._parts.items():
            what_if.give(row, on_node(node, bits))
        return what_if.plan()


def laid_out(parts, wanted, *, elastic=AS_IT_RUNS, fixed=()):
    """(node, bits) of each job after those that hold ``parts`` of 2 x 4 GPUs want others."""
    state = ClusterState()
    for node in range(2):
        state.apply(NodeJoined(0.0, f"node{node}", 4))
    for row in wanted:
        state.apply(JobSubmitted(0.0, job(row, gpus=1)._replace(elastic=elastic)))
    take_decision(state, AsTold(parts), 0.0)
    for row, column in fixed:
        getattr(state, column)[row] = False
    what_if = View(state, 1.0, AsTold({})).what_if()
    Layout(what_if, 4, wanted, dict.fromkeys(wanted, 1.0)).place()
    places = (what_if.target(row) for row in wanted)
    return [place.parts if place is not None else () for place in places]


def test_a_job_that_shrinks_as_it_runs_keeps_its_first_gpus():
    assert laid_out({0: (1, 0b1111)}, {0: 2}) == [((1, 0b0011),)]


def test_a_job_grows_as_it_runs_by_gpus_of_its_node_alone():
    assert laid_out({0: (1, 0b0100)}, {0: 4}) == [((1, 0b1111),)]
    taken = {0: (1, 0b0100), 1: (1, 0b0011)}
    assert laid_out(taken, {0: 4, 1: 2}) == [((1, 0b1100),), ((1, 0b0011),)]


def test_a_job_grows_to_no_number_that_is_none_of_its_sizes():
    taken = {0: (0, 0b0001), 1: (0, 0b1000)}
    assert laid_out(taken, {0: 4, 1: 1}) == [((0, 0b0011),), ((0, 0b1000),)]


def test_a_job_that_grows_by_a_restart_goes_where_there_are_as_many():
    by_restart = AS_IT_RUNS._replace(by_restart=True)
    taken = {0: (0, 0b0001), 1: (0, 0b1000)}
    assert laid_out(taken, {0: 4, 1: 1}, elastic=by_restart) == [((1, 0b1111),), ((0, 0b1000),)]


BOTH = {0: (0, 0b0001), 1: (1, 0b0001)}  # small jobs, one on each node


def test_a_small_job_makes_room_for_a_large_one_that_needs_its_node():
    assert laid_out(BOTH, {0: 1, 1: 1, 2: 4}) == [((1, 0b0010),), ((1, 0b0001),), ((0, 0b1111),)]


@pytest.mark.parametrize("column", ["movable", "portable"])
def test_a_job_that_can_go_on_nowhere_else_makes_no_room(column):
    fixed = [(0, column)]
    found = laid_out(BOTH, {0: 1, 1: 1, 2: 4}, fixed=fixed)
    assert found == [((0, 0b0001),), ((0, 0b0010),), ((1, 0b1111),)]
    found = laid_out(BOTH, {0: 1, 1: 1, 2: 4}, fixed=[*fixed, (1, column)])
    assert found[:2] == [((0, 0b0001),), ((1, 0b0001),)]
    assert sum(bits.bit_count() for _, bits in found[2]) == 2


def test_a_job_whose_size_changes_as_it_runs_makes_no_room():
    found = laid_out(BOTH, {0: 2, 1: 1, 2: 4})
    assert found == [((0, 0b0101),), ((0, 0b0010),), ((1, 0b1111),)]
