"""EASY backfilling; each of the examples is worked out by hand."""

from rota.model.events import JobFinished, JobLaunched, JobSubmitted
from rota.model.job import JobState
from rota.model.notes import Reserved
from rota.model.reason import Reason
from rota.policy.ordering.easy import EasyBackfill
from rota.policy.registry import create
from rota.testing.builders import job, run
from support.driven import DrivenCluster


def starts(jobs, policy=None, cluster="1x4"):
    return list(run(jobs, policy or EasyBackfill(), cluster).state.first_start_s)


def test_whoever_ends_before_the_reservation_passes_the_head_and_nobody_else():
    jobs = [
        job("a", 3, lasts=100, time_limit_s=100),
        job("head", 4, at=1, lasts=10, time_limit_s=10),  # reserved: 100
        job("late", 1, at=2, lasts=50, time_limit_s=99),  # could end at 101
        job("soon", 1, at=3, lasts=50, time_limit_s=97),  # ends by 100
    ]
    assert starts(jobs) == [0, 100, 110, 3]


def test_whoever_leaves_the_head_its_gpus_passes_it_however_long_it_runs():
    jobs = [
        job("a", 3, lasts=100, time_limit_s=100),
        job("b", 3, lasts=200, time_limit_s=200),
        job("head", 4, at=1, lasts=10, time_limit_s=10),  # at 100 there are 5 GPUs for its 4
        job("beside", 1, at=2, lasts=500),  # the fifth
        job("too many", 1, at=3, lasts=500),
    ]
    assert starts(jobs, cluster="2x4") == [0, 0, 100, 2, 110]


def test_the_reservation_is_brought_forward_by_jobs_that_end_before_their_limits():
    jobs = [
        job("a", 4, lasts=30, time_limit_s=100),
        job("head", 4, at=1, lasts=10, time_limit_s=10),
    ]
    assert starts(jobs) == [0, 30]


def test_the_head_starts_when_enough_of_those_with_the_nearest_limits_have_ended():
    cluster = DrivenCluster(
        job("a", 2, time_limit_s=300),
        job("b", 1, time_limit_s=100),
        job("c", 1, time_limit_s=200),
        job("head", 2),
        policy=EasyBackfill(),
    )
    cluster.settle()
    assert cluster.state.notes.reserved == Reserved(3, 200.0, (1, 2))
    assert cluster.state.reason[3] == Reason.WAIT_RESOURCES


def test_a_job_without_a_limit_may_run_for_ever_so_that_nobody_knows_when_the_head_starts():
    jobs = [job("a", 3), job("head", 4), job("short", 1, lasts=1, time_limit_s=1)]
    cluster = DrivenCluster(*jobs, policy=EasyBackfill())
    cluster.settle()
    assert cluster.state.notes.reserved == Reserved(1, None, (0,))
    assert cluster.state.reason[2] == Reason.WAIT_RESERVATION
    cluster = DrivenCluster(*jobs, policy=create("easy-backfill", {"default_limit_s": "60"}))
    cluster.settle()
    assert cluster.state.notes.reserved == Reserved(1, 60.0, (0,))
    assert cluster.state.target[2] is not None


def test_nobody_passes_a_head_for_which_a_job_beyond_its_limit_should_have_made_room():
    cluster = DrivenCluster(job("a", 3, time_limit_s=50), job("head", 4), policy=EasyBackfill())
    cluster.settle()
    cluster.passes(60.0)
    cluster.happens(JobSubmitted, job("short", 1, at=60, time_limit_s=1))
    cluster.settle()
    assert cluster.state.notes.reserved == Reserved(1, 60.0, (0,))
    assert cluster.state.reason[2] == Reason.WAIT_RESERVATION


def test_a_job_that_the_jobs_of_all_others_leave_no_room_for_sets_nothing_aside():
    cluster = DrivenCluster(job("a", 1), job("too large", 5), job("b", 3), policy=EasyBackfill())
    cluster.settle()
    assert cluster.state.notes.reserved is None
    assert cluster.state.reason[1] == Reason.NEVER_FITS
    assert cluster.state.target[2] is not None


def test_live_gangs_are_given_room_on_one_node():
    jobs = [
        job("a", 1, time_limit_s=100),
        job("b", 1, time_limit_s=50),  # beside a: by count the head has room when it ends
        job("c", 1, time_limit_s=80),  # alone on its node
        job("head", 2),
        job("long", 1),
    ]
    cluster = DrivenCluster(*jobs, cluster="2x2", policy=EasyBackfill())
    cluster.decide()
    assert cluster.state.notes.reserved == Reserved(3, 50.0, (1,))
    cluster = DrivenCluster(*jobs, cluster="2x2", policy=EasyBackfill())
    cluster.state.is_live = True
    cluster.decide()
    assert cluster.state.notes.reserved == Reserved(3, 80.0, (2,))
    assert cluster.state.reason[4] == Reason.WAIT_RESERVATION


def test_the_reservation_is_forgotten_when_its_job_has_started():
    cluster = DrivenCluster(job("a", 4, time_limit_s=50), job("head", 4), policy=EasyBackfill())
    cluster.settle()
    assert cluster.state.notes.reserved is not None
    cluster.passes(10.0)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.state.target[1] is not None
    assert cluster.state.notes.reserved is None


def test_jobs_of_a_higher_priority_have_the_reservation():
    cluster = DrivenCluster(
        job("a", 4, time_limit_s=50, priority=95),
        job("b", 4),
        job("c", 4, priority=90),
        policy=EasyBackfill(),
    )
    cluster.settle()
    assert cluster.state.notes.reserved == Reserved(2, 50.0, (0,))


def test_time_that_a_start_takes_puts_the_reservation_off():
    cluster = DrivenCluster(job("a", 4, time_limit_s=50), job("head", 4), policy=EasyBackfill())
    cluster.decide()
    (launch,) = cluster.send()
    cluster.passes(5.0)
    cluster.happens(JobLaunched, launch.row, launch.attempt)
    cluster.decide()
    assert cluster.state.notes.reserved == Reserved(1, 55.0, (0,))
