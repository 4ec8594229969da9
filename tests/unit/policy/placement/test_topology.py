import pytest

from rota.model.cluster import FreeGpus
from rota.policy.placement.topology import Topology


def masks(*bits: int) -> FreeGpus:
    free = FreeGpus()
    for node, mask in enumerate(bits):
        free.set_mask(node, mask)
    return free


def test_an_island_that_fits_comes_before_a_tighter_node_that_crosses_one(make_view):
    view = make_view("2x8:island=4", [2])
    # Node 0 has two free GPUs, one in each island; node 1 has three in one.
    found = Topology()(view, masks(0b0001_0001, 0b0111_0000), 0)
    assert found.parts == ((1, 0b0011_0000),)


def test_the_tightest_island_is_taken(make_view):
    view = make_view("1x8:island=4", [2])
    assert Topology()(view, masks(0b0011_1111), 0).parts == ((0, 0b0011_0000),)


def test_within_a_node_as_few_islands_as_can_be(make_view):
    view = make_view("1x8:island=2", [4])
    assert Topology()(view, masks(0b1101_1101), 0).parts == ((0, 0b1100_1100),)


def test_a_node_comes_before_two(make_view, shape, free_of):
    assert shape(Topology()(make_view("3x4", [3]), free_of(2, 4, 3), 0)) == {2: 3}


def test_a_rack_comes_before_fewer_nodes_elsewhere(make_view, shape, free_of):
    view = make_view("6x4:rack=3", [6])
    # Two nodes across racks would do; three nodes within the second rack cross no rack.
    assert shape(Topology()(view, free_of(4, 0, 0, 2, 2, 2), 0)) == {3: 2, 4: 2, 5: 2}


def test_of_racks_the_one_with_fewer_nodes_then_the_tighter(make_view, shape, free_of):
    view = make_view("6x4:rack=3", [6])
    assert shape(Topology()(view, free_of(2, 2, 2, 4, 2, 2), 0)) == {3: 4, 4: 2}
    assert shape(Topology()(view, free_of(4, 4, 4, 4, 4, 0), 0)) == {3: 4, 4: 2}


def test_what_fits_in_no_rack_takes_as_few_as_can_be(make_view, shape, free_of):
    view = make_view("6x4:rack=2", [12])
    found = shape(Topology()(view, free_of(4, 4, 1, 4, 4, 2), 0))
    assert sum(found.values()) == 12
    assert len({node // 2 for node in found}) == 2


def test_without_racks_and_islands_it_is_as_few_nodes_as_can_be(make_view, shape, free_of):
    assert shape(Topology()(make_view("3x4", [6]), free_of(4, 3, 2), 0)) == {0: 4, 2: 2}


def test_it_follows_when_nodes_change(make_view, shape, free_of):
    place = Topology()
    assert shape(place(make_view("2x4:rack=1", [6]), free_of(4, 4), 0)) == {0: 4, 1: 2}
    view = make_view("4x4:rack=2", [6])
    assert shape(place(view, free_of(4, 0, 4, 2), 0)) == {2: 4, 3: 2}


@pytest.mark.parametrize("count", [9, 100])
def test_too_few_free_gpus_are_none(make_view, free_of, count):
    assert Topology()(make_view("2x4:rack=1:island=2", [count]), free_of(4, 4), 0) is None
