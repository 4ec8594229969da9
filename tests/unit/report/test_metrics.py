import pytest

from rota.model.events import JobFinished, StopRequested
from rota.model.job import JobState
from rota.policy.fifo import Fifo
from rota.policy.shortest import ShortestRemaining
from rota.report.metrics import (
    PER_JOB_COLUMNS,
    mean,
    median,
    per_job,
    percentile,
    summarise,
)
from rota.sim.machine import Costs
from rota.testing.builders import job, run
from rota.testing.driven import DrivenCluster

COSTS = Costs(suspend_s=1.0, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0)


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [
        (20, 95, 19),
        (21, 95, 20),
        (100, 99, 99),
        (101, 99, 100),
        (1, 99, 1),
        (2, 50, 1),
        (200, 1, 2),
        (3, 100, 3),
        (3, 0, 1),
    ],
)
def test_percentiles_go_by_nearest_rank(count, percent, expected):
    assert percentile(range(1, count + 1), percent) == expected


@pytest.mark.parametrize(
    ("values", "expected"), [([7], 7), ([1, 9], 5), ([1, 2, 9], 2), ([1, 2, 4, 9], 3)]
)
def test_the_median_is_the_middle_or_the_mean_of_the_two_middle_values(values, expected):
    assert median(values) == expected


def test_nothing_has_no_average():
    assert mean([]) is median([]) is percentile([], 95) is None


def test_the_figures_of_a_run_by_their_definitions():
    jobs = [job("long", 2, at=100, lasts=100), job("short", 2, at=150, lasts=10)]
    state, decisions = run(jobs, ShortestRemaining(), "1x4", COSTS)
    summary = summarise(state, decisions=decisions, policy="srtf", needs_duration=True)
    # Both fit: each starts at once, after 8 s of start.
    assert summary == {
        "policy": "srtf",
        "needs_duration": True,
        "jobs": 2,
        "finished": 2,
        "avg_jct_s": 63.0,
        "median_jct_s": 63.0,
        "p95_jct_s": 108.0,
        "p99_jct_s": 108.0,
        "makespan_s": 108.0,
        "avg_queue_s": 0.0,
        "preemptions": 0,
        "migrations": 0,
        "gpu_utilisation": (2 * 100 + 2 * 10) / (4 * 108),
        "events": state.events,
        "decisions": 4,
    }


def test_queueing_is_what_is_left_of_the_time_after_service_and_charges():
    jobs = [job("a", lasts=100), job("b", lasts=50)]
    state, _ = run(jobs, Fifo(), "1x1", COSTS)
    assert summarise(state, decisions=0, policy="fifo")["avg_queue_s"] == 108.0 / 2


def test_jobs_that_did_not_succeed_are_counted_and_not_averaged():
    cluster = DrivenCluster(job("done"), job("failed"), job("cancelled"), job("runs"))
    cluster.settle()
    cluster.passes(10.0)
    cluster.happens(JobFinished, 1, JobState.FAILED, 1)
    cluster.happens(StopRequested, 2)
    cluster.passes(20.0)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED, 0)
    cluster.passes(1000.0)
    summary = summarise(cluster.state, decisions=1, policy="fifo")
    assert (summary["jobs"], summary["finished"]) == (4, 1)
    assert summary["avg_jct_s"] == summary["makespan_s"] == 30.0
    assert summary["gpu_utilisation"] == 30.0 / (4 * 30.0)


def test_a_run_in_which_nothing_finished_has_no_times():
    summary = summarise(DrivenCluster(job()).state, decisions=0, policy="fifo")
    assert summary["jobs"] == 1
    assert summary["finished"] == 0
    nones = [key for key, value in summary.items() if value is None]
    assert nones == [
        "avg_jct_s",
        "median_jct_s",
        "p95_jct_s",
        "p99_jct_s",
        "makespan_s",
        "avg_queue_s",
        "gpu_utilisation",
    ]


def test_each_job_has_a_row():
    cluster = DrivenCluster(job("done", 3), job("waits", 2, at=0))
    cluster.settle()
    cluster.passes(10.0)
    rows = [dict(zip(PER_JOB_COLUMNS, row, strict=True)) for row in per_job(cluster.state)]
    assert rows[0]["state"] == "RUNNING"
    assert rows[0]["first_start_s"] == 0.0
    assert rows[1] == {
        "job_id": "waits",
        "num_gpus": 2,
        "submit_s": 0.0,
        "first_start_s": None,
        "finish_s": None,
        "jct_s": None,
        "service_s": 0.0,
        "overhead_s": 0.0,
        "queue_s": None,
        "preemptions": 0,
        "migrations": 0,
        "state": "PENDING",
    }
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    done = dict(zip(PER_JOB_COLUMNS, per_job(cluster.state)[0], strict=True))
    assert (done["jct_s"], done["service_s"], done["queue_s"]) == (10.0, 10.0, 0.0)
