from math import sqrt

import pytest

from rota.policy.gavel.shares import (
    Clock,
    Gang,
    equal_split,
    fastest_shares,
    least_shares,
    timely_shares,
)

ONE = Gang(1, 1.0, (1.0,))


def close(value):
    return pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("find", [least_shares, fastest_shares])
class TestAlikeGpus:
    def test_equal_jobs_share_one_gpu_equally(self, find):
        assert find([ONE] * 4, [1]) == [close((0.25,))] * 4

    def test_weights_share_one_gpu_in_their_proportion(self, find):
        gangs = [Gang(1, 1.0, (1.0,)), Gang(1, 3.0, (1.0,))]
        assert find(gangs, [1]) == [close((0.25,)), close((0.75,))]

    def test_a_gang_of_four_gets_a_quarter_of_the_time_of_a_single(self, find):
        gangs = [Gang(4, 1.0, (1.0,)), *[ONE] * 7]
        shares = find(gangs, [4])
        assert shares == [close((1 / 8,)), *[close((1 / 2,))] * 7]

    def test_no_job_gets_more_than_all_of_its_time(self, find):
        assert find([ONE, ONE], [8]) == [close((1.0,))] * 2


def test_what_a_single_can_not_use_goes_to_the_gang():
    assert least_shares([ONE, Gang(4, 1.0, (1.0,))], [4]) == [(1.0,), (0.75,)]


def test_the_least_share_goes_over_types_by_their_gpus():
    gang = Gang(1, 1.0, (1.0, 1.0))
    assert least_shares([gang] * 8, [1, 3]) == [close((0.125, 0.375))] * 8


def test_of_shares_as_fair_those_that_hand_out_the_least_gpu_time_are_taken():
    # The gang can have no more than all four GPUs for all the time; the single needs no more than
    # as much, relative to its size.
    slow, fast = fastest_shares([Gang(4, 4.0, (1.0,)), ONE], [5])
    assert slow == close((1.0,))
    assert fast == close((1.0,))
    assert fastest_shares([Gang(4, 8.0, (1.0,)), ONE], [5])[1] == close((0.5,))


def test_two_jobs_on_two_types_get_the_shares_worked_out_by_hand():
    # One V100, two K80. Relative to an even spread over the three GPUs, A gets 0.75 + 0.75 x with
    # x of its time on the V100, and B 2 - 1.5 x with the rest of it: equal at x = 5/9.
    a, b = Gang(1, 1.0, (1.0, 0.5)), Gang(1, 1.0, (1.0, 0.25))
    assert fastest_shares([a, b], [1, 2]) == [close((5 / 9, 4 / 9)), close((4 / 9, 5 / 9))]


def test_the_unit_of_a_jobs_speeds_does_not_matter():
    a, b = Gang(1, 1.0, (1.0, 0.5)), Gang(1, 1.0, (100.0, 25.0))
    assert fastest_shares([a, b], [1, 2])[1] == close((4 / 9, 5 / 9))


@pytest.mark.parametrize("find", [least_shares, fastest_shares])
def test_a_job_gets_no_share_of_a_type_on_which_it_can_not_run(find):
    gangs = [Gang(1, 1.0, (1.0, 0.0)), Gang(1, 1.0, (1.0, 1.0))]
    shares = find(gangs, [1, 1])
    assert shares[0][1] == 0.0
    assert shares[0][0] > 0


def test_a_gang_larger_than_a_type_gets_no_share_of_it():
    assert fastest_shares([Gang(2, 1.0, (1.0, 0.0))], [2, 1]) == [close((1.0, 0.0))]


def test_an_equal_split_gives_every_job_the_same_part_of_every_type():
    gangs = [Gang(1, 1.0, (1.0, 0.5)), Gang(2, 1.0, (1.0, 0.5))]
    # A quarter of the four GPUs would be more than all of the single's time, so that it is cut.
    assert equal_split(gangs, [2, 2]) == [close(0.75), close(0.75)]
    assert equal_split([Gang(1, 1.0, (1.0,))] * 4, [1]) == [close(0.25)] * 4


class TestFinishTimes:
    def test_equal_jobs_share_equally(self):
        clock = Clock(elapsed_s=0.0, left_s=100.0, alone_s=200.0)
        assert timely_shares([ONE, ONE], [clock, clock], [1]) == [close((0.5,))] * 2

    def test_two_jobs_get_the_shares_worked_out_by_hand(self):
        # (100 + 100/x) / 400 = (100/(1-x)) / 200, that is x^2 + 2x = 1.
        clocks = [Clock(100.0, 100.0, 400.0), Clock(0.0, 100.0, 200.0)]
        first, second = timely_shares([ONE, ONE], clocks, [1])
        assert first == close((sqrt(2) - 1,))
        assert second == close((2 - sqrt(2),))

    def test_the_job_that_is_late_already_gets_most(self):
        clocks = [Clock(5000.0, 100.0, 1000.0), Clock(0.0, 100.0, 1000.0)]
        late, early = timely_shares([ONE, ONE], clocks, [1])
        assert late[0] > 0.9 > 0.1 > early[0] > 0

    def test_a_lone_job_gets_what_it_needs_of_the_fastest_type(self):
        clock = Clock(0.0, 100.0, 150.0)
        assert timely_shares([Gang(1, 1.0, (1.0, 0.5))], [clock], [1, 1]) == [close((1.0, 0.0))]
