from rota.model.events import JobFinished, JobSubmitted, StopRequested
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.policy.ordering.shortest import ShortestRemaining, ShortestRemainingService, SmallestFirst
from rota.testing.builders import job, run
from support.driven import DrivenCluster


def test_a_shorter_job_takes_the_gpu_and_gives_it_back():
    jobs = [job("long", lasts=100), job("short", at=10, lasts=20)]
    state, _ = run(jobs, ShortestRemaining(), "1x1")
    assert list(state.finish_s) == [120.0, 30.0]
    assert list(state.preemptions) == [1, 0]


def test_equal_jobs_are_not_swapped():
    jobs = [job("a", lasts=100), job("b", at=50, lasts=50)]
    state, _ = run(jobs, ShortestRemaining(), "1x1")
    assert list(state.finish_s) == [100.0, 150.0]
    assert sum(state.preemptions) == 0


def test_what_counts_is_what_is_left_not_the_whole_duration():
    jobs = [job("a", lasts=100), job("b", at=95, lasts=50)]
    state, _ = run(jobs, ShortestRemaining(), "1x1")
    assert list(state.finish_s) == [100.0, 150.0]


def test_the_smallest_gang_comes_first_however_long_it_runs():
    jobs = [job("wide", 2, lasts=10), job("narrow", 1, at=2, lasts=100)]
    state, _ = run(jobs, SmallestFirst(), "1x2")
    assert list(state.finish_s) == [110.0, 102.0]


def test_remaining_service_counts_gpus_times_time():
    jobs = [job("a", 4, lasts=30), job("b", 1, lasts=100)]
    by_time, _ = run(jobs, ShortestRemaining(), "1x4")
    by_service, _ = run(jobs, ShortestRemainingService(), "1x4")
    assert list(by_time.finish_s) == [30.0, 130.0]
    assert list(by_service.finish_s) == [130.0, 100.0]


def test_a_job_that_waits_again_is_told_so_once_the_preemption_is_past():
    cluster = DrivenCluster(job("a", 2), policy=SmallestFirst(), cluster="1x2")
    cluster.settle()
    cluster.happens(JobSubmitted, job("b"))
    cluster.settle()
    assert cluster.state.reason[0] == Reason.PREEMPTED_BY
    cluster.happens(JobSubmitted, job("c"))
    cluster.settle()
    assert cluster.state.reason[0] == Reason.WAIT_RESOURCES
    cluster.happens(JobFinished, 1, JobState.SUCCEEDED)
    cluster.happens(JobFinished, 2, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.state_of(0) == JobState.RUNNING


def test_the_index_survives_jobs_that_end_or_leave_while_they_wait():
    policy = SmallestFirst()
    cluster = DrivenCluster(*(job(i, 2) for i in range(6)), policy=policy, cluster="1x4")
    cluster.settle()
    for row in (2, 4):
        cluster.happens(StopRequested, row)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert [cluster.state_of(row) for row in (1, 3)] == [JobState.RUNNING] * 2
    assert cluster.state_of(5) == JobState.PENDING
