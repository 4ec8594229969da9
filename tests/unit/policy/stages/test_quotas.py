import pytest

from rota.errors import SimulationError
from rota.model.events import JobFinished, JobSubmitted
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.registry import create
from rota.policy.stages.quotas import Quotas, parse_quotas
from rota.testing.builders import job, run
from support.driven import DrivenCluster


def cluster_with(policy, settings, *jobs, cluster="1x8"):
    driven = DrivenCluster(*jobs, cluster=cluster, policy=create(policy, settings))
    driven.settle()
    return driven


def running(driven):
    return {
        driven.state.spec[row].job_id
        for row in range(len(driven.state.spec))
        if driven.state_of(row) == JobState.RUNNING
    }


def test_a_queue_borrows_what_the_others_leave_and_gives_it_back():
    jobs = [job(i, 2, vc="vision") for i in range(4)]
    driven = cluster_with("smallest-first", {"quotas": "vision=4;nlp=4"}, *jobs)
    assert running(driven) == {"0", "1", "2", "3"}
    driven.happens(JobSubmitted, job("new", 4, vc="nlp"))
    driven.settle()
    assert running(driven) == {"0", "1", "new"}
    assert driven.state.reason[3] == Reason.WAIT_QUOTA


def test_without_preemption_what_is_lent_comes_back_when_its_job_ends():
    jobs = [job(i, 2, vc="vision") for i in range(4)]
    driven = cluster_with("fifo-backfill", {"quotas": "vision=4;nlp=4"}, *jobs)
    for new in (job("v", 2, vc="vision"), job("w", 2, vc="nlp")):
        driven.happens(JobSubmitted, new)
    driven.settle()
    assert running(driven) == {"0", "1", "2", "3"}
    driven.happens(JobFinished, 0, JobState.SUCCEEDED)
    driven.settle()
    assert running(driven) == {"1", "2", "3", "w"}


def test_quotas_that_are_not_lent_leave_gpus_idle():
    jobs = [job(i, 2, vc="vision") for i in range(4)]
    driven = cluster_with("smallest-first", {"quotas": "vision=4", "borrow": "no"}, *jobs)
    assert running(driven) == {"0", "1"}
    assert driven.state.reason[2] == Reason.WAIT_QUOTA


def test_a_queue_that_is_not_named_has_what_the_star_has_or_nothing():
    jobs = [job("a", 2, vc="other")]
    assert running(cluster_with("srtf", {"quotas": "*=2", "borrow": "no"}, *jobs)) == {"a"}
    assert not running(cluster_with("srtf", {"quotas": "x=2", "borrow": "no"}, *jobs))


def test_quotas_are_told_by_queue():
    driven = DrivenCluster(job(0, vc="x"), job(1, vc="y"), cluster="1x7")
    view = View(driven.state, 0.0, driven.policy)
    named = Quotas((("x", 3), ("*", 2)))
    assert [named.of(view, queue) for queue in ("x", "y", "z")] == [3, 2, 2]
    assert Quotas((("x", 3),)).of(view, "y") == 0
    assert [Quotas(equal=True).of(view, queue) for queue in ("x", "y", "z")] == [4, 3, 0]
    assert create("gandiva", {"quotas": "x=3"}).quota(view, 1) == 0
    assert create("gandiva").quota(view, 1) is None


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill", "yarn-cs", "tiresias", "gandiva"])
@pytest.mark.parametrize(
    ("before", "given"), [("fifo", {"quotas": "x=1", "borrow": "no"}), ("gandiva", {})]
)
def test_a_policy_that_follows_one_with_quotas_or_turns_gives_reasons_of_its_own(
    policy, before, given
):
    jobs = [job(0, 4, vc="x"), *(job(i, 4, vc="y") for i in range(1, 4))]
    driven = cluster_with(before, given, *jobs, cluster="1x4")
    driven.policy = create(policy)
    for _ in range(2):
        driven.passes(1.0)
        driven.settle()
    told = {Reason(driven.state.reason[row]) for row in (2, 3)}
    assert Reason.WAIT_QUOTA not in told
    assert (Reason.SLICE_WAITING_TURN in told) == (policy == "gandiva")


def test_equal_quotas_follow_the_queues_that_have_jobs():
    jobs = [job(i, 2, vc="x") for i in range(4)]
    driven = cluster_with("smallest-first", {"quotas": "equal", "borrow": "no"}, *jobs)
    assert len(running(driven)) == 4
    driven.happens(JobSubmitted, job("new", 4, vc="y"))
    driven.settle()
    assert running(driven) == {"0", "1", "new"}


def test_a_job_within_its_quota_passes_one_of_a_higher_priority_that_borrows():
    jobs = [job("a", 6, vc="x", priority=90), job("b", 4, vc="y", priority=10)]
    driven = cluster_with("fifo", {"quotas": "x=4;y=4"}, *jobs)
    assert running(driven) == {"b"}


def test_a_line_waits_for_its_quota_and_the_other_lines_go_on():
    jobs = [job("a", 4, vc="x"), job("b", 4, vc="x"), job("c", vc="x"), job("d", 2, vc="y")]
    driven = cluster_with("fifo", {"quotas": "x=4;y=4", "borrow": "no"}, *jobs)
    assert running(driven) == {"a", "d"}


def test_a_line_whose_head_does_not_fit_does_not_hold_up_the_others():
    lent = [job(f"z{i}", 2, vc="z") for i in range(3)]
    driven = cluster_with("fifo", {"quotas": "x=4;y=2;z=2"}, *lent)
    for new in (job("a", 4, vc="x"), job("b", vc="x"), job("c", 2, vc="y")):
        driven.happens(JobSubmitted, new)
    driven.settle()
    assert running(driven) == {"z0", "z1", "z2", "c"}


def test_a_job_that_never_fits_uses_up_no_quota():
    driven = cluster_with(
        "srtf", {"quotas": "x=9", "borrow": "no"}, job(0, 9, vc="x"), job(1, vc="x")
    )
    assert running(driven) == {"1"}
    assert driven.state.reason[0] == Reason.NEVER_FITS


@pytest.mark.parametrize("policy", ["fifo", "las", "gandiva", "tiresias"])
def test_a_gang_larger_than_a_quota_that_is_not_lent_ends_a_simulation_with_its_reason(policy):
    given = {"quotas": "x=2", "borrow": "no", "fair_share": "user", "min_run_time_s": "5"}
    jobs = [job("a", 4, vc="x", user="u"), job("b", 2, vc="x", user="v")]
    with pytest.raises(SimulationError, match="WAIT_QUOTA"):
        run(jobs, create(policy, given), "1x8")


@pytest.mark.parametrize(
    ("text", "quotas"),
    [
        ("no", None),
        ("equal", Quotas(equal=True)),
        ("vision=8; nlp=4", Quotas((("vision", 8), ("nlp", 4)))),
        ("a=b=2;*=0", Quotas((("a=b", 2), ("*", 0)))),
    ],
)
def test_quotas_are_read_from_text(text, quotas):
    assert parse_quotas(text) == quotas


@pytest.mark.parametrize(
    "text", ["vision", "vision=", "vision=-1", "a=1;a=2", "a=1;", "a=99999999"]
)
def test_what_is_no_quota_is_refused(text):
    with pytest.raises(ValueError, match=r"is not QUEUE=GPUS|names a queue twice"):
        parse_quotas(text)
