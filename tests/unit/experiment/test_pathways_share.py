"""Shares as the order of operations tells them."""

from rota.experiment.pathways_share import furthest_off


def test_an_order_by_weight_is_within_one_operation():
    assert furthest_off("ab" + "01" * 200, (1, 1, 1, 1)) == 0
    assert furthest_off("ab" + "011" * 200, (1, 2, 1, 1)) <= 1


def test_a_program_that_gets_less_is_seen():
    assert furthest_off("ab" + "0001" * 200, (1, 1, 1, 1)) == 25


def test_windows_do_not_reach_over_a_change_of_who_has_work():
    alone, both = "0" * 150, "01" * 100
    assert furthest_off("a" + alone + "b" + both + "B" + "1" + alone, (1, 1, 1, 1)) == 0


def test_a_window_begins_with_the_first_operation_of_each():
    assert furthest_off("ab" + "0" * 60 + "10" * 100, (1, 1, 1, 1)) == 0
