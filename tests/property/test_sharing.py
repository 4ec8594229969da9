"""What must hold for any foreground, any background and any page."""

import math
from statistics import fmean

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rota.share.controllers import Aimd, SlowdownFeedback, StrictIdle
from rota.share.marks import (
    ALIVE,
    BACKWARD,
    FORWARD,
    GONE,
    LOAD,
    NOBODY,
    OPTIMISE,
    REDUCE,
    STOPPED,
    WAIT,
    Mark,
    Seen,
)
from rota.sim.tasklets import Foreground, Part, share

MS = 1e-3
LIMIT = 1.1
STEPS, SKIP = 160, 20

busy_ms = st.floats(0.05, 0.5)
PARTS = st.builds(
    lambda load, forward, wait, backward, gap, reduce, optimise: (
        Part(LOAD, 1, load * MS),
        Part(FORWARD, 8, forward * MS, gap * MS),
        Part(WAIT, 1, 0.0, wait * MS),
        Part(BACKWARD, 16, backward * MS, gap * MS),
        Part(REDUCE, 2, reduce * MS, reduce * MS),
        Part(OPTIMISE, 1, optimise * MS),
    ),
    busy_ms,
    busy_ms,
    st.sampled_from([0.0, 0.3, 3.0, 8.0]),
    busy_ms,
    st.sampled_from([0.0, 0.1]),
    busy_ms,
    busy_ms,
)
FOREGROUNDS = st.builds(
    lambda parts, noise: Foreground(parts, noise), PARTS, st.sampled_from([0.0, 0.02, 0.05])
)
PIECES = st.lists(
    st.sampled_from([0.1 * MS, 0.5 * MS, 1 * MS, 2 * MS, 5 * MS, 20 * MS]), min_size=1, max_size=5
)


@settings(max_examples=20, phases=[Phase.explicit, Phase.generate])
@given(FOREGROUNDS, PIECES, st.integers(0, 1000))
def test_mean_and_95th_percentile_of_the_slowdown_stay_within_the_limit(foreground, pieces, seed):
    """But for a piece of each kind, whose time is not known before it has run."""
    outcome = share(foreground, pieces, SlowdownFeedback(), steps=STEPS, seed=seed, skip=SKIP)
    unforeseen_s = sum(set(pieces))
    assert outcome.took_s - unforeseen_s <= LIMIT * outcome.alone_s
    # A step that is as long as a long one alone may be, times the limit, can't be told from it.
    assert outcome.p95 <= LIMIT * (1.005 + 2 * foreground.noise)


@settings(max_examples=8)
@given(FOREGROUNDS, PIECES, st.sampled_from([0.5, 0.7, 0.9]), st.integers(0, 1000))
def test_the_mean_stays_within_the_limit_beside_pieces_that_run_at_once(
    foreground, pieces, beside, seed
):
    controller = SlowdownFeedback()
    outcome = share(
        foreground, pieces, controller, steps=STEPS, seed=seed, skip=SKIP, beside=beside
    )
    assert outcome.took_s - sum(set(pieces)) / (1 - beside) <= LIMIT * outcome.alone_s


SLEEPY = (
    Part(LOAD, 1, 0.1 * MS),
    Part(FORWARD, 4, 0.2 * MS),
    Part(BACKWARD, 4, 0.25 * MS),
    Part(OPTIMISE, 1, 0.1 * MS, 10 * MS),
)
NOISY = st.builds(
    lambda varies: Foreground(SLEEPY, varies=varies, strays=0.02), st.sampled_from([0.2, 0.25, 0.3])
)
SHORT = st.sampled_from([(0.5 * MS, 0.7 * MS), (0.5 * MS,), (0.5 * MS, 1.5 * MS)])


def told_off(controller, outcome):
    """The part by which the slowdown that is told differs from the true one."""
    return controller.totals().slowdown.ratio / outcome.mean - 1


@settings(max_examples=3, phases=[Phase.explicit, Phase.generate], deadline=None)
@given(NOISY, SHORT, st.integers(0, 1000))
def test_what_noisy_steps_leave_idle_is_used_by_pieces_that_cost_little(foreground, pieces, seed):
    controller = SlowdownFeedback()
    outcome = share(foreground, pieces, controller, steps=2000, seed=seed, skip=100, beside=0.98)
    fair = share(foreground, pieces, None, steps=200, seed=seed, beside=0.98)
    assert outcome.harvest >= 0.6 * fair.harvest
    assert outcome.mean <= 1.01
    assert abs(told_off(controller, outcome)) <= 0.2  # its standard error is about 5 %


