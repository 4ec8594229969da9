"""Which jobs Gandiva moves so that a gang has room on one node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.policy.gandiva.fragments import clear_one, fit_elsewhere
from rota.policy.gandiva.servers import Servers


def anywhere(_row, _node):
    return True


def cluster(lodgers, sizes=(4, 4, 4)):
    """Servers with these (row, GPUs) jobs on each node."""
    made = Servers(dict(enumerate(sizes)), {}, 4, strict=False)
    for node, jobs in lodgers.items():
        for _, gpus in jobs:
            made.add(((node, gpus),))
    return made


def clear(num_gpus, lodgers, movable=None, may_go=anywhere, where=-1, sizes=(4, 4, 4)):
    may = {
        n: [j for j in jobs if movable is None or j[0] in movable] for n, jobs in lodgers.items()
    }
    return clear_one(cluster(lodgers, sizes), num_gpus, may, may_go, where)


@pytest.mark.parametrize(
    ("lodgers", "expected"),
    [
        # One move frees the second node, two the others.
        ({0: [(0, 1), (1, 1)], 1: [(2, 2)], 2: [(3, 1), (4, 1)]}, (1, {2: 0})),
        # Both can be freed by one move: the smaller job goes.
        ({0: [(0, 2)], 1: [(1, 1), (2, 3)], 2: [(3, 1)]}, (2, {3: 0})),
        # The tightest room takes it: the full node is left as it is.
        ({0: [(0, 1)], 1: [(1, 3)], 2: [(2, 2)]}, (0, {0: 1})),
    ],
)
def test_the_fewest_and_smallest_jobs_go_to_the_tightest_room(lodgers, expected):
    assert clear(4, lodgers) == expected


def test_only_as_many_go_as_are_in_the_way():
    lodgers = {0: [(0, 1), (1, 1), (2, 1)], 1: [(3, 1), (4, 2)], 2: [(5, 4)]}
    assert clear(2, lodgers, sizes=(4, 4, 4)) == (0, {0: 1})


def test_jobs_that_must_stay_are_left_alone():
    lodgers = {0: [(0, 1)], 1: [(1, 3)], 2: [(2, 2)]}
    assert clear(4, lodgers, movable={1, 2}) == (2, {2: 0})
    assert clear(4, lodgers, movable=set()) is None


def test_jobs_go_only_where_they_may():
    lodgers = {0: [(0, 1)], 1: [(1, 3)], 2: [(2, 2)]}
    assert clear(4, lodgers, may_go=lambda _row, node: node != 1) == (0, {0: 2})


def test_the_node_where_the_gang_has_its_state_costs_one_move_less():
    lodgers = {0: [(0, 1)], 1: [(1, 1)], 2: [(2, 4)]}
    assert clear(4, lodgers).node == 0
    assert clear(4, lodgers, where=1) == (1, {1: 0})


@pytest.mark.parametrize("num_gpus", [4, 5])
def test_nothing_is_moved_in_vain(num_gpus):
    """There are not so many free GPUs, or no node is so large."""
    assert clear(num_gpus, {0: [(0, 3)], 1: [(1, 3)], 2: [(2, 3)]}) is None


def test_of_jobs_that_are_enough_the_smallest_goes_else_the_largest():
    assert fit_elsewhere([(0, 1), (1, 2), (2, 4)], {1: 4}, anywhere, 2) == {1: 1}
    assert fit_elsewhere([(0, 1), (1, 2)], {1: 4}, anywhere, 3) == {1: 1, 0: 1}
    assert fit_elsewhere([(0, 2), (1, 2)], {1: 3}, anywhere, 4) is None


homes = st.dictionaries(st.integers(0, 3), st.lists(st.integers(1, 3), max_size=4), max_size=4)


@given(homes, st.integers(2, 4))
def test_a_node_that_is_cleared_has_room_and_nobody_else_has_less_than_he_needs(places, num_gpus):
    lodgers, row = {}, 0
    for node, sizes in places.items():
        for gpus in sizes:
            lodgers.setdefault(node, []).append((row, gpus))
            row += 1
    servers = cluster(lodgers, (4, 4, 4, 4))
    crowded = {n for n in servers.sizes if servers.load[n] > servers.sizes[n]}
    found = clear_one(servers, num_gpus, lodgers, anywhere)
    if found is None:
        return
    size = {r: gpus for jobs in lodgers.values() for r, gpus in jobs}
    for moved, node in found.goes.items():
        servers.remove(((found.node, size[moved]),))
        servers.add(((node, size[moved]),))
    assert servers.room(found.node) >= num_gpus
    assert {n for n in servers.sizes if servers.load[n] > servers.sizes[n]} <= crowded
