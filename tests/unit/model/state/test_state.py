"""The life of a job: what each event does to it, and what is refused."""

from copy import deepcopy

import pytest

from rota.errors import PlanError, TransitionError
from rota.model.allocation import on_node
from rota.model.commands import RULES, Launch, Migrate, Resume, Stop, Suspend, may_follow
from rota.model.decide.diff import diff
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    CommandSent,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    NodeLost,
    ResumeRequested,
    RetryDue,
    StopRequested,
    SuspendRequested,
    WorkerReported,
)
from rota.model.job import Elastic, JobState
from rota.model.reason import Reason
from rota.model.state.state import HANDLERS, ClusterState
from rota.testing.builders import job
from rota.testing.store_contract import every_event
from support.driven import DrivenCluster, cluster_with_a_job_that_is

FINAL = [state for state in JobState if state.is_final]
OPEN = [state for state in JobState if not state.is_final]
STOPPING = JobState.STOPPING


def columns(cluster):
    """All that an event may change, as values that can be compared."""
    values = {k: v for k, v in vars(cluster.state).items() if not k.startswith("_handlers")}
    for name in ("assumed", "idle", "assumed_background", "idle_background"):
        values[name] = (values[name].count, values[name].masks, values[name].by_count)
    return deepcopy(values)


@pytest.mark.parametrize("state", JobState, ids=lambda state: state.name)
def test_every_state_can_be_reached_and_keeps_the_invariants(state):
    cluster = cluster_with_a_job_that_is(state)
    assert cluster.state_of(0) == state
    cluster.state.validate()
    assert cluster.state.story(0)[0] == (0.0, "submitted")


def refusals():
    """(what is refused, in which states, the event)."""
    not_starting = [s for s in JobState if s != JobState.STARTING]
    not_moving = [s for s in JobState if s != JobState.MIGRATING]
    not_suspending = [s for s in JobState if s != JobState.SUSPENDING]
    without_processes = [JobState.PENDING, JobState.HELD, *FINAL]
    launch = Launch(99, 0, 1, 0, on_node(0, 1))
    with_gpus = [JobState.STARTING, JobState.RUNNING, JobState.SUSPENDING, JobState.MIGRATING]
    table = [
        ("a launch that nobody waits for", not_starting, JobLaunched(50.0, 0, 1)),
        ("a resumption that nobody waits for", not_moving, JobResumed(50.0, 0)),
        ("a suspension that nobody waits for", not_suspending, JobSuspended(50.0, 0, 50.0)),
        ("the failure of a command never sent", list(JobState), CommandFailed(50.0, 0, 77, "no")),
        ("a retry without a failure", list(JobState), RetryDue(50.0, 0)),
        ("a suspension of what is over", [STOPPING, *FINAL], SuspendRequested(50.0, 0)),
        ("a resumption of what is over", [STOPPING, *FINAL], ResumeRequested(50.0, 0)),
        ("a stop of what has ended", FINAL, StopRequested(50.0, 0)),
        ("a second end", FINAL, JobFinished(50.0, 0, JobState.SUCCEEDED)),
        ("an end that is none", list(JobState), JobFinished(50.0, 0, JobState.RUNNING)),
        ("the loss of processes it has not", without_processes, AttemptLost(50.0, 0, 1, "gone")),
        ("the loss of another attempt", list(JobState), AttemptLost(50.0, 0, 7, "gone")),
        ("a second set of GPUs", with_gpus, CommandSent(50.0, launch)),
    ]
    return [
        pytest.param(state, event, id=f"{what}, {state.name}")
        for what, states, event in table
        for state in states
    ]


@pytest.mark.parametrize(("state", "event"), refusals())
def test_a_refused_event_changes_nothing_and_tells_the_story(state, event):
    cluster = cluster_with_a_job_that_is(state)
    before = columns(cluster)
    with pytest.raises(TransitionError) as refusal:
        cluster.state.apply(event)
    assert "the-job" in str(refusal.value)
    assert state.name in str(refusal.value)
    assert "Its story: 0.000 s submitted" in str(refusal.value)
    assert columns(cluster) == before


