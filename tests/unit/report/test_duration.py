"""Lengths of time in words, and round values on axes."""

import pytest

from rota.report.duration import linear_ticks, plain, ratio_ticks, time_ticks, unit_for, written


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0015, "0.0015 s"),
        (42.5, "42.5 s"),
        (59.7, "1 min"),
        (90, "1 min 30 s"),
        (3599.9, "1 h"),
        (12_000, "3 h 20 min"),
        (86_399, "1 d"),
        (90_000, "1 d 1 h"),
        (86_400 * 1200.0, "1,200 d"),
    ],
)
def test_a_time_is_written_in_its_two_largest_units(seconds, text):
    assert written(seconds) == text


@pytest.mark.parametrize(
    ("longest_s", "name"),
    [(0, "seconds"), (170, "seconds"), (1020, "minutes"), (11_000, "hours"), (300_000, "days")],
)
def test_the_unit_is_one_of_which_there_are_several(longest_s, name):
    assert unit_for(longest_s).name == name


def test_a_short_logarithmic_axis_has_several_ticks_and_a_long_one_few():
    assert [written(tick) for tick in time_ticks(40, 500)] == [
        *("30 s", "1 min", "2 min", "5 min", "10 min"),
    ]
    assert [written(tick) for tick in time_ticks(3, 1_000_000)] == [
        *("1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d", "10 d", "100 d"),
    ]


def test_ratios_begin_at_one_and_end_above_the_largest():
    assert ratio_ticks(1.0) == [1]
    assert ratio_ticks(3.0) == [1, 2, 5]
    assert ratio_ticks(63.0) == [1, 2, 5, 10, 20, 50, 100]
    assert ratio_ticks(63_000.0) == [1, 10, 100, 1000, 10_000, 100_000]


def test_linear_ticks_are_whole_units():
    minutes = unit_for(1020)
    assert [plain(tick / 60) for tick in linear_ticks(1020, minutes)] == ["0", "5", "10", "15"]
    assert linear_ticks(0, unit_for(0))[0] == 0
