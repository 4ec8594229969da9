"""The rules by which controllers give out pieces, one mark at a time."""

from random import Random

import pytest

from rota.share.controllers import (
    ALONE_DEPTH,
    LATEST_LOOK_S,
    RARE,
    Aimd,
    SlowdownFeedback,
    StrictIdle,
)
from rota.share.marks import (
    BACKWARD,
    FORWARD,
    IDLE,
    LOAD,
    NOBODY,
    NONE,
    OPTIMISE,
    OTHER,
    REDUCE,
    STOPPED,
    WAIT,
    Mark,
    Seen,
)
from rota.share.slowdown import OFTEN
from rota.share.watch import LEARN_STEPS, SKIP_STEPS

EVERY = [SlowdownFeedback, StrictIdle, Aimd]
USUAL_S = {LOAD: 0.001, FORWARD: 0.03, WAIT: 0.01, BACKWARD: 0.05, REDUCE: 0.005, OPTIMISE: 0.004}
ORDER = (LOAD, FORWARD, WAIT, BACKWARD, REDUCE, OPTIMISE)
LEARN = SKIP_STEPS + LEARN_STEPS


class Training:
    """Marks of a foreground whose steps take 0.1 s, made one by one."""

    def __init__(self):
        self.now_s = 100.0
        self.segment, self.since_s = LOAD, self.now_s
        self.sums, self.done, self.steps, self.epoch = list(NONE), NONE, 0, 0

    def seen(self):
        place = (7, 1.0, self.epoch, self.steps, self.segment, self.since_s)
        return Seen(Mark(*place, tuple(self.sums), self.done))

    def enter(self, segment):
        self.sums[self.segment] += self.now_s - self.since_s
        self.segment, self.since_s = segment, self.now_s

    def step(self, factor=1.0, stop=None, start=LOAD, forward=1.0):
        """Work through a step, or from its segment ``start`` on, or up to the segment ``stop``."""
        for segment in ORDER[ORDER.index(start) :]:
            self.enter(segment)
            if segment == stop:
                return self
            self.now_s += factor * USUAL_S[segment] * (forward if segment == FORWARD else 1.0)
        self.enter(LOAD)
        self.steps, self.done = self.steps + 1, tuple(self.sums)
        return self


def learned(controller, training):
    for _ in range(LEARN):
        assert not controller.ask(training.seen(), training.now_s).go
        training.step()
    return controller


def run(controller, training, seconds, piece=0):
    """A piece runs while the foreground goes on."""
    controller.began(training.now_s, piece)
    controller.ended(training.now_s + seconds, seconds)


@pytest.mark.parametrize(("limit", "pause_s"), [(1.5, 0.25), (1.0, 125.0), (float("nan"), 1.25)])
def test_the_limit_is_that_of_the_present_foreground(limit, pause_s):
    """Beside one that tells nothing of its steps; a limit that is none makes the page senseless."""
    controller = SlowdownFeedback()
    mute = Seen(Training().seen().mark._replace(segment=OTHER, limit=limit))
    assert controller.ask(mute, 100.0).go
    controller.began(100.0)
    controller.ended(100.1, 0.1)
    assert not controller.ask(mute, 100.1 + 0.99 * pause_s).go
    assert controller.ask(mute, 100.1 + 1.01 * pause_s).go


@pytest.mark.parametrize("kind", EVERY)
def test_four_pieces_are_outstanding_alone_and_one_beside_a_foreground(kind):
    controller = kind()
    for number in range(ALONE_DEPTH):
        assert controller.ask(NOBODY, number).go
        controller.began(number)
    assert not controller.ask(NOBODY, 9.0).go
    controller.ended(9.0)
    assert controller.ask(NOBODY, 9.0).go
    yielded = Seen(Training().seen().mark._replace(segment=IDLE))
    assert not controller.ask(yielded, 200.0).go
    for _ in range(ALONE_DEPTH - 1):
        controller.ended(200.0)
    assert controller.ask(yielded, 200.0).go
    assert controller.ask(yielded._replace(process=STOPPED), 200.0).go
    controller.began(200.0)
    assert not controller.ask(yielded, 200.0).go


@pytest.mark.parametrize("kind", EVERY)
def test_beside_a_foreground_of_which_nothing_is_known_pieces_trickle(kind):
    controller, blind = kind(), Seen(torn=True)
    assert controller.ask(blind, 10.0).go
    controller.began(10.0)
    controller.ended(10.1)
    verdict = controller.ask(blind, 10.1)
    assert not verdict.go
    assert 0 < verdict.again_s <= LATEST_LOOK_S
    assert not controller.ask(blind, 11.3).go  # the limit leaves a tenth, of which 0.8 is used
    assert controller.ask(blind, 11.4).go


@pytest.mark.parametrize("segment", range(8))
def test_strict_idle_gives_pieces_outside_of_segments_alone(segment):
    mark = Training().seen().mark._replace(segment=segment)
    assert StrictIdle().ask(Seen(mark), 100.0).go == (segment in (IDLE, WAIT, OTHER))
    on_gpu = StrictIdle(waits=frozenset({WAIT, LOAD}))
    assert on_gpu.ask(Seen(mark), 100.0).go == (segment in (IDLE, WAIT, OTHER, LOAD))


def test_nothing_runs_while_times_are_learned_and_anew_in_each_epoch():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    training.step(stop=FORWARD)
    assert controller.ask(training.seen(), training.now_s).go
    training.epoch = 1
    learned(controller, training)


def test_short_pieces_run_in_any_segment_but_the_reduction():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    for segment in (LOAD, FORWARD, WAIT, BACKWARD, OPTIMISE, REDUCE):
        training.step(stop=segment)
        verdict = controller.ask(training.seen(), training.now_s)
        assert verdict.go == (segment != REDUCE), segment
        assert segment != REDUCE or "reduces" in verdict.why