def sample(kind):
    """An event of this kind, about the job of row 0."""
    return next(e for e in every_event() if type(e) is kind)._replace(at_s=50.0, row=0)


@pytest.mark.parametrize("state", JobState, ids=lambda state: state.name)
@pytest.mark.parametrize(
    ("kind", "rule"),
    [each for each in HANDLERS.items() if each[1].states is not None or each[1].answers],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_event_is_refused_unless_the_table_says_that_it_may_come(kind, rule, state):
    cluster = cluster_with_a_job_that_is(state)
    awaited = type(cluster.state.outstanding[0]) in rule.answers
    if awaited or (rule.states is not None and state in rule.states):
        return
    before = columns(cluster)
    with pytest.raises(TransitionError, match="the-job can't be"):
        cluster.state.apply(sample(kind))
    assert columns(cluster) == before


@pytest.mark.parametrize("state", JobState, ids=lambda state: state.name)
@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_a_command_is_refused_unless_its_rule_lets_it_be_sent(kind, state):
    cluster = cluster_with_a_job_that_is(state)
    rule, outstanding = RULES[kind], cluster.state.outstanding[0]
    sent = [e.command for e in every_event() if isinstance(e, CommandSent)]
    command = next(e for e in sent if type(e) is kind)._replace(row=0)
    if state == rule.sent_to and (outstanding is None or type(outstanding) in rule.overtakes):
        assert may_follow(outstanding, command)
        return
    before = columns(cluster)
    with pytest.raises(TransitionError, match="the-job can't be"):
        cluster.state.apply(CommandSent(50.0, command))
    assert columns(cluster) == before


def test_a_command_on_its_way_in_a_state_that_its_rule_forbids_is_found():
    cluster = cluster_with_a_job_that_is(JobState.STARTING)
    cluster.state.state[0] = int(JobState.RUNNING)
    with pytest.raises(PlanError, match="is RUNNING with a Launch on its way"):
        cluster.state.validate()


def test_a_launch_on_gpus_that_another_holds_is_refused():
    cluster = DrivenCluster(job(0, 4), job(1, 4))
    cluster.settle()
    with pytest.raises(TransitionError, match="job 1 can't be sent Launch"):
        cluster.happens(CommandSent, Launch(9, 1, 1, 0, on_node(0, 0b1111)))
    cluster.state.validate()


def test_service_counts_from_the_confirmed_start_and_the_rest_is_overhead():
    cluster = DrivenCluster(job())
    cluster.decide()
    (launch,) = cluster.send()
    cluster.passes(2.0)
    cluster.confirm(launch)
    cluster.passes(10.0)
    assert cluster.state.service(0, cluster.now_s) == 10.0
    cluster.happens(SuspendRequested, 0)
    (suspend,) = cluster.send()
    cluster.passes(3.0)
    cluster.happens(JobSuspended, 0, cluster.now_s - 1.0)  # it worked 2 s on, to its step's end
    cluster.passes(100.0)
    assert cluster.state.service(0, cluster.now_s) == 12.0
    assert isinstance(suspend, Suspend)
    assert cluster.state.overhead_s[0] == 2.0 + 1.0


def test_a_job_suspended_by_its_owner_waits_for_its_owner_only():
    cluster = cluster_with_a_job_that_is(JobState.RUNNING)
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    assert cluster.state_of(0) == JobState.SUSPENDED
    assert cluster.state.reason[0] == Reason.HELD_BY_USER
    cluster.settle()
    assert cluster.state_of(0) == JobState.SUSPENDED
    assert cluster.state.preemptions[0] == 0
    cluster.happens(ResumeRequested, 0)
    cluster.decide()
    (resume,) = cluster.send()
    assert isinstance(resume, Resume)
    cluster.confirm(resume)
    assert cluster.state_of(0) == JobState.RUNNING
    assert cluster.state.attempt[0] == 1


def test_a_job_suspended_before_it_started_is_held_and_then_pending_again():
    cluster = DrivenCluster(job())
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    assert cluster.state_of(0) == JobState.HELD
    cluster.happens(ResumeRequested, 0)
    assert cluster.state_of(0) == JobState.PENDING
    cluster.settle()
    assert cluster.state_of(0) == JobState.RUNNING


def test_suspending_twice_or_resuming_a_running_job_is_no_error():
    cluster = cluster_with_a_job_that_is(JobState.RUNNING)
    cluster.happens(ResumeRequested, 0)
    assert cluster.state_of(0) == JobState.RUNNING
    cluster.happens(SuspendRequested, 0)
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    cluster.happens(ResumeRequested, 0)
    cluster.settle()
    assert cluster.state_of(0) == JobState.RUNNING


@pytest.mark.parametrize("state", OPEN, ids=lambda state: state.name)
def test_a_job_can_be_cancelled_in_every_state_and_gives_its_gpus_back(state):
    cluster = cluster_with_a_job_that_is(state)
    on_its_way = cluster.state.outstanding[0]
    cluster.happens(StopRequested, 0)
    if on_its_way:
        assert cluster.state_of(0) == JobState.STOPPING
        cluster.confirm(on_its_way)
    for command in cluster.send():
        assert isinstance(command, Stop)
        cluster.confirm(command)
    assert cluster.state_of(0) == JobState.CANCELLED
    assert cluster.state.held[0] is None
    assert 0 not in cluster.state.active
    assert 0 not in cluster.state.unsettled
    cluster.state.validate()


@pytest.mark.parametrize(
    "state", [JobState.STARTING, JobState.SUSPENDING, JobState.MIGRATING], ids=lambda s: s.name
)
def test_a_cancelled_job_is_stopped_even_if_its_last_command_fails(state):
    cluster = cluster_with_a_job_that_is(state)
    on_its_way = cluster.state.outstanding[0]
    cluster.happens(StopRequested, 0)
    cluster.happens(CommandFailed, 0, on_its_way.command_id, "no")
    for command in cluster.send():
        assert isinstance(command, Stop)
        cluster.confirm(command)
    assert cluster.state_of(0) == JobState.CANCELLED
    cluster.state.validate()


def test_a_failed_launch_waits_and_then_takes_its_old_place():
    cluster = DrivenCluster(job("first", 4), job("second", 4), job("third", 4))
    cluster.decide()
    (launch,) = cluster.send()
    cluster.happens(CommandFailed, 0, launch.command_id, "no memory", 30.0)
    assert cluster.state_of(0) == JobState.PENDING
    assert cluster.state.reason[0] == Reason.WAIT_BACKOFF
    assert cluster.state.backoff == {0: 30.0}
    cluster.settle()
    assert cluster.state_of(1) == JobState.RUNNING, "the others don't wait for it"
    cluster.passes(30.0)
    cluster.happens(RetryDue, 0)
    cluster.settle()
    cluster.happens(JobFinished, 1, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.state_of(0) == JobState.RUNNING, "it stands before the third as ever"
    assert cluster.state_of(2) == JobState.PENDING
    assert "launch failed: no memory" in [line for _, line in cluster.state.story(0)]


def test_a_failed_resume_leaves_the_job_suspended_with_its_state():
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDED)
    cluster.happens(ResumeRequested, 0)
    cluster.decide()
    (resume,) = cluster.send()
    home = cluster.state.home[0]
    cluster.happens(CommandFailed, 0, resume.command_id, "no", 30.0)
    assert cluster.state_of(0) == JobState.SUSPENDED
    assert cluster.state.home[0] == home
    cluster.state.validate()


def test_a_failed_suspension_means_that_the_job_ran_on():
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDING)
    suspend = cluster.state.outstanding[0]
    cluster.passes(5.0)
    cluster.happens(CommandFailed, 0, suspend.command_id, "no answer")
    assert cluster.state_of(0) == JobState.RUNNING
    assert cluster.state.service(0, cluster.now_s) == 15.0