@settings(max_examples=3, phases=[Phase.explicit, Phase.generate], deadline=None)
@given(NOISY, SHORT, st.integers(0, 1000))
def test_beside_noisy_steps_pieces_that_cost_their_time_keep_the_limit(foreground, pieces, seed):
    controller = SlowdownFeedback()
    outcome = share(foreground, pieces, controller, steps=2000, seed=seed, skip=100)
    assert outcome.mean <= LIMIT * 1.01
    assert abs(told_off(controller, outcome)) <= 0.2


@pytest.mark.parametrize("beside", [0.0, 0.98])
def test_the_slowdown_beside_noisy_steps_is_told_without_bias(beside):
    off = []
    for seed in range(8):
        controller = SlowdownFeedback()
        foreground, pieces = Foreground(SLEEPY, varies=0.25, strays=0.02), (0.5 * MS, 0.7 * MS)
        outcome = share(
            foreground, pieces, controller, steps=1500, seed=seed, skip=100, beside=beside
        )
        off.append(told_off(controller, outcome))
    assert abs(fmean(off)) <= 0.03


numbers = st.one_of(
    st.floats(), st.sampled_from([0.0, -1.0, math.nan, math.inf, 1e300, 99.0, 100.0, 101.0])
)
MARKS = st.builds(
    Mark,
    st.integers(-1, 3),
    numbers,
    st.integers(-1, 3),
    st.integers(-1, 5),
    st.integers(-1, 9),
    numbers,
    st.tuples(*[numbers] * 8),
    st.tuples(*[numbers] * 8),
)
SEEN = st.builds(
    Seen, st.one_of(st.none(), MARKS), st.booleans(), st.sampled_from([ALIVE, STOPPED, GONE])
)
KINDS = st.sampled_from([SlowdownFeedback, StrictIdle, Aimd])


@given(KINDS, st.lists(st.tuples(SEEN, numbers, st.booleans()), max_size=30))
def test_no_page_makes_a_controller_fail_and_without_a_foreground_it_gives_pieces(kind, story):
    controller, now_s = kind(), 100.0
    for seen, busy_s, ends in story:
        now_s += 0.01
        verdict = controller.ask(seen, now_s)
        assert verdict.go or 0 < verdict.again_s <= 0.1
        if verdict.go:
            controller.began(now_s)
        if ends:
            controller.ended(now_s, busy_s)
    for _ in range(40):
        controller.ended(now_s)
    assert controller.ask(NOBODY, now_s).go
    assert controller.totals().busy_s >= 0


def waits_s(controller, seen_at, until_s):
    """The longest time without a piece, of background that has one of 1 ms every 20 ms."""
    now_s = last_s = 100.0
    longest_s = 0.0
    while now_s < until_s:
        verdict = controller.ask(seen_at(now_s), now_s)
        if verdict.go:
            controller.began(now_s)
            now_s += 0.001
            controller.ended(now_s)
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            now_s += 0.02
        else:
            now_s += max(verdict.again_s, 0.05)
    return max(longest_s, until_s - last_s)


def marked(now_s, *, epoch=0, steps=0, step_s=0.1, since_s=None):
    """A foreground that has computed in steps since 90 s."""
    done = (0.0, 0.0, steps * step_s, *[0.0] * 5)
    since_s = 90.0 + steps * step_s if since_s is None else since_s
    return Seen(Mark(7, 1.0, epoch, steps, FORWARD, since_s, done, done))


@settings(max_examples=18)
@given(KINDS.filter(lambda kind: kind is not StrictIdle), st.sampled_from(range(6)), st.data())
def test_a_background_is_never_stuck(kind, story, data):
    """Whatever the foreground's page does, a piece runs within a minute and a half."""
    every_s = data.draw(st.floats(0.05, 5.0))

    def seen_at(now_s):
        turn = int((now_s - 90.0) / every_s)
        if story == 0:  # relearns for ever
            return marked(now_s, epoch=turn, since_s=90.0 + turn * every_s)
        if story == 1:  # steps that never end
            return marked(now_s)
        if story == 2:  # torn for ever
            return Seen(torn=True)
        if story == 3:  # torn every other time
            return Seen(torn=True) if turn % 2 else marked(now_s, steps=turn, step_s=every_s)
        if story == 4:  # counts that go back
            return marked(now_s, steps=7 - turn % 8)
        return marked(now_s, steps=turn, step_s=every_s)  # as it should be

    assert waits_s(kind(), seen_at, 300.0) <= 90.0
