"""Jobs that find no home under Gandiva wait in the queue, but later ones do not pass for ever."""

import pytest

from rota.policy.gandiva.servers import Servers
from rota.policy.registry import create
from rota.testing.builders import job, simulation

DAY = 86400.0


def first_starts(jobs, cluster, until_s, **settings):
    """Job -> when it first started; -1 if it has not."""
    sim = simulation(jobs, create("gandiva", settings), cluster)
    while sim.engine.now_s < until_s and sim.step():
        sim.state.validate()
    state = sim.state
    return {spec.job_id: state.first_start_s[row] for row, spec in enumerate(state.spec)}


@pytest.mark.parametrize(
    ("cluster", "settings", "num_gpus"),
    [
        ("1x4", {"limit": "1"}, 4),
        ("2x4", {"limit": "1"}, 3),
        ("2x4", {"limit": "1"}, 8),
        ("2x4", {"limit": "2", "affinity": "strict"}, 4),
    ],
)
def test_small_jobs_that_keep_coming_pass_a_gang_in_the_queue_only_for_a_while(
    cluster, settings, num_gpus
):
    """Single jobs come as fast as they end, so that never so many GPUs are free by chance."""
    each_s = 100.0 if cluster == "1x4" else 50.0
    singles = [job(i, at=each_s * i, lasts=400 + i) for i in range(150)]
    gang = job("gang", num_gpus, at=4 * 400 + 1, lasts=100)
    starts = first_starts([*singles, gang], cluster, 7000.0, pass_s="300", pack="off", **settings)
    # Once nobody passes any more, all who are there have ended in what is left of 8 * 550 s.
    assert 0 < starts["gang"] < 1601 + 300 + 1100
    assert all(starts[str(i)] >= 0 for i in range(40))


@pytest.mark.parametrize(("cluster", "num_gpus"), [("1x4", 4), ("2x4", 8)])
def test_with_turns_a_node_is_promised_once_more_for_a_gang_that_was_passed_for_long(
    cluster, num_gpus
):
    """Eight jobs take turns on each node, and whenever one ends the next is there at once."""
    each_s = 100.0 if cluster == "1x4" else 50.0
    singles = [job(i, at=each_s * i, lasts=400 + i) for i in range(120)]
    gang = job("gang", num_gpus, at=3001, lasts=100)
    few = {"limit": "2", "pack": "off"}
    starts = first_starts([*singles, gang], cluster, 6000.0, pass_s="300", **few)
    assert 3301 <= starts["gang"] <= 3301 + 120
    passed = first_starts([*singles, gang], cluster, 6000.0, pass_s="100000", **few)
    assert passed["gang"] < 0


def held(num_gpus, loads, sizes=(4, 4, 4), *, strict=False, affinity=None):
    made = Servers(dict(enumerate(sizes)), affinity or {}, 2, strict=strict)
    for node, load in enumerate(loads):
        for _ in range(load):
            made.add(((node, 1),))
    made.hold(num_gpus)
    return made


def test_the_node_is_held_where_the_fewest_have_to_leave():
    assert held(4, (8, 7, 8)).held == {1}
    assert held(4, (8, 8, 8)).held == {0}
    assert held(3, (8, 8, 15), (4, 4, 8)).held == {2}
    assert held(4, (1, 1, 15), (2, 2, 8)).held == {2}


def test_as_many_nodes_are_held_as_a_gang_needs_that_is_larger_than_any():
    assert held(8, (8, 6, 7)).held == {1, 2}


def test_where_only_nodes_of_its_size_or_free_gpus_will_do_those_are_held():
    """On the node of its size four have to leave; on another one three, but only for free GPUs."""
    assert held(4, (6, 8, 8), strict=True, affinity={1: 4}).held == {1}
    assert held(4, (3, 8, 8), strict=True, affinity={1: 4}).held == {0}


def test_nobody_comes_to_a_node_that_is_held():
    made = held(4, (4, 2), (4, 4))
    assert made.held == {1}
    assert made.choose(1) == ((0, 1),)
    assert made.choose_free(2) is None
    assert made.choose(8) is None
    assert made.of_its_size(((0, 1),)) is None


def test_who_has_waited_is_let_in_before_those_who_came_later():
    """Both gangs wait; the node is held for the first, which then takes turns with the second."""
    singles = [job(i, at=100.0 * i, lasts=400 + i) for i in range(60)]
    gangs = [job("first", 4, at=1601, lasts=50), job("second", 4, at=1602, lasts=50)]
    starts = first_starts([*singles, *gangs], "1x4", 6000.0, limit="1", pass_s="300")
    assert 0 < starts["first"] < starts["second"] < 4000.0
