"""The figures of a training with a planted straggler, from the times of its steps."""

import pytest

from rota.experiment.elasticity_stragglers import PIECE_S, SLOW_FROM, STEPS, figures_of


def steps(factor, replaced_at, after=1.0):
    clean_s = 1.5 * PIECE_S
    slow_s = clean_s + (factor - 1) * PIECE_S
    slow = [slow_s] * (replaced_at - SLOW_FROM)
    return [clean_s] * SLOW_FROM + slow + [clean_s * after] * (STEPS - replaced_at)


def test_a_straggler_that_is_replaced_leaves_the_throughput_of_before():
    recovered, lasted = figures_of(4.0, steps(4.0, SLOW_FROM + 100))
    assert recovered.ours == pytest.approx(1.0)
    assert recovered.baseline == pytest.approx(1 / 3)
    assert lasted.ours == pytest.approx(100 * 4.5 * PIECE_S)
    assert recovered.ok


def test_one_that_stays_does_not_hold():
    recovered, _ = figures_of(2.0, steps(2.0, STEPS))
    assert recovered.ours == pytest.approx(0.6)
    assert not recovered.ok


def test_a_replacement_that_is_slower_than_the_others_does_not_hold():
    assert not figures_of(1.33, steps(1.33, 300, after=1.2))[0].ok
