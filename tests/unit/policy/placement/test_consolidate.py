import pytest

from rota.model.cluster import FreeGpus
from rota.policy.placement.consolidate import consolidate


def free(*masks):
    gpus = FreeGpus()
    for node, mask in enumerate(masks):
        gpus.set_mask(node, mask)
    return gpus


@pytest.mark.parametrize(
    ("masks", "gang", "expected"),
    [
        pytest.param((0b1111, 0b0111, 0b0011), 2, [(2, (0, 1))], id="the tightest node"),
        pytest.param((0b0011, 0b0011), 2, [(0, (0, 1))], id="the lowest of equal nodes"),
        pytest.param((0b1010, 0b1111), 2, [(0, (1, 3))], id="whatever GPUs the node has left"),
        pytest.param((0b0111, 0b1111), 4, [(1, (0, 1, 2, 3))], id="one node if one suffices"),
        pytest.param(
            (0b0001, 0b1111, 0b1111),
            6,
            [(1, (0, 1, 2, 3)), (2, (0, 1))],
            id="few nodes, and the rest where one suffices",
        ),
        pytest.param(
            (0b1111, 0b0011, 0b1111),
            6,
            [(0, (0, 1, 2, 3)), (1, (0, 1))],
            id="the rest in the tightest hole",
        ),
        pytest.param((0b1, 0b1, 0b1), 3, [(0, (0,)), (1, (0,)), (2, (0,))], id="fragments"),
    ],
)
def test_a_gang_is_put_on(masks, gang, expected):
    gpus = free(*masks)
    before = gpus.masks.copy(), gpus.by_count.copy(), gpus.count
    allocation = consolidate(gpus, gang)
    assert allocation.gpus() == expected
    assert gpus.fits(allocation)
    assert (gpus.masks, gpus.by_count, gpus.count) == before, "placing must not take"


@pytest.mark.parametrize("masks", [(), (0,), (0b11, 0b1)], ids=["no node", "no GPU", "too few"])
def test_a_gang_that_does_not_fit_by_count_gets_nothing(masks):
    assert consolidate(free(*masks), 4) is None
