"""Where Pollux puts jobs: whole nodes for those on several, and no two of these on one."""

import pytest

from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace


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