@pytest.mark.parametrize(
    ("state", "then"),
    [(JobState.STARTING, JobState.HELD), (JobState.MIGRATING, JobState.SUSPENDED)],
    ids=["launch", "migration"],
)
def test_a_job_that_its_owner_suspended_does_not_retry_by_itself(state, then):
    cluster = cluster_with_a_job_that_is(state)
    command = cluster.state.outstanding[0]
    cluster.happens(SuspendRequested, 0)
    cluster.happens(CommandFailed, 0, command.command_id, "no", 30.0)
    assert cluster.state_of(0) == then
    assert cluster.state.reason[0] == Reason.HELD_BY_USER
    assert not cluster.state.backoff
    cluster.settle()
    assert cluster.state_of(0) == then
    cluster.happens(ResumeRequested, 0)
    cluster.settle()
    assert cluster.state_of(0) == JobState.RUNNING


@pytest.mark.parametrize(
    "state",
    [s for s in OPEN if s not in (JobState.PENDING, JobState.HELD, JobState.STOPPING)],
    ids=lambda state: state.name,
)
def test_a_lost_attempt_starts_anew_and_keeps_what_it_worked(state):
    cluster = cluster_with_a_job_that_is(state)
    held_by_owner = 0 in cluster.state.held_back
    service = cluster.state.service(0, cluster.now_s)
    cluster.happens(AttemptLost, 0, 1, "the worker is gone")
    assert cluster.state_of(0) == (JobState.HELD if held_by_owner else JobState.PENDING)
    assert cluster.state.reason[0] != Reason.NONE
    assert cluster.state.outstanding[0] is None
    assert cluster.state.home[0] is None
    assert cluster.state.service_s[0] == service
    cluster.state.validate()
    if held_by_owner:
        cluster.happens(ResumeRequested, 0)
    cluster.decide()
    (launch,) = cluster.send()
    assert isinstance(launch, Launch)
    assert launch.attempt == 2


