import pytest

from rota.errors import ClusterSpecError
from rota.model.allocation import Allocation, indices, on_node
from rota.model.cluster import FreeGpus, parse_cluster


def test_a_cluster_is_written_as_nodes_times_gpus():
    nodes = parse_cluster("2x4, 1x8")
    assert [(node.name, node.num_gpus) for node in nodes] == [
        ("node0", 4),
        ("node1", 4),
        ("node2", 8),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "x4",
        "4x",
        "0x4",
        "4x0",
        "-1x4",
        "4x4x4",
        "2x4,",
        "²x4",
        "1x1025",
        "99999999x1",
        "axb",
    ],
)
def test_a_malformed_cluster_is_refused_with_an_example_or_the_limits(text):
    with pytest.raises(ClusterSpecError, match=r"15x4|work"):
        parse_cluster(text)


def test_taking_and_giving_back_gpus_leaves_all_of_them_free():
    free = FreeGpus()
    for node in range(3):
        free.set_mask(node, 0b1111)
    before = free.masks.copy(), free.by_count.copy(), free.count
    wide = Allocation(((0, 0b1111), (2, 0b0011)))
    free.take(wide)
    assert free.count == 6
    assert not free.fits(on_node(2, 0b0001))
    assert free.fits(on_node(2, 0b1100))
    free.give(wide)
    # by_count[0] may have grown bits and lost them again; nothing else may differ.
    assert (free.masks, free.by_count, free.count) == before


def test_nodes_that_join_later_are_counted_among_those_that_are_there():
    free = FreeGpus()
    for node in range(70):
        free.set_mask(node, 0b11)
    free.take(on_node(3, 0b01))
    free.set_mask(70, 0b1111)
    free.set_mask(3, 0)
    assert free.by_count[2] == (1 << 70) - 1 - (1 << 3)
    assert free.by_count[4] == 1 << 70
    assert free.by_count[0] == 1 << 3
    assert free.count == 2 * 69 + 4


def test_a_copy_of_the_free_gpus_changes_on_its_own():
    free = FreeGpus()
    free.set_mask(0, 0b11)
    free.copy().take(on_node(0, 0b01))
    assert free.masks == [0b11]
    assert free.count == 2


def test_equal_allocations_on_one_node_are_one_object():
    assert on_node(3, 0b101) is on_node(3, 0b101)
    assert on_node(3, 0b101) == Allocation(((3, 0b101),))
    assert hash(on_node(3, 0b101)) == hash(Allocation(((3, 0b101),)))


def test_an_allocation_knows_its_gpus_and_nodes():
    allocation = Allocation(((1, 0b1010), (4, 0b1)))
    assert allocation.num_gpus == 3
    assert allocation.gpus() == [(1, (1, 3)), (4, (0,))]
    assert allocation.nodes() == (1, 4)
    assert indices(0) == ()


def test_a_node_named_twice_does_not_fit():
    free = FreeGpus()
    free.set_mask(0, 0b11)
    twice = Allocation(((0, 0b01), (0, 0b01)))
    assert not free.fits(twice)
    assert not free.take(twice)
    assert (free.masks, free.count) == ([0b11], 2)


def test_nodes_are_numbered_from_zero():
    with pytest.raises(ValueError, match="from 0"):
        Allocation(((-1, 0b1),))


def test_a_cluster_tells_the_cores_and_the_memory_of_its_nodes():
    here, there = parse_cluster("1x8:v100:cpus=24:mem=500,1x4")
    assert (here.gpu_type, here.millicores, here.host_memory_gb) == ("v100", 24_000, 500.0)
    assert (there.millicores, there.host_memory_gb) == (0, 0.0)


@pytest.mark.parametrize("trait", ["cpus=0", "cpus=2.5", "cpus=-1", "cpus=", "cpus", "mem=1e3"])
def test_cores_and_memory_that_are_no_whole_number_are_refused_with_an_example(trait):
    with pytest.raises(ClusterSpecError, match=rf"'{trait}' in '1x8:a:{trait}' .*cpus=24:mem=500"):
        parse_cluster(f"1x8:a:{trait}")
