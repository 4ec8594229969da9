"""The slowdown of a foreground's steps by paired segments, on a machine that is made of numbers."""

from random import Random

import pytest

from rota.policy.fill.trial import ENOUGH_PAIRS
from rota.share.marks import FORWARD, NONE
from rota.share.slowdown import LEAST_PAIRS, MOST_PAIRS, OFTEN, SELDOM, PairedSegments, _student
from rota.share.watch import Finished
from rota.sim import fills


class Machine:
    """Steps of ``step_s`` that take ``factor`` times as long unless no piece may run in them.

    Each is longer than the one before by ``drift``, and varies by a log-normal factor.
    """

    def __init__(self, *, factor=1.0, step_s=0.1, drift=0.0, varies=0.0, seed=0, limit=1.1):
        self.paired, self.draw = PairedSegments(), Random(seed)
        self.factor, self.step_s, self.drift, self.varies = factor, step_s, drift, varies
        self.limit, self.piece_s = limit, 0.0005
        self.first = 0
        self.shut = []  # whether each step was without pieces

    def works(self, steps=1, at_once=1, alone=None):
        for _ in range(steps):
            seconds = 0.0
            for step in range(self.first, self.first + at_once):
                shut = self.paired.is_shut(step)
                self.shut.append(shut)
                varied = self.draw.lognormvariate(0.0, self.varies)
                seconds += self.step_s * varied * (1.0 if shut else self.factor)
                self.step_s *= 1 + self.drift
            each = (*NONE[:FORWARD], seconds, *NONE[FORWARD + 1 :])
            self.paired.note(
                Finished(at_once, each, 0.0, self.first),
                alone=self.shut[-1] if alone is None else alone,
                step_s=0.1,
                piece_s=self.piece_s,
                limit=self.limit,
            )
            self.first += at_once
        return self.paired.told

    def until(self, pairs):
        while self.paired.told is None or self.paired.told.pairs < pairs:
            self.works()
        return self.paired.told


def test_too_few_pairs_tell_nothing():
    machine = Machine(factor=1.35)
    assert machine.works(OFTEN * (LEAST_PAIRS - 1) + OFTEN) is None
    assert machine.works(2).pairs == LEAST_PAIRS


@pytest.mark.parametrize("drift", [0.02, -0.02])
def test_a_machine_that_drifts_is_no_slowdown(drift):
    """Its steps are some two thousand times as long, or as short, at the end."""
    told = Machine(drift=drift).until(12)
    assert (told.ratio, told.low, told.high) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("drift", [0.0, 0.02, -0.02])
def test_a_true_slowdown_is_told_on_any_machine(drift):
    assert Machine(factor=1.35, drift=drift).until(12)[:3] == pytest.approx((1.35,) * 3)


def test_a_machine_that_becomes_slower_all_at_once_is_a_slowdown_in_one_pair_at_most():
    machine = Machine(varies=0.03)
    machine.until(8)
    machine.step_s *= 1.35
    told = machine.until(16)
    assert told.low < 1.0 < told.high < 1.1


def test_noisy_steps_are_told_with_a_wide_interval():
    quiet = Machine(factor=1.35, varies=0.02).until(MOST_PAIRS)
    noisy = Machine(factor=1.35, varies=0.3, seed=1).until(MOST_PAIRS)
    for told, width in ((quiet, (1.005, 1.03)), (noisy, (1.15, 1.5))):
        assert told.low < 1.35 < told.high
        assert width[0] < told.high / told.low < width[1]


def test_one_stray_neither_tells_a_slowdown_nor_hides_one():
    machine = Machine(varies=0.02)
    machine.until(LEAST_PAIRS)
    before_s, machine.step_s = machine.step_s, 1e6
    machine.works()
    machine.step_s = before_s
    told = machine.until(MOST_PAIRS)
    assert told.low < 1.0 < told.high < 1.2


def test_a_slowdown_that_comes_later_is_told_within_some_pairs():
    machine = Machine(varies=0.02)
    assert machine.until(MOST_PAIRS).high < 1.1
    machine.factor, before = 1.35, machine.first
    while machine.works().low <= 1.1:
        pass
    assert machine.first - before < 24 * OFTEN


def test_steps_without_pieces_are_rare_once_it_is_known_on_which_side_the_limit_lies():
    for factor in (1.0, 1.35):
        machine = Machine(factor=factor, varies=0.02)
        machine.works(64 * SELDOM)
        assert sum(machine.shut[: 5 * OFTEN]) == 5
        assert sum(machine.shut[-32 * SELDOM :]) == 32


def test_what_can_not_be_decided_is_measured_often_for_a_while_alone():
    machine = Machine(factor=1.1, varies=0.02)
    machine.works(OFTEN * MOST_PAIRS + 100 * SELDOM)
    assert sum(machine.shut[: OFTEN * MOST_PAIRS]) == MOST_PAIRS
    assert sum(machine.shut[-10 * SELDOM :]) == 10


def test_a_segment_is_as_long_as_many_pieces_and_steps_across_its_ends_do_not_count():
    machine = Machine(factor=1.35)
    machine.piece_s = 0.08  # so that it is 0.4 s at least: of four steps
    machine.works(5 * OFTEN * 4 + 8)
    assert sum(machine.shut) == 5 * 4
    assert machine.paired.told.ratio == pytest.approx(1.35)
    one, other = Machine(factor=1.35), Machine(factor=1.35)
    one.works(50 * OFTEN, at_once=3)  # looks that are further apart than segments are long
    other.works(50 * OFTEN, alone=False)  # pieces that reach into steps without
    assert one.paired.told is other.paired.told is None


def test_another_epoch_forgets_what_was_told():
    machine = Machine(factor=1.35)
    machine.until(8)
    machine.paired.renew()
    assert machine.paired.told is None
    machine.first, machine.factor = 0, 1.0
    assert machine.until(LEAST_PAIRS).ratio == pytest.approx(1.0)


def test_numbers_beyond_all_sense_are_no_reason_to_fail():
    machine = Machine(limit=1.7e308)
    for step_s in (1e-300, 1e300) * 200:
        machine.step_s = step_s
        machine.works()
    machine.step_s = 0.0
    machine.works(4 * SELDOM)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(4, 2.7764), (5, 2.5706), (10, 2.2281), (31, 2.0395)]
)
def test_quantiles_are_those_of_tables(freedom, quantile):
    assert _student(freedom) == pytest.approx(quantile, rel=0.003)


def test_a_trial_ends_with_as_many_pairs_as_are_measured():
    assert ENOUGH_PAIRS == fills.PAIRS == MOST_PAIRS
