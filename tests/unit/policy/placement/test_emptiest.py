from rota.policy.placement.emptiest import emptiest


def test_the_emptiest_node_is_taken_first_and_then_the_next(free_of, shape):
    assert shape(emptiest(free_of(2, 4, 3), 6)) == {1: 4, 2: 2}


def test_of_nodes_as_empty_the_first_comes_first(free_of, shape):
    assert shape(emptiest(free_of(3, 4, 4), 2)) == {1: 2}


def test_too_few_free_gpus_are_none(free_of):
    assert emptiest(free_of(1, 1), 3) is None
