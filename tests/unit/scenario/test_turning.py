"""At which cost of a restart another policy becomes the best."""

from math import inf

import pytest

from rota.scenario.turning import turning_point


def measured(calls, slopes):
    """Averages that grow with the cost: (at 0 s, for each second) by policy."""

    def measure(policies, restart_s):
        calls.append((tuple(policies), restart_s))
        return {each: slopes[each][0] + slopes[each][1] * restart_s for each in policies}

    return measure


def test_it_is_found_between_those_who_change_places():
    calls = []
    turn = turning_point([0, 1, 2], measured(calls, [(10.0, 5.0), (110.0, 1.0), (500.0, 0.9)]))
    assert (turn.cheap, turn.dear) == (0, 1)
    assert turn.at_s == pytest.approx(25.0, rel=0.1)
    assert {policies for policies, _ in calls[2:]} == {(0, 1)}


def test_one_that_is_best_at_both_ends_stays_so():
    assert turning_point([0, 1], measured([], [(1.0, 1.0), (2.0, 1.0)])) == (0, 0, None)


def test_one_that_does_not_finish_where_restarts_are_dear_is_not_best_there():
    turn = turning_point([0, 1], lambda policies, at_s: {0: 1.0 if at_s < 50 else inf, 1: 2.0})
    assert (turn.cheap, turn.dear) == (0, 1) and turn.at_s == pytest.approx(50.0, rel=0.1)


def test_nothing_is_told_of_policies_that_finish_nothing():
    assert turning_point([0, 1], lambda policies, restart_s: dict.fromkeys(policies, inf)) is None