def test_a_reduction_that_lasts_much_longer_than_usual_is_a_wait():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    training.step(stop=REDUCE)
    assert not controller.ask(training.seen(), training.now_s + 0.005).go
    assert controller.ask(training.seen(), training.now_s + 0.05).go


def test_a_step_pays_for_pieces_only_what_the_limit_leaves():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    training.step(stop=FORWARD)
    launched = 0
    while controller.ask(training.seen(), training.now_s).go:
        run(controller, training, 0.001)
        launched += 1
    assert launched == 8  # 0.8 of a tenth of 0.1 s


def test_a_wait_is_given_to_what_fits_into_it():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    training.step(stop=FORWARD)
    for piece, seconds in ((1, 0.001), (2, 0.03)):  # what they take becomes known
        controller.ask(NOBODY, training.now_s)
        run(controller, training, seconds, piece)
    learned(controller, training.step(start=FORWARD))
    training.step(stop=WAIT)
    for _ in range(7):  # it has 10 ms, of which 8 are counted on
        assert controller.ask(training.seen(), training.now_s, piece=1).go
        assert not controller.ask(training.seen(), training.now_s, piece=2).go
        run(controller, training, 0.001, piece=1)
        training.now_s += 0.001


@pytest.mark.parametrize(("others", "least", "most"), [(True, 12, 32), (False, 2, 4)])
def test_a_slowed_segment_is_left_alone_at_once_and_given_back_slowly(others, least, most):
    """Sooner where steps pass without pieces, in ``others`` of their segments."""
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    training.step(stop=FORWARD)
    assert controller.ask(training.seen(), training.now_s).go
    run(controller, training, 0.001)
    training.step(start=FORWARD, forward=2.0)
    held = 0
    while not (verdict := controller.ask(training.step(stop=FORWARD).seen(), training.now_s)).go:
        assert "slowed" in verdict.why or "alone" in verdict.why
        training.step(start=FORWARD, stop=BACKWARD)
        if others and controller.ask(training.seen(), training.now_s).go:
            run(controller, training, 0.001)
        training.step(start=BACKWARD)
        held += 1
    assert least <= held <= most


def test_steps_that_are_long_by_themselves_do_not_stop_pieces():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    draw, launched = Random(1), []
    for _ in range(600):
        training.step(stop=FORWARD)
        launched.append(0)
        while controller.ask(training.seen(), training.now_s).go and launched[-1] < 20:
            run(controller, training, 0.001)
            launched[-1] += 1
        training.step(draw.lognormvariate(0.0, 0.25), start=FORWARD)
    assert sum(launched[300:]) / 300 > 0.7 * 20
    told = controller.totals().slowdown
    assert told.low < 1.0 < told.high < 1.2


def test_pieces_that_cost_their_full_price_all_at_once_are_held_at_once():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    launched = []
    for number in range(400):
        training.step(stop=FORWARD)
        launched.append(0)
        while controller.ask(training.seen(), training.now_s).go and launched[-1] < 40:
            run(controller, training, 0.001)
            launched[-1] += 1
        training.now_s += 0.001 * launched[-1] * (number >= 300)
        training.step(start=FORWARD)
    assert sum(launched[200:300]) / 100 > 30
    assert sum(each > 10 for each in launched[300:310]) <= 2
    assert sum(launched[300:]) / 100 < 10


def test_what_a_long_piece_took_is_paid_back_before_the_next():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    training.step(stop=FORWARD)
    assert controller.ask(training.seen(), training.now_s).go
    run(controller, training, 0.05)
    training.now_s += 0.05
    waited = 0
    training.step(start=FORWARD)
    while not controller.ask(training.step(stop=FORWARD).seen(), training.now_s).go:
        training.step(start=FORWARD)
        waited += 1
        assert waited < 1000
    assert waited * 0.008 >= 0.05 - 0.01
    assert waited >= RARE / 2


def test_steps_of_the_foreground_alone_are_compared_with_their_neighbours():
    """Each step takes a fifth longer if a piece ran in it."""
    controller, training = SlowdownFeedback(), Training()
    controller._footing.limit = 1.1
    learned(controller, training)
    alone = 0
    for _ in range(5 * OFTEN + 2):
        training.step(stop=FORWARD)
        verdict = controller.ask(training.seen(), training.now_s)
        if "compare" not in verdict.why:
            controller.began(training.now_s)
            controller.ended(training.now_s, 0.0005)
        alone += "compare" in verdict.why
        training.step(1.0 if "compare" in verdict.why else 1.2, start=FORWARD)
    totals = controller.totals()
    assert alone == 5
    assert totals.slowdown == pytest.approx((1.198, 1.198, 1.198, 5), abs=0.005)
    assert (totals.pieces, totals.busy_s) == (5 * OFTEN - 3, pytest.approx(0.0005 * 37))


def test_where_too_few_steps_were_compared_no_slowdown_is_told():
    controller, training = SlowdownFeedback(), Training()
    learned(controller, training)
    for _ in range(4 * OFTEN):
        controller.ask(training.step().seen(), training.now_s)
    assert controller.totals().slowdown is None
    assert controller.totals().steps == 4 * OFTEN + 1


def test_the_rate_of_aimd_grows_alone_and_breaks_down_beside_a_slowed_foreground():
    controller, training = Aimd(), Training()
    learned(controller, training)
    for _ in range(600):
        training.step()
        controller.ask(training.seen(), training.now_s)
    high = controller._rate
    assert high > 100_000
    for _ in range(8):
        training.step(1.2)
        controller.ask(training.seen(), training.now_s)
    assert controller._rate < high / 5
