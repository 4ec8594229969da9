"""Clusters of rented nodes: they follow the load, and cost what they are rented for."""

import pytest

from rota.errors import InputError, NeverFitsError
from rota.model.cluster import parse_cluster
from rota.model.events import NodeJoined, NodeLost
from rota.policy.registry import create
from rota.report.history import History
from rota.sim.machine import restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.rented import RentedNodes
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace
from rota.workload.measured import Epochs, Measured, Step

START_S, SHRINK_S = 20.0, 120.0
EPOCHS = 150


def measured():
    """Of batches up to 16, shared among 8 GPUs at most; a sample takes a GPU an eighth second."""
    places = {(1,): 0.0, (2,): 0.1, (3,): 0.1, (4,): 0.1, (4, 4): 0.2}
    steps = {
        place: {n: Step(n / 8 + sync_s, sync_s) for n in (2, 4, 8, 16)}
        for place, sync_s in places.items()
    }
    scaled = [((2, gpus, n), Step(n / 8 + 0.2, 0.2)) for gpus in range(2, 9) for n in (2, 4, 8, 16)]
    ends = tuple(50.0 * epoch for epoch in range(1, EPOCHS + 1))
    noise = (1.0,) * EPOCHS, (10.0,) * EPOCHS
    return Measured("net", steps, scaled, {b: Epochs(ends, ends, *noise) for b in (8, 16)})


PROFILES = {"net": measured()}


def nets(*times):
    return [job(i, model="net", batch=8, at=at) for i, at in enumerate(times)]


def simulation(*jobs, cluster="8x4", nodes="1,8", interval_s=None, start_s=START_S):
    given = {"nodes": nodes, "shrink_after_s": f"{SHRINK_S:g}"}
    return Simulation(
        played(trace(*jobs), PROFILES),
        parse_cluster(cluster),
        create("pollux", given),
        restarts(10.0),
        speeds=MeasuredSpeeds(PROFILES),
        interval_s=interval_s,
        cloud=RentedNodes(start_s),
    )


def there(sim):
    return sum(node.alive for node in sim.state.nodes)


def course(sim):
    """(time, desired nodes, nodes there) whenever they change, to the end."""
    found = []
    while sim.step():
        wish = sim.state.notes.nodes
        now = (wish.desired if wish else None, there(sim))
        if not found or found[-1][1:] != now:
            found.append((sim.engine.now_s, *now))
    return found


def test_nodes_follow_a_load_that_goes_up_and_down_within_the_band():
    sim = simulation(*nets(0, 1000, 1010, 1020, 1030, 4500), cluster="16x4", nodes="1,16")
    wishes = []
    for at_s, wanted, _ in course(sim):
        if at_s > 900 and (not wishes or wishes[-1] != wanted):
            wishes.append(wanted)
    assert wishes == [4, 8, 4, 1, 2, 1]  # up at once, down step by step, and up again
    figures = sim.cloud.figures()
    assert figures["time_in_band"] > 0.85
    assert figures["node_starts"] < 10


def test_a_node_is_there_when_it_has_started_and_not_before():
    sim = simulation(*nets(0))
    found = course(sim)
    (asked_s,) = [at_s for at_s, *nodes in found if nodes == [2, 1] and at_s < START_S]
    assert asked_s == 0.0
    assert (START_S, 2, 2) in found


def test_nodes_are_given_back_empty_and_nobody_loses_anything():
    sim = simulation(*nets(0, 0, 0, 0, 2500))
    sim.state.log = []
    sim.run()
    gone = [event for event in sim.state.log if isinstance(event, NodeLost)]
    assert gone
    assert all(event.given_back for event in gone)
    assert sum(sim.state.lost_s) == 0
    assert max(sim.state.attempt) == 1
    figures = History(sim.state.log, parse_cluster("1x4")).figures()
    assert figures["node_failures"] == 0


@pytest.mark.parametrize("interval_s", [None, 30.0])
def test_nodes_are_given_back_while_there_is_no_job_at_all(interval_s):
    sim = simulation(*nets(0, 9000), interval_s=interval_s)
    before = [found for found in course(sim) if sim.state.finish_s[0] < found[0] < 9000]
    assert [nodes for _, *nodes in before] == [[1, 1]]


def test_rented_nodes_cost_from_when_they_are_asked_for():
    sim = simulation(*nets(0), nodes="2,2")
    sim.run()
    figures = sim.cloud.figures()
    hours = sim.state.finish_s[0] / 3600
    assert figures["node_hours"] == pytest.approx(2 * hours)
    assert figures["avg_nodes"] == pytest.approx(2.0)
    assert figures["node_starts"] == 0


def test_a_node_that_is_still_starting_is_given_back_first():
    sim = simulation(*nets(0, 49_000), start_s=50_000.0)
    sim.state.log = []
    sim.run()
    assert sim.state.finish_s[0] < 49_000 < 50_000 < sim.state.finish_s[1]
    joined_s = [event.at_s for event in sim.state.log if isinstance(event, NodeJoined)]
    assert joined_s == []


def test_a_gang_that_needs_more_nodes_than_there_are_gets_them():
    sim = Simulation(
        trace(job(1, gpus=8, lasts=100)),
        parse_cluster("4x4"),
        create("pollux", {"nodes": "1,4"}),
        restarts(10.0),
        cloud=RentedNodes(START_S),
    )
    assert sim.run().state.finish_s[0] == START_S + 110


def test_figures_of_no_time_at_all_are_unknown():
    figures = RentedNodes(1.0).figures()
    assert (figures["node_hours"], figures["avg_utility"], figures["time_in_band"]) == (
        0,
        None,
        None,
    )


def test_what_cant_be_rented_is_refused():
    with pytest.raises(InputError, match="asks for no number of nodes"):
        simulation(nodes="0,0")
    with pytest.raises(InputError, match="the cluster has 8 nodes to rent"):
        simulation(nodes="1,9")
    with pytest.raises(InputError, match="the same number of GPUs"):
        simulation(cluster="4x4,4x8")
    with pytest.raises(NeverFitsError, match="the cluster has 32"):
        Simulation(
            trace(job(1, gpus=33)),
            parse_cluster("8x4"),
            create("pollux", {"nodes": "1,8"}),
            cloud=RentedNodes(START_S),
        )
