"""What people are told of a reservation: when it comes true, for whom, and what would pass it."""

from rota.explain.why import explain
from rota.policy.ordering.easy import EasyBackfill
from rota.testing.builders import job
from support.driven import DrivenCluster

RULE = "WAIT_RESERVATION"


def why(*jobs, row, after_s=20.0):
    cluster = DrivenCluster(*jobs, policy=EasyBackfill())
    cluster.settle()
    verdict = explain(cluster.state, row, after_s)
    told = [blocker for blocker in verdict["blockers"] if blocker["rule"] == RULE]
    return verdict, told


def test_the_head_of_the_line_is_told_when_it_starts_at_the_latest_and_after_whom():
    verdict, (told,) = why(job("a", 3, time_limit_s=100), job("head", 4), row=1)
    assert verdict["reason"] == "WAIT_RESOURCES"
    assert told["need"] == "the GPUs that are set aside for it"
    assert told["have"] == "free in 80 s at the latest, by time limits: job a"
    assert told["held_by"] == ["a"]


def test_the_head_is_told_who_has_no_time_limit():
    _, (told,) = why(job("a", 3), job("head", 4), row=1)
    assert told["have"] == "held by job a; when they are free nobody can tell: it has no time limit"


def test_the_head_is_told_that_it_is_due():
    _, (told,) = why(job("a", 3, time_limit_s=100), job("head", 4), row=1, after_s=101.0)
    assert told["have"] == "due now: job a ran for as long as was to be expected"


def test_a_job_that_fits_is_told_for_whom_the_gpus_are_and_what_limit_would_do():
    verdict, (told,) = why(
        job("a", 3, time_limit_s=100), job("head", 4), job("late", 1, time_limit_s=101), row=2
    )
    assert verdict["reason"] == RULE
    assert verdict["blockers"][0] == told
    assert told["need"] == "GPUs that job head leaves, or a time limit of 80 s at most"
    assert told["have"] == (
        "it would use what is set aside for job head, which starts in 80 s at the latest"
    )
    assert told["held_by"] == ["head"]
    assert verdict["would_start_if"] == (
        "job head had started, or left it GPUs; or its time limit were 80 s or less"
    )


def test_a_job_behind_a_reservation_without_a_time_is_told_of_no_limit():
    verdict, (told,) = why(job("a", 3), job("head", 4), job("late", 1, time_limit_s=1), row=2)
    assert told["need"] == "GPUs that job head leaves"
    assert told["have"] == "it would use what is set aside for job head"
    assert verdict["would_start_if"] == "job head had started, or left it GPUs"
