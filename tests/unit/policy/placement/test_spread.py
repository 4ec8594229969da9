from rota.model.cluster import FreeGpus
from rota.policy.placement.spread import spread


def test_a_gang_gets_as_many_nodes_as_it_has_gpus(free_of, shape):
    assert shape(spread(free_of(4, 4, 4, 4), 4)) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_the_nodes_with_the_most_free_gpus_come_first(free_of, shape):
    assert shape(spread(free_of(1, 3, 2, 3), 2)) == {1: 1, 3: 1}


def test_a_gang_larger_than_the_nodes_goes_round_again(free_of, shape):
    assert shape(spread(free_of(4, 4), 6)) == {0: 3, 1: 3}
    assert shape(spread(free_of(1, 4, 3), 6)) == {0: 1, 1: 3, 2: 2}


def test_everything_that_is_free_can_be_taken(free_of, shape):
    assert shape(spread(free_of(1, 0, 3), 4)) == {0: 1, 2: 3}


def test_too_few_free_gpus_are_none(free_of):
    assert spread(free_of(1, 1), 3) is None
    assert spread(FreeGpus(), 1) is None


def test_one_gpu_is_one_node(free_of, shape):
    assert shape(spread(free_of(1, 2), 1)) == {1: 1}
