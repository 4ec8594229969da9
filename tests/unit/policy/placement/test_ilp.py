from rota.policy.placement.ilp import balance_load, lowest_peak


def test_the_least_loaded_nodes_are_used(make_view, free_of, shape):
    # Loads 0, 3 and 1: one GPU more on each of the first and the last is the most even.
    assert lowest_peak([4, 1, 3], [0, 3, 1], 2) == 2
    assert shape(balance_load(make_view("3x4", [3]), free_of(4, 1, 3), 0)) == {0: 2, 2: 1}


def test_a_gang_is_spread_over_idle_nodes(make_view, free_of, shape):
    assert shape(balance_load(make_view("4x4", [4]), free_of(4, 4, 4, 4), 0)) == dict.fromkeys(
        range(4), 1
    )


def test_a_node_that_is_not_used_does_not_count(make_view, free_of, shape):
    # The second node is full, and its load of 4 is no reason to pile up 4 on the first.
    assert lowest_peak([4, 4], [0, 0], 2) == 1
    assert shape(balance_load(make_view("3x4", [2]), free_of(4, 0, 4), 0)) == {0: 1, 2: 1}


def test_ties_go_to_the_lowest_numbered_nodes(make_view, free_of, shape):
    assert shape(balance_load(make_view("3x4", [4]), free_of(4, 4, 4), 0)) == {0: 2, 1: 2}


def test_too_few_free_gpus_are_none(make_view, free_of):
    assert balance_load(make_view("2x4", [4]), free_of(1, 1), 0) is None
