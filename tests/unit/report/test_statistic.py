"""Averages, percentiles and intervals, by hand."""

import math

import pytest

from rota.report.statistic import Interval, interval, mean, median, percentile, student_t


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [
        (20, 95, 19),
        (21, 95, 20),
        (100, 99, 99),
        (101, 99, 100),
        (1, 99, 1),
        (2, 50, 1),
        (200, 1, 2),
        (3, 100, 3),
        (3, 0, 1),
        (10, 90, 9),
    ],
)
def test_percentiles_go_by_nearest_rank(count, percent, expected):
    assert percentile(range(1, count + 1), percent) == expected


@pytest.mark.parametrize(
    ("values", "expected"), [([7], 7), ([1, 9], 5), ([1, 2, 9], 2), ([1, 2, 4, 9], 3)]
)
def test_the_median_is_the_middle_or_the_mean_of_the_two_middle_values(values, expected):
    assert median(values) == expected


def test_nothing_has_no_average():
    assert mean([]) is median([]) is percentile([], 95) is interval([]) is interval([None]) is None


def test_an_interval_is_by_students_t():
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    # s = sqrt(2.5), and tables give t(0.975, 4) = 2.776.
    assert found.mean == 3.0
    assert found.runs == 5
    assert found.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=1e-3)


def test_one_value_has_no_interval_and_unknown_ones_do_not_count():
    assert interval([4.0]) == interval([None, 4.0]) == Interval(4.0, None, 1)
    assert interval([2.0, None, 2.0]) == Interval(2.0, 0.0, 2)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (9, 2.262), (29, 2.045)])
def test_the_quantiles_of_students_t_are_those_of_the_tables(freedom, expected):
    assert student_t(freedom) == pytest.approx(expected, abs=5e-4)
