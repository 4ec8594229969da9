"""The grace of a program is time in which its agent was there."""

from rota.live.agent.grace import LOOK_S, Grace


def test_a_grace_goes_on_by_the_clock_while_it_is_looked_at():
    grace, now_s = Grace(3.0, 100.0), 100.0
    for left_s in (3.0, 2.0, 1.0, 0.0):
        assert grace.left_s(now_s) == left_s
        now_s += LOOK_S


def test_time_for_which_the_agent_stood_still_is_not_counted():
    grace = Grace(60.0, 0.0)
    assert grace.left_s(1.0) == 59.0
    assert grace.left_s(71.0) == 58.0
    assert grace.left_s(72.0) == 57.0


def test_looks_that_come_more_often_than_they_must_count_as_well():
    grace = Grace(1.0, 0.0)
    looks = [grace.left_s(number / 10) for number in range(12)]
    assert looks[9] > 0 >= looks[10]


def test_a_rest_that_no_timer_can_wait_for_is_none():
    grace = Grace(1.0, 0.0)
    assert grace.left_s(1.0 - 1e-9) == 0.0
