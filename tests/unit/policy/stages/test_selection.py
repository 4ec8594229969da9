"""What the stages do that no single setting owns: placing, keeping, waiting, reasons."""

from rota.model.allocation import on_node
from rota.model.events import JobSubmitted
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.registry import create
from rota.policy.stages.selection import Stages, finish, own_mark, place, walk
from rota.sim.machine import Costs
from rota.testing.builders import job, run
from support.driven import DrivenCluster


def view_of(*jobs, cluster="1x4"):
    driven = DrivenCluster(*jobs, cluster=cluster)
    return View(driven.state, 0.0, None)


def test_a_placement_that_refuses_is_told_from_too_few_gpus():
    what_if = view_of(job("a", 2), job("b", 5), job("c", 4), job("d", 3)).what_if()
    assert not place(what_if, 0, lambda view, free, row: None)
    assert not place(what_if, 1, lambda view, free, row: None)
    assert place(what_if, 3)
    assert not place(what_if, 2)
    assert what_if.plan().reasons == {
        0: Reason.WAIT_GANG_FRAGMENTED,
        1: Reason.NEVER_FITS,
        2: Reason.WAIT_RESOURCES,
        3: Reason.NONE,
    }


def test_the_users_placement_goes_before_the_policys_own():
    what_if = view_of(job("a")).what_if()
    users = Stages(placement=lambda view, free, row: on_node(0, 0b1000))
    walk(users, what_if, [0], placement=lambda view, free, row: on_node(0, 0b0100))
    assert what_if.target(0) == on_node(0, 0b1000)


def test_those_who_lost_gpus_to_a_gang_that_can_not_be_placed_have_them_back():
    policy = create("srtf", {"placement": "spread"})
    cluster = DrivenCluster(job("a", 2), job("b", 2), policy=policy)
    cluster.settle()
    before = list(cluster.state.target)
    policy.stages.placement = lambda view, free, row: None
    cluster.happens(JobSubmitted, job("c", 3, lasts=1))
    cluster.settle()
    assert cluster.state.target == [*before, None]
    assert sum(cluster.state.preemptions) == 0
    assert cluster.state.reason[2] == Reason.WAIT_GANG_FRAGMENTED


def test_strict_walks_preempt_nobody_and_stop_at_the_first_that_does_not_fit():
    what_if = view_of(job("a", 2), job("b", 4), job("c", 1)).what_if()
    assert walk(None, what_if, [0, 1, 2], strict=True) == [0]
    assert what_if.plan().reasons[1] == Reason.WAIT_RESOURCES


def test_a_higher_priority_comes_first_and_equal_ones_keep_the_order():
    what_if = view_of(
        job("a"), job("b", priority=90), job("c", priority=90), cluster="1x2"
    ).what_if()
    assert walk(None, what_if, [0, 2, 1]) == [2, 1]
    what_if = view_of(job("a"), job("b", priority=90), cluster="1x2").what_if()
    assert walk(Stages(priority=False), what_if, [0, 1]) == [0, 1]


def test_a_job_of_a_higher_priority_takes_gpus_under_a_preemptive_policy_alone():
    jobs = [job("a", lasts=100), job("b", at=10, lasts=20, priority=90)]
    assert list(run(jobs, create("srtf"), "1x1").state.finish_s) == [120.0, 30.0]
    assert list(run(jobs, create("tiresias"), "1x1").state.finish_s) == [120.0, 30.0]
    assert list(run(jobs, create("fifo"), "1x1").state.finish_s) == [100.0, 120.0]


def test_a_minimum_run_time_holds_off_the_shorter_job_until_it_has_passed():
    jobs = [job("a", lasts=100), job("b", at=10, lasts=20)]
    state, _ = run(jobs, create("srtf", {"min_run_time_s": "45"}), "1x1")
    assert state.first_start_s[1] == 45.0
    assert list(state.finish_s) == [120.0, 65.0]


RESTARTS = Costs(suspend_s=0.0, resume_s=5.0, migrate_s=0.0, cold_start_s=5.0)


def test_by_default_a_job_runs_for_ten_times_what_its_start_cost_before_it_is_preempted():
    jobs = [job("a", 2, lasts=200), job("b", at=10, lasts=20)]
    starts = {
        given: run(jobs, create("smallest-first", settings), "1x2", RESTARTS).state.first_start_s[1]
        for given, settings in (("auto", None), ("0", {"min_run_time_s": "0"}))
    }
    assert starts == {"auto": 60.0, "0": 15.0}  # a began at 5 s; b takes 5 s to start


def test_by_default_tiresias_keeps_a_job_that_has_just_resumed():
    """A job that has sunk and resumed is not preempted by the next that comes."""
    jobs = [job("a", lasts=400), job("b", at=100, lasts=20), job("c", at=126, lasts=20)]
    settings = {"thresholds": "60", "promote_knob": "0"}
    state = run(jobs, create("tiresias", settings), "1x1", RESTARTS).state
    # a runs from 5 s, b from 105 s to 125 s; a resumes at 130 s, and c has to let it run for 50 s.
    assert state.first_start_s[2] == 185.0
    settings |= {"min_run_time_s": "0"}
    assert run(jobs, create("tiresias", settings), "1x1", RESTARTS).state.first_start_s[2] == 135.0


def test_where_starts_cost_nothing_nobody_is_spared():
    jobs = [job("a", 2, lasts=100), job("b", at=10, lasts=20)]
    assert run(jobs, create("smallest-first"), "1x2").state.first_start_s[1] == 10.0


def test_what_the_policy_remembers_stays_its_own_beside_a_fair_share():
    cluster = DrivenCluster(job("a", user="x"))
    policy = create("las", {"fair_share": "user"})
    cluster.policy = policy
    cluster.passes(5.0)
    cluster.settle()
    assert own_mark(policy.stages, View(cluster.state, 5.0, policy)) == 5.0
    assert cluster.state.policy_mark == {"policy": 5.0, "fair_share": [5.0, {"x": 0.0}, {"x": 0}]}


def test_without_stages_a_plan_is_the_trials():
    what_if = view_of(job("a")).what_if()
    plan = finish(None, what_if, wake_at_s=7.0, policy_mark=[1])
    assert (plan.wake_at_s, plan.policy_mark) == (7.0, [1])
