"""Slowdown, finish-time fairness, Jain's index and bins, on cases worked out by hand."""

import pytest

from rota.model.events import JobFinished
from rota.model.job import JobState
from rota.policy.ordering.fifo import Fifo
from rota.report.fairness import (
    by_bin,
    columns_of,
    finish_time_fairness,
    jain_index,
    mean_active,
    progress_rates,
    slowdowns,
)
from rota.testing.builders import job, run
from support.driven import DrivenCluster


def fifo_on_one_gpu(*jobs):
    state, _ = run(jobs, Fifo(), "1x1")
    return state, columns_of(state, range(len(jobs)))


def test_slowdown_is_bounded_for_jobs_of_less_than_ten_seconds():
    # The second waits for 100 s: 120 / 20. The third waits for 120 s: 125 / 10, not 125 / 5.
    _, jobs = fifo_on_one_gpu(job(0, lasts=100), job(1, lasts=20), job(2, lasts=5))
    assert list(slowdowns(jobs)) == [1.0, 6.0, 12.5]


def test_a_job_that_is_faster_than_its_duration_has_no_slowdown_below_one():
    _, jobs = fifo_on_one_gpu(job(0, lasts=3), job(1, at=50, lasts=0))
    assert list(slowdowns(jobs)) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([5, 5, 5], 1.0), ([1, 0, 0, 0], 0.25), ([1, 2, 3], 36 / 42), ([], None), ([0, 0], None)],
)
def test_jains_index(shares, expected):
    assert jain_index(shares) == (None if expected is None else pytest.approx(expected))


def test_the_rate_of_progress_is_the_share_of_its_time_in_which_a_job_ran():
    _, jobs = fifo_on_one_gpu(job(0, lasts=100), job(1, lasts=100), job(2, lasts=0, at=500))
    assert progress_rates(jobs) == [1.0, 0.5]


def test_active_jobs_are_averaged_over_a_jobs_own_time():
    # 0-10 one job, 10-20 two, 20-30 one.
    assert list(mean_active([0.0, 10.0], [20.0, 30.0])) == [1.5, 1.5]
    # A job that has not ended counts for good; who comes and goes at once has only itself.
    assert list(mean_active([0.0, 5.0, 8.0], [-1.0, 10.0, 8.0])) == [1.0, 2.0, 1.0]


def test_rho_compares_with_an_equal_share_of_the_cluster():
    state, jobs = fifo_on_one_gpu(job(0, lasts=100), job(1, lasts=100))
    active = mean_active(state.submit_s, state.finish_s)
    # The first is alone with the other for its 100 s; of the second's 200 s, half are so.
    assert list(active) == [2.0, 1.5]
    # On half of the GPU the first would take 200 s, and takes 100.
    assert finish_time_fairness(jobs, active, 1) == [100 / 200, pytest.approx(200 / 150)]


def test_a_share_that_is_larger_than_the_gang_is_of_no_use_to_it():
    state, jobs = fifo_on_one_gpu(job(0, lasts=100))
    assert finish_time_fairness(jobs, mean_active(state.submit_s, state.finish_s), 64) == [1.0]


def test_jobs_that_need_nothing_have_no_rho():
    _, jobs = fifo_on_one_gpu(job(0, lasts=0))
    assert finish_time_fairness(jobs, [1.0], 1) == []


def test_bins_part_at_four_gpus_and_eight_hundred_seconds():
    jobs = [
        job("ss", 4, at=0, lasts=799),
        job("sl", 4, at=10_000, lasts=800),
        job("ls", 5, at=20_000, lasts=799),
        job("ll", 5, at=30_000, lasts=800),
    ]
    state, _ = run(jobs, Fifo(), "2x4")
    columns = columns_of(state, range(4))
    bins = by_bin(columns, slowdowns(columns))
    assert {name: figures["jobs"] for name, figures in bins.items()} == {
        "SS": 1,
        "SL": 1,
        "LS": 1,
        "LL": 1,
    }
    assert bins["LL"] == {"jobs": 1, "avg_jct_s": 800.0, "avg_queue_s": 0.0, "avg_slowdown": 1.0}


def test_an_empty_bin_has_no_averages():
    _, jobs = fifo_on_one_gpu(job(0, lasts=5))
    bins = by_bin(jobs, slowdowns(jobs))
    assert bins["LL"] == {"jobs": 0, "avg_jct_s": None, "avg_queue_s": None, "avg_slowdown": None}


def test_where_no_duration_is_known_the_service_is_what_a_job_needed():
    cluster = DrivenCluster(job(0, 1)._replace(duration_s=None))
    cluster.settle()
    cluster.passes(30.0)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert list(columns_of(cluster.state, [0]).need_s) == [30.0]
