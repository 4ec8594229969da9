from rota.policy.placement.strict import consolidate_strictly


def test_a_gang_that_would_be_scattered_waits(make_view, free_of):
    assert consolidate_strictly(make_view("2x4", [4]), free_of(3, 3), 0) is None


def test_a_gang_that_fits_on_one_node_gets_it(make_view, free_of, shape):
    assert shape(consolidate_strictly(make_view("2x4", [4]), free_of(3, 4), 0)) == {1: 4}


def test_a_gang_larger_than_a_node_asks_for_as_few_as_can_be(make_view, free_of, shape):
    view = make_view("3x4", [6])
    assert shape(consolidate_strictly(view, free_of(4, 2, 1), 0)) == {0: 4, 1: 2}
    assert consolidate_strictly(view, free_of(3, 2, 1), 0) is None


def test_too_few_free_gpus_are_none(make_view, free_of):
    assert consolidate_strictly(make_view("2x4", [4]), free_of(1, 1), 0) is None
