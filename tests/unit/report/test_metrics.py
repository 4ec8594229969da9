import pytest

from rota.model.events import AttemptLost, JobFinished, NodeLost, RetryDue, StopRequested
from rota.model.job import JobState
from rota.policy.ordering.fifo import Fifo
from rota.policy.ordering.shortest import ShortestRemaining
from rota.policy.registry import create
from rota.report.metrics import PER_JOB_COLUMNS, per_job, summarise
from rota.sim.machine import Costs
from rota.testing.builders import job, run
from support.driven import DrivenCluster

COSTS = Costs(suspend_s=1.0, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0)


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
        "p90_jct_s": 108.0,
        "p95_jct_s": 108.0,
        "p99_jct_s": 108.0,
        "makespan_s": 108.0,
        "avg_jct_s_by_part": [],
        "avg_queue_s": 0.0,
        "median_queue_s": 0.0,
        "p95_queue_s": 0.0,
        "preemptions": 0,
        "migrations": 0,
        "restarts": 0,
        "restarts_per_job": 0.0,
        "lost_attempts": 0,
        "overhead_gpu_s": 2 * 8.0 + 2 * 8.0,
        "lost_gpu_s": 0.0,
        "gpu_allocation": (2 * 108 + 2 * 18) / (4 * 108),
        "gpu_utilisation": (2 * 100 + 2 * 10) / (4 * 108),
        "avg_slowdown": pytest.approx((1.08 + 1.8) / 2),
        "p99_slowdown": 1.8,
        # Each has half of the cluster, which is all it can use: rho is its slowdown.
        "avg_rho": pytest.approx((1.08 + 1.8) / 2),
        "worst_rho": 1.8,
        "unfair_jobs": 1.0,
        "jain_index": pytest.approx((1 / 1.08 + 1 / 1.8) ** 2 / 2 / (1 / 1.08**2 + 1 / 1.8**2)),
        "bins": {
            "SS": {
                "jobs": 2,
                "avg_jct_s": 63.0,
                "avg_queue_s": 0.0,
                "avg_slowdown": pytest.approx((1.08 + 1.8) / 2),
            },
            **{
                name: {"jobs": 0, "avg_jct_s": None, "avg_queue_s": None, "avg_slowdown": None}
                for name in ("SL", "LS", "LL")
            },
        },
        "events": state.events,
        "decisions": 4,
    }


def test_queueing_is_what_is_left_of_the_time_after_service_and_charges():
    jobs = [job("a", lasts=100), job("b", lasts=50)]
    state, _ = run(jobs, Fifo(), "1x1", COSTS)
    assert summarise(state, decisions=0, policy="fifo")["avg_queue_s"] == 108.0 / 2


def test_the_cost_of_preemptions_is_their_number_times_the_cost_of_one():
    # Tiresias (NSDI 2019), section 5.2.4: 221 preemptions cost 13,724 s, 62.1 s each.
    jobs = [job("a", lasts=6480), job("b", lasts=6420)]
    costs = Costs(suspend_s=0.0, resume_s=62.1, migrate_s=0.0, cold_start_s=0.0)
    state, _ = run(jobs, create("gandiva"), "1x1", costs)
    summary = summarise(state, decisions=0, policy="x")
    assert summary["preemptions"] == 221
    assert summary["overhead_gpu_s"] == pytest.approx(221 * 62.1)
    assert round(summary["overhead_gpu_s"]) == 13_724


def test_lost_work_is_counted_in_gpu_seconds():
    cluster = DrivenCluster(job("a", 2), job("b", 1))
    cluster.settle()
    cluster.passes(50.0)
    cluster.happens(AttemptLost, 0, 1, "a fault", 20.0)
    summary = summarise(cluster.state, decisions=0, policy="fifo")
    assert summary["lost_gpu_s"] == 2 * 20.0


def test_a_retry_is_no_lost_attempt():
    cluster = DrivenCluster(job("first", 4), job("a", 2), job("b", 1))
    cluster.settle()
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    cluster.passes(50.0)
    failed = AttemptLost(cluster.now_s, 1, 1, "exit code 7", retry_at_s=60.0, exit_code=7)
    cluster.state.apply(failed)
    cluster.happens(AttemptLost, 2, 1, "its agent died")

    def lost(state):
        return summarise(state, decisions=0, policy="fifo")["lost_attempts"]

    assert [lost(cluster.state.only([row])) for row in (0, 1, 2)] == [0, 0, 1]
    assert lost(cluster.state) == 1
    cluster.passes(10.0)
    cluster.happens(RetryDue, 1)
    cluster.settle()
    assert cluster.state.attempt[1] == 2
    assert lost(cluster.state) == 1
    cluster.happens(AttemptLost, 1, 2, "its agent died")
    assert lost(cluster.state) == 2


def test_a_job_that_is_cancelled_before_its_retry_has_lost_none():
    cluster = DrivenCluster(job("a", 2))
    cluster.settle()
    cluster.state.apply(AttemptLost(0.0, 0, 1, "exit code 7", retry_at_s=60.0, exit_code=7))
    cluster.happens(StopRequested, 0)
    assert cluster.state_of(0) == JobState.CANCELLED
    assert summarise(cluster.state, decisions=0, policy="fifo")["lost_attempts"] == 0


def test_starts_that_did_not_last_are_counted():
    cluster = DrivenCluster(job("a", 2), job("b", 1), job("waits", 4))
    cluster.settle()
    cluster.passes(50.0)
    assert summarise(cluster.state, decisions=0, policy="fifo")["lost_attempts"] == 0
    cluster.happens(AttemptLost, 0, 1, "a fault", 20.0)
    assert summarise(cluster.state, decisions=0, policy="fifo")["lost_attempts"] == 1
    cluster.settle()
    assert cluster.state.attempt[0] == 2
    assert summarise(cluster.state, decisions=0, policy="fifo")["lost_attempts"] == 1


def test_nodes_that_were_lost_count_among_what_the_cluster_has():
    cluster = DrivenCluster(job("a", 1))
    cluster.settle()
    cluster.passes(10.0)
    before = summarise(cluster.state, decisions=0, policy="fifo")
    assert before["gpu_utilisation"] is None
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED, 0)
    (node,) = cluster.state.nodes
    cluster.happens(NodeLost, node.name)
    after = summarise(cluster.state, decisions=0, policy="fifo")
    assert after["gpu_utilisation"] == 1 / node.num_gpus


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
        "p90_jct_s",
        "p95_jct_s",
        "p99_jct_s",
        "makespan_s",
        "avg_queue_s",
        "median_queue_s",
        "p95_queue_s",
        "gpu_allocation",
        "gpu_utilisation",
        "avg_slowdown",
        "p99_slowdown",
        "avg_rho",
        "worst_rho",
        "unfair_jobs",
        "jain_index",
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
        "lost_s": 0.0,
        "queue_s": None,
        "preemptions": 0,
        "migrations": 0,
        "state": "PENDING",
    }
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    done = dict(zip(PER_JOB_COLUMNS, per_job(cluster.state)[0], strict=True))
    assert (done["jct_s"], done["service_s"], done["queue_s"]) == (10.0, 10.0, 0.0)
