"""The Gittins index on samples whose figures can be worked out by hand."""

import pytest

from rota.predict.gittins import Gittins

SIZES = (12, 4, 8)
TRIO = Gittins(SIZES)


@pytest.mark.parametrize(
    ("attained", "index"),
    [(0, 1 / 8), (1, 1 / 7), (2, 1 / 6), (3, 1 / 3), (4, 1 / 6), (7, 1 / 2), (8, 1 / 4), (11, 1)],
)
def test_the_best_grant_of_the_worked_example(attained, index):
    # Only a grant that ends at a size can be the best.
    grants = [size - attained for size in SIZES if size > attained]
    assert max(TRIO.index(attained, grant) for grant in grants) == pytest.approx(index)


@pytest.mark.parametrize(
    ("attained", "grant", "index"),
    [(0, 4, 1 / 12), (1, 4, 1 / 11), (2, 4, 1 / 10), (3, 4, 1 / 9), (4, 4, 1 / 8), (0, 8, 1 / 10)],
)
def test_a_grant_of_fixed_length_in_the_worked_example(attained, grant, index):
    assert TRIO.index(attained, grant) == pytest.approx(index)


def test_an_endless_grant_gives_one_over_the_mean_of_what_is_left():
    assert TRIO.index(6) == pytest.approx(1 / 4)


def test_a_job_larger_than_every_one_known_has_no_index():
    assert TRIO.index(12, 100) == 0
    assert TRIO.index(12) == 0
    assert Gittins(()).index(0) == 0


def test_a_grant_too_short_for_any_known_size_has_no_index():
    assert TRIO.index(0, 3.9) == 0
    assert TRIO.index(0, 4) > 0


def test_equal_sizes_are_counted_each():
    assert Gittins((5, 5, 5, 10)).index(0, 5) == pytest.approx(3 / 20)
    assert Gittins((5, 5, 5, 10)).index(0, 10) == pytest.approx(4 / 25)


def test_a_heavy_tail_makes_the_index_fall_with_progress():
    heavy = Gittins([1] * 50 + [10] * 5 + [1000] * 2)
    indexes = [heavy.index(attained, 10) for attained in (0, 1, 10)]
    assert indexes == sorted(indexes, reverse=True)


def test_sums_that_dwarf_what_is_left_do_not_spoil_it():
    huge = Gittins([1.0, 1e17, 1e17 + 64])
    assert huge.index(1e17, 1e3) == pytest.approx(1 / 64)