def test_a_lost_attempt_of_a_stopping_job_is_its_end():
    cluster = cluster_with_a_job_that_is(JobState.STOPPING)
    cluster.happens(AttemptLost, 0, 1, "the worker is gone")
    assert cluster.state_of(0) == JobState.CANCELLED


def test_a_lost_node_takes_its_jobs_and_gpus_away_and_leaves_the_others_alone():
    cluster = DrivenCluster(job("wide", 6), job("small", 1), cluster="3x4")
    cluster.settle()
    assert cluster.state.held[0].nodes() == (0, 1)
    small = cluster.state.held[1]
    assert small.nodes() == (1,)
    cluster.happens(NodeLost, "node0")
    assert cluster.state_of(0) == JobState.PENDING
    assert cluster.state.held == [None, small]
    assert cluster.state.total_gpus == 8
    cluster.state.validate()
    cluster.settle()
    assert 0 not in cluster.state.held[0].nodes()
    cluster.happens(NodeJoined, "node0", 4)
    assert cluster.state.total_gpus == 12
    cluster.state.validate()


def test_a_node_that_held_a_suspended_jobs_state_takes_it_along():
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDED)
    cluster.happens(NodeLost, "node0")
    assert cluster.state_of(0) == JobState.HELD
    cluster.happens(ResumeRequested, 0)
    cluster.decide()
    (launch,) = cluster.send()
    assert isinstance(launch, Launch)


def test_a_promise_of_gpus_dies_with_their_node():
    cluster = DrivenCluster(job())
    cluster.decide()
    cluster.happens(NodeLost, "node0")
    assert cluster.send() == []
    assert cluster.state.target == [None]
    assert cluster.state.reason[0] != Reason.NONE
    cluster.state.validate()


@pytest.mark.parametrize("name", ["node7", "node0"], ids=["unknown", "lost already"])
def test_only_a_node_that_is_there_can_be_lost(name):
    cluster = DrivenCluster(cluster="1x4")
    cluster.happens(NodeLost, "node0")
    with pytest.raises(TransitionError, match=name):
        cluster.happens(NodeLost, name)


def test_a_node_joins_once():
    with pytest.raises(TransitionError, match="joined twice"):
        DrivenCluster(cluster="1x4").happens(NodeJoined, "node0", 4)


def test_a_resumption_elsewhere_is_a_migration():
    cluster = cluster_with_a_job_that_is(JobState.MIGRATING)
    command = cluster.state.outstanding[0]
    assert isinstance(command, Migrate)
    assert cluster.state.migrations[0] == 0
    cluster.confirm(command)
    assert cluster.state.migrations[0] == 1
    assert cluster.state.held[0].nodes() == (1,)


