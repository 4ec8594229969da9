from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import InputError
from rota.policy.scaling import (
    Claim,
    LinearUtility,
    Outlook,
    ThroughputScaling,
    UtilityOverCost,
    allot,
    claim,
)


def test_a_job_that_scales_takes_from_one_that_does_not(closed_form):
    sizes = range(1, 9)
    jobs = [claim(sizes, closed_form(0.01)), claim(sizes, closed_form(0.9))]
    assert allot(9, jobs) == [8, 1]
    assert allot(16, jobs) == [8, 8]
    assert allot(2, jobs) == [1, 1]


def test_equal_jobs_share_and_the_earlier_comes_first(closed_form):
    jobs = [claim(range(1, 9), closed_form(0.2))] * 3
    assert allot(10, jobs) == [4, 3, 3]


def test_logarithms_make_doubling_any_job_count_alike(closed_form):
    def fair(a):
        return claim((1, 2, 4, 8), closed_form(a), ThroughputScaling(0))

    assert allot(4, [fair(0.0), fair(0.0)]) == [2, 2]
    greedy = [claim((1, 2, 4, 8), closed_form(a)) for a in (0.0, 0.1)]
    assert allot(9, greedy) == [8, 1]
    assert allot(9, [fair(0.0), fair(0.1)])[1] > 1


def test_no_gpu_is_given_for_nothing():
    assert allot(100, [Claim((1, 2, 4), (1.0, 1.5, 1.5)), Claim((2, 3), (1.0, 0.5))]) == [2, 2]


def test_a_job_may_wait_where_zero_is_a_size():
    jobs = [Claim((0, 4), (0.0, 1.0)), Claim((0, 4), (0.0, 2.0))]
    assert allot(4, jobs) == [0, 4]
    assert allot(3, jobs) == [0, 0]


def test_a_step_that_does_not_fit_is_solved_exactly_or_filled_up():
    jobs = [Claim((1, 4), (0.0, 3.3)), Claim((1, 3), (0.0, 2.0)), Claim((1, 3), (0.0, 2.0))]
    assert allot(7, jobs) == [1, 3, 3]
    assert allot(7, jobs, effort=0) == [4, 1, 1]  # short by less than the step that missed, 2.0
    uneven = [Claim((1, 2, 8), (0.0, 0.1, 7.0))]
    assert allot(5, uneven) == allot(5, uneven, effort=0) == [2]


CLAIMS = st.dictionaries(st.integers(0, 9), st.integers(-4, 9), min_size=1, max_size=6).map(
    lambda worth: Claim(tuple(sorted(worth)), tuple(float(worth[size]) for size in sorted(worth)))
)


@given(st.lists(CLAIMS, min_size=1, max_size=4), st.integers(0, 25))
def test_the_best_of_all_sums_is_found_with_the_fewest_gpus(jobs, spare):
    gpus = sum(job.sizes[0] for job in jobs) + spare
    sizes = allot(gpus, jobs)
    ways = product(*(zip(job.sizes, job.values, strict=True) for job in jobs))
    sums = [tuple(map(sum, zip(*way, strict=True))) for way in ways]
    worth = sum(job.values[job.sizes.index(n)] for job, n in zip(jobs, sizes, strict=True))
    best = max(worth for held, worth in sums if held <= gpus)
    assert worth == best
    assert sum(sizes) == min(held for held, worth in sums if worth == best)


def test_money_can_be_what_counts(closed_form):
    late = Outlook(remaining_samples=1000, elapsed_s=0)
    condition = UtilityOverCost(LinearUtility(1000, 1000), 36)
    jobs = [claim((1, 2, 3, 4), closed_form(a), condition, late) for a in (0.0, 0.6)]
    assert allot(5, jobs) == [3, 2]  # 500 s saved, 200, 167


def test_weights_scale_a_claim(closed_form):
    jobs = [claim((1, 2), closed_form(0.2)), claim((1, 2), closed_form(0.2), weight=2.0)]
    assert allot(3, jobs) == [1, 2]


@pytest.mark.parametrize(
    "job",
    [
        Claim((), ()),
        Claim((1, 2), (1.0,)),
        Claim((2, 1), (1.0, 2.0)),
        Claim((-1, 1), (1.0, 2.0)),
        Claim((1, 2), (1.0, float("nan"))),
    ],
)
def test_claims_that_make_no_sense_are_refused(job):
    with pytest.raises(InputError, match="claim"):
        allot(4, [job])


def test_least_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="need 5 GPUs, there are 4"):
        allot(4, [Claim((3,), (1.0,)), Claim((2,), (1.0,))])
    for sizes in ((), (0,), (2, 1)):
        with pytest.raises(InputError, match="claim"):
            claim(sizes, float)
    with pytest.raises(InputError, match="size 0"):
        claim((0, 1), float, ThroughputScaling())
