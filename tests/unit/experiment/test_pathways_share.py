"""Shares as the order of operations and calls tells them."""

from rota.experiment.pathways_share import CHAIN, WINDOW, Shares, judged

MANY = 100  # calls given out at once


def operations(turns, count):
    return (turns * count)[:count]


def test_an_order_by_weight_is_within_one_operation():
    assert judged("ab" * MANY + "01" * 200, (1, 1, 1, 1)).off == 0
    assert judged("ab" * MANY + "011" * 200, (1, 2, 1, 1)).off <= 1


def test_a_program_that_gets_less_is_seen():
    assert judged("ab" * MANY + "0001" * 200, (1, 1, 1, 1)).off == 25


def test_each_window_of_operations_is_judged():
    assert judged("ab" * MANY + operations("01", 150), (1, 1, 1, 1)).windows == 150 - WINDOW


def test_windows_do_not_reach_over_a_change_of_who_has_work():
    order = "a" * MANY + "0" * 150 + "b" * 4 + "01" * 4 * CHAIN + "0" * 150
    assert judged(order, (1, 1, 1, 1)).off == 0
    assert 0 < judged(order, (1, 1, 1, 1)).windows < 3 * 2 * CHAIN


def test_a_window_begins_with_the_first_operation_of_each():
    assert judged("ab" * MANY + "0" * 60 + "10" * 100, (1, 1, 1, 1)).off == 0


def test_a_program_that_is_late_to_give_out_its_next_call_is_not_judged():
    late = "a" * MANY + ("b" + "01" * CHAIN + "0" * CHAIN) * 8
    assert judged(late, (1, 1, 1, 1)) == Shares(0.0, 0)
    early = "a" * MANY + "b" + ("b" + "01" * CHAIN + "0" * CHAIN) * 8
    assert judged(early, (1, 1, 1, 1)).off > 10


def test_nothing_is_judged_of_a_program_alone():
    assert judged("a" * MANY + "0" * 400, (1, 1, 1, 1)) == Shares(0.0, 0)
