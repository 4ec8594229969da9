"""The table of what is seen of a foreground, and the learning of its times."""

import math
from random import Random
from statistics import fmean

import pytest

from rota.share.marks import (
    BACKWARD,
    FORWARD,
    GONE,
    IDLE,
    LOAD,
    NONE,
    OTHER,
    REDUCE,
    STOPPED,
    WAIT,
    Mark,
    Seen,
)
from rota.share.watch import (
    LEARN_CREDIT_S,
    LEARN_SHARE,
    LEARN_STEPS,
    SILENT_S,
    SKIP_STEPS,
    TORN_S,
    Bench,
    Finished,
    LearningTime,
    Standing,
    Watch,
)

NOW_S = 1000.0
GOOD = Mark(7, 5.0, 0, 3, FORWARD, NOW_S - 0.01, (0.0, 1.0, 2.0, *NONE[3:]), NONE)
TORN = Seen(torn=True)


def standing(seen, now_s=NOW_S, usual_s=0.0):
    return Watch().look(seen, now_s, usual_s).standing


def test_a_foreground_in_its_step_is_known():
    look = Watch().look(Seen(GOOD), NOW_S)
    assert (look.standing, look.mark) == (Standing.KNOWN, GOOD)
    assert look.step_began_s == GOOD.since_s - 3.0


@pytest.mark.parametrize("seen", [Seen(), Seen(GOOD, process=GONE), TORN._replace(process=GONE)])
def test_nobody_and_the_dead_leave_the_device_free(seen):
    assert standing(seen) is Standing.FREE


@pytest.mark.parametrize(
    "seen", [Seen(GOOD, process=STOPPED), Seen(GOOD._replace(segment=IDLE, since_s=9.0))]
)
def test_the_stopped_and_the_suspended_yield(seen):
    assert standing(seen) is Standing.YIELDED


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        (WAIT, Standing.YIELDED),
        (REDUCE, Standing.YIELDED),
        (FORWARD, Standing.BLIND),
        (LOAD, Standing.BLIND),
        (OTHER, Standing.BLIND),
    ],
)
def test_silence_is_judged_by_the_segment_and_by_the_usual_step(segment, expected):
    silent = Seen(GOOD._replace(segment=segment, since_s=NOW_S - SILENT_S - 1, sums_s=NONE))
    assert standing(silent) is expected
    slow = Standing.BLIND if segment == OTHER else Standing.KNOWN
    assert standing(silent, usual_s=5.0) is slow


BAD = [
    GOOD._replace(since_s=math.nan),
    GOOD._replace(since_s=math.inf),
    GOOD._replace(since_s=-1.0),
    GOOD._replace(since_s=NOW_S + 20),
    GOOD._replace(started_s=math.nan),
    GOOD._replace(segment=8),
    GOOD._replace(segment=-1),
    GOOD._replace(steps=-1),
    GOOD._replace(epoch=-1),
    GOOD._replace(pid=0),
    GOOD._replace(sums_s=(math.nan,) * 8),
    GOOD._replace(sums_s=(-1.0,) * 8),
    GOOD._replace(sums_s=(NOW_S,) * 8),
    GOOD._replace(done_s=(9.0,) * 8),
]


@pytest.mark.parametrize("seen", [TORN, *map(Seen, BAD)])
def test_what_makes_no_sense_counts_as_the_last_good_mark_for_a_second(seen):
    assert standing(seen) is Standing.BLIND
    watch = Watch()
    watch.look(Seen(GOOD), NOW_S)
    assert watch.look(seen, NOW_S).standing is Standing.KNOWN
    assert watch.look(seen, NOW_S + TORN_S).standing is Standing.KNOWN
    assert watch.look(seen, NOW_S + TORN_S + 0.1).standing is Standing.BLIND
    assert watch.look(Seen(GOOD), NOW_S + TORN_S + 0.2).standing is Standing.KNOWN