def test_a_snapshot_of_a_job_tells_all_that_is_known():
    cluster = cluster_with_a_job_that_is(JobState.RUNNING)
    cluster.happens(WorkerReported, 0, {"step": 7})
    cluster.passes(2.0)
    snapshot = cluster.state.job(0, cluster.now_s)
    assert snapshot.state == JobState.RUNNING
    assert snapshot.service_s == 12.0
    assert snapshot.first_start_s == 1.0
    assert snapshot.finish_s is None
    assert snapshot.gpus == (("node0", (0,)),)
    assert snapshot.progress == {"step": 7}
    cluster.happens(JobFinished, 0, JobState.FAILED, 3, "it raised")
    ended = cluster.state.job(0, 99.0)
    assert (ended.exit_code, ended.message, ended.finish_s) == (3, "it raised", 13.0)
    assert ended.gpus == ()
    assert cluster.state.story(0)[-1] == (13.0, "failed: it raised")


def test_the_same_events_give_the_same_state():
    cluster = DrivenCluster(job(0, 2), job(1, 4), job(2, 1))
    events = []
    apply = cluster.state.apply
    cluster.state.apply = lambda event: (events.append(event), apply(event))
    cluster.settle()
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    replayed = DrivenCluster(job(0, 2), job(1, 4), job(2, 1))
    for event in events:
        replayed.state.apply(event)
    del cluster.state.apply
    cluster.state.plan = replayed.state.plan = None
    left, right = columns(cluster), columns(replayed)
    assert left == right


def test_a_numpy_view_of_a_column_is_read_only_and_outlives_new_rows():
    from rota.model.view import View

    cluster = DrivenCluster(job(0, 2), job(1, 3))
    gpus = View(cluster.state, 0.0, cluster.policy).numpy("num_gpus")
    assert gpus.tolist() == [2, 3]
    with pytest.raises(ValueError, match="read-only"):
        gpus[0] = 9
    cluster.happens(JobSubmitted, job(2, 1))
    assert list(cluster.state.num_gpus) == [2, 3, 1]
    assert gpus.tolist() == [2, 3]


def breach_held_and_target(state):
    state.held[0] = on_node(0, 0b1)
    state.target[0] = on_node(0, 0b1)


def breach_overlap(state):
    state.target[0] = state.target[1]


def breach_count(state):
    state.idle.give(on_node(0, 0b11))


@pytest.mark.parametrize(
    ("breach", "says"),
    [
        pytest.param(breach_held_and_target, "whole gang", id="part of a gang"),
        pytest.param(breach_overlap, "overlaps", id="two jobs on one GPU"),
        pytest.param(breach_count, "free GPUs", id="a held GPU counted as free"),
    ],
)
def test_validate_finds_what_is_wrong(breach, says):
    cluster = DrivenCluster(job(0, 2), job(1, 2))
    cluster.settle()
    cluster.state.validate()
    breach(cluster.state)
    with pytest.raises(PlanError, match=says):
        cluster.state.validate()


def test_a_stop_overtakes_a_suspension_that_is_on_its_way():
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDING)
    cluster.happens(StopRequested, 0)
    (command,) = diff(cluster.state)
    assert isinstance(command, Stop)


def test_a_suspension_that_failed_is_not_sent_again_before_its_time():
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDING)
    failed = cluster.state.outstanding[0]
    cluster.happens(CommandFailed, 0, failed.command_id, "disk full", 100.0)
    assert diff(cluster.state) == []
    cluster.happens(RetryDue, 0)
    (command,) = diff(cluster.state)
    assert isinstance(command, Suspend)


def test_a_job_that_can_only_go_on_where_it_was_has_no_other_size():
    """Although its program changes its size by a restart, if it could."""
    state = ClusterState()
    state.apply(NodeJoined(0.0, "n0", 4))
    state.apply(JobSubmitted(0.0, job(1, 2, elastic=Elastic((1, 2, 4), by_restart=True))))
    assert state.sizes(0) == (1, 2, 4)
    state.home[0], state.movable[0] = on_node(0, 0b11), False
    assert state.sizes(0) == (2,)
    state.movable[0] = True
    assert state.sizes(0) == (1, 2, 4)
