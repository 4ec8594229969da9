"""How fast jobs run beside others on one GPU."""

import pytest

from rota.predict.interference import Interference, Load


def test_alone_a_job_runs_at_its_own_speed():
    assert Interference().speed(Load("x", 1.0), []) == 1


def test_a_pair_is_known_from_both_sides():
    known = Interference({("x", "y"): (0.9, 0.4)})
    assert known.speed(Load("x"), [Load("y")]) == 0.9
    assert known.speed(Load("y"), [Load("x")]) == 0.4


def test_of_three_the_slow_downs_of_the_pairs_multiply():
    known = Interference({("x", "y"): (0.9, 0.4), ("x", "z"): (0.5, 0.5)})
    assert known.speed(Load("x"), [Load("y"), Load("z")]) == pytest.approx(0.45)


def test_where_a_pair_is_unknown_utilisation_says_what_is_left():
    known = Interference({("x", "y"): (0.9, 0.4)})
    assert known.speed(Load("x", 0.5), [Load("y", 0.5), Load("q", 1.0)]) == 0.5
    assert Interference().speed(Load("p", 0.3), [Load("q", 0.6)]) == 1