@pytest.mark.parametrize(
    "other",
    [
        GOOD._replace(pid=8),
        GOOD._replace(started_s=6.0),
        GOOD._replace(epoch=1),
        GOOD._replace(steps=2),
        GOOD._replace(sums_s=(0.0, 0.5, 2.0, *NONE[3:])),
    ],
)
def test_another_life_and_times_that_go_back_are_learned_anew(other):
    watch = Watch()
    assert watch.look(Seen(GOOD), NOW_S).anew
    assert not watch.look(Seen(GOOD), NOW_S).anew
    look = watch.look(Seen(other), NOW_S)
    assert (look.anew, look.finished) == (True, None)


def test_finished_steps_are_told_with_what_they_took():
    watch = Watch()
    watch.look(Seen(GOOD), NOW_S)
    done = (0.0, 1.5, 2.5, *NONE[3:])
    later = GOOD._replace(steps=5, segment=LOAD, since_s=NOW_S + 1, sums_s=done, done_s=done)
    finished = watch.look(Seen(later), NOW_S + 1).finished
    assert finished == Finished(2, done, GOOD.since_s - 3.0, GOOD.steps)
    assert finished.step_s == 2.0


def steps(bench, count, step_s=0.01, alone=True):
    for _ in range(count):
        seconds = (0.0, 0.0, step_s / 4, 3 * step_s / 4, *NONE[4:])
        bench.note(Finished(1, seconds, 0.0, 0), alone=alone)


def test_a_bench_is_known_after_so_many_steps_alone():
    bench = Bench()
    steps(bench, 50, alone=False)
    steps(bench, SKIP_STEPS, 5.0)
    steps(bench, LEARN_STEPS - 1)
    assert not bench.known
    steps(bench, 1, 0.5)  # a stray
    assert bench.known
    assert bench.step_s == pytest.approx(0.01)
    assert bench.seconds[BACKWARD] == pytest.approx(0.0075)
    bench.renew()
    assert not bench.known


def test_a_bench_follows_a_foreground_that_changes():
    bench = Bench()
    steps(bench, SKIP_STEPS + LEARN_STEPS)
    steps(bench, 1, 1.0)  # a stray, which counts as two steps
    assert bench.step_s < 0.0114
    steps(bench, 30, 0.0101, alone=False)
    assert bench.step_s < 0.0108  # a background was beside shorter ones
    steps(bench, 200, 0.02)
    assert bench.step_s == pytest.approx(0.02, rel=0.05)
    steps(bench, 100, 0.01)
    assert bench.step_s == pytest.approx(0.01, rel=0.05)
    steps(bench, 50, 0.03, alone=False)
    assert bench.step_s == pytest.approx(0.01, rel=0.05)
    steps(bench, 100, 0.008, alone=False)
    assert bench.step_s == pytest.approx(0.008, rel=0.1)


def test_a_bench_is_the_mean_of_steps_that_vary():
    bench, draw = Bench(), Random(1)
    alone = [0.01 * draw.lognormvariate(0.0, 0.25) for _ in range(1000)]
    for number, step_s in enumerate(alone):
        steps(bench, 1, step_s)
        steps(bench, 3, alone[(7 * number + 3) % 1000], alone=False)
    assert bench.step_s == pytest.approx(fmean(alone), rel=0.03)
    assert sum(each > bench.high_s for each in alone) == pytest.approx(75, abs=40)


@pytest.mark.parametrize("longest_s", [0.0, 60.0])
def test_learning_holds_a_fifth_of_the_time_in_the_long_run(longest_s):
    learning, held_s, most_s = LearningTime(), 0.0, 0.0
    in_a_row_s = 0.0
    for number in range(100_000):
        holds = learning.may_hold(number * 0.1, longest_s)
        held_s += 0.1 * holds
        in_a_row_s = in_a_row_s + 0.1 if holds else 0.0
        most_s = max(most_s, in_a_row_s)
    assert held_s <= LEARN_SHARE * 10_000 + most_s + 1
    assert most_s <= max(LEARN_CREDIT_S, 12 * longest_s) + 0.2
    assert held_s > 0.1 * 10_000  # and learning has its chance again and again
