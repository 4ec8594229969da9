import pytest

from rota.report.trace_stats import dispersion, shape_of
from rota.testing.builders import job
from rota.workload.trace import Trace


def shape(*jobs, num_gpus=None):
    return shape_of(Trace(jobs), num_gpus)


def test_sizes_have_their_shares_of_jobs_and_of_gpu_time():
    sizes = shape(job("a", 1, lasts=100), job("b", 1, lasts=100), job("c", 4, lasts=150))["sizes"]
    assert [(row["num_gpus"], row["jobs"]) for row in sizes] == [(1, 2), (4, 1)]
    assert [row["job_share"] for row in sizes] == pytest.approx([2 / 3, 1 / 3])
    assert [row["gpu_time_share"] for row in sizes] == pytest.approx([0.25, 0.75])


def test_the_load_is_the_gpu_time_asked_for_over_that_of_the_cluster_in_the_span():
    jobs = (job("a", 2, lasts=100, at=0), job("b", 1, lasts=200, at=50))
    assert shape(*jobs, num_gpus=4)["load"] == 400 / (4 * 50)
    assert shape(*jobs)["load"] is None
    assert shape(jobs[0], num_gpus=4)["load"] is None


def test_percentiles_of_durations_go_by_nearest_rank():
    durations = shape(*(job(str(i), 1, lasts=i) for i in range(1, 101)))["duration_s"]
    assert durations == {"p10": 10, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}


def test_even_arrivals_have_no_dispersion_and_a_crowd_has_much():
    even = Trace([job(str(i), at=600 * i) for i in range(11)])
    assert dispersion(even.jobs[:10], 6000) == pytest.approx(0)
    crowd = Trace([job(str(i), at=0) for i in range(10)])
    assert dispersion(crowd.jobs, 6000) == pytest.approx(9)
    assert dispersion(crowd.jobs, 600) is None
    three = [job(str(i), 1, at=600 * i) for i in range(3)]
    assert dispersion(three, 1200) == pytest.approx(1 / 6), "one arrival in a slot, two in the next"


def test_who_has_most_jobs_comes_first_and_names_that_nobody_gave_are_left_out():
    jobs = [job(str(i))._replace(vc="red" if i % 3 else "blue") for i in range(9)]
    told = shape(*jobs)
    assert [row["name"] for row in told["vcs"]] == ["red", "blue"]
    assert told["users"] == []


def test_jobs_of_no_duration_make_no_shares():
    assert shape(job("a", 1, lasts=0))["sizes"][0]["gpu_time_share"] == 0
