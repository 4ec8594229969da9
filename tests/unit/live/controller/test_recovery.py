import pytest

from rota.live.controller.dispatch import node_of
from rota.live.controller.recovery import (
    GOT_ON_S,
    NODE_CHANGED,
    attempt_lost,
    ended,
    left_elsewhere,
    losses_after,
    lost,
    node_left,
    overdue,
    reconcile,
    seats,
)
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    JobFinished,
    NodeClosed,
    NodeLost,
    StopRequested,
    WorkerRegistered,
)
from rota.model.job import JobState, Retries
from support.driven import cluster_with_a_job_that_is, cluster_with_a_job_that_leaves

ALIVE = {"type": "alive", "state": "running", "suspension": "boundary", "movable": True}
DONE = {"type": "ended", "at_s": 11.0, "exit_code": 0, "message": ""}
FAILED = DONE | {"exit_code": 3}
LOST = {"type": "lost", "error": "gone", "started": True}
GOES_ON = LOST | {"error": "out of memory with 16 samples", "goes_on": True}
S = JobState


def findings(state, report, *, losses=0, attempt=1):
    cluster = cluster_with_a_job_that_is(state)
    reports = [] if report is None else [report | {"job_id": "the-job", "attempt": attempt}]
    return reconcile(cluster.state, "node0", reports, 12.0, {0: losses}, {})


@pytest.mark.parametrize(
    ("state", "report", "event"),
    [
        (S.RUNNING, ALIVE, WorkerRegistered),
        (S.SUSPENDED, ALIVE, WorkerRegistered),
        (S.RUNNING, None, AttemptLost),
        (S.SUSPENDED, None, AttemptLost),
        (S.STARTING, None, type(None)),
        (S.RUNNING, LOST, AttemptLost),
        (S.RUNNING, DONE, JobFinished),
        (S.SUSPENDED, FAILED, JobFinished),
        (S.STOPPING, DONE, JobFinished),
    ],
)
def test_what_an_agent_has_and_what_it_should_have_are_brought_together(state, report, event):
    found = findings(state, report)
    assert [type(each) for each in found.events] == ([] if event is type(None) else [event])
    assert not found.kill
    assert bool(found.forget) == (report in (DONE, FAILED, LOST))


def test_attempts_that_no_job_should_have_are_killed():
    for state in (S.PENDING, S.HELD, S.SUCCEEDED, S.CANCELLED):
        found = findings(state, ALIVE)
        assert found.kill == [{"type": "kill", "job_id": "the-job", "attempt": 1}]
        assert not found.events
    other = findings(S.RUNNING, ALIVE, attempt=2)
    assert [message["attempt"] for message in other.kill] == [2]


def test_a_stopped_job_ends_with_what_it_was_stopped_for():
    (event,) = findings(S.STOPPING, FAILED).events
    assert (event.outcome, event.exit_code) == (S.CANCELLED, 3)


def test_a_job_over_its_time_limit_ends_with_the_limit():
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    cluster.state.spec[0] = cluster.state.spec[0]._replace(time_limit_s=90.0)
    cluster.happens(StopRequested, 0, S.TIMEOUT)
    report = FAILED | {"job_id": "the-job", "attempt": 1, "message": "it ended so"}
    (event,) = reconcile(cluster.state, "node0", [report], 12.0, {}, {}).events
    told = "its time limit of 1m30s was over; it ended so"
    assert (event.outcome, event.message) == (S.TIMEOUT, told)


def test_a_job_that_is_lost_again_and_again_is_given_up():
    assert isinstance(findings(S.RUNNING, LOST, losses=1).events[0], AttemptLost)
    (event,) = findings(S.RUNNING, LOST, losses=2).events
    assert event.outcome == S.LOST
    assert event.message == "gone; 3 attempts in a row were lost before they got on"


@pytest.mark.parametrize(
    "more",
    [
        {"progress": {"step": 1, "at_s": 1.0}},
        {"checkpointed": True},
        {"at_s": 1.0 + GOT_ON_S},
        {"rebooted": True},
    ],
)
def test_a_job_that_gets_on_or_whose_machine_is_rebooted_is_not_given_up(more):
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    event = lost(cluster.state, 0, LOST | more, 1000.0, {0: 2})
    assert isinstance(event, AttemptLost)
    assert losses_after(2, event) == (2 if "rebooted" in more else 0)


@pytest.mark.parametrize(
    "more", [{}, {"progress": {"step": 0, "at_s": 1.0}}, {"progress": {"at_s": 1.0}}]
)
def test_a_job_that_only_begins_has_not_got_on(more):
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    event = lost(cluster.state, 0, LOST | {"checkpointed": False} | more, 1000.0, {0: 1})
    assert losses_after(1, event) == 2


@pytest.mark.parametrize(
    ("more", "ran_s"),
    [
        ({}, 0.0),
        ({"at_s": 6.0}, 5.0),
        ({"at_s": 2000.0}, 999.0),
        ({"at_s": 0.5}, 0.0),
        ({"progress": {"step": 3, "at_s": 8.0}}, 7.0),
        ({"progress": {"at_s": 8.0, "cpu_at_s": 9.0}}, 8.0),
    ],
)
def test_an_attempt_ran_until_it_was_seen_to_end_or_was_last_heard_of(more, ran_s):
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    event = lost(cluster.state, 0, LOST | more, 1000.0, {})
    assert event.lost_s == ran_s
    cluster.state.apply(event)
    assert cluster.state.service(0, 1000.0) == ran_s


def test_a_job_that_goes_on_with_smaller_batches_has_lost_nothing_and_is_not_given_up():
    (event,) = findings(S.RUNNING, GOES_ON, losses=2).events
    assert (event.error, event.lost_s) == ("out of memory with 16 samples", 0.0)


@pytest.mark.parametrize(
    ("state", "ran_s"), [(S.STARTING, 0.0), (S.RUNNING, 13.0), (S.SUSPENDED, 10.0)]
)
def test_all_that_a_lost_attempt_did_is_lost_work(state, ran_s):
    cluster = cluster_with_a_job_that_is(state)
    cluster.passes(3.0)
    event = attempt_lost(cluster.state, 0, cluster.now_s, "gone")
    assert event.lost_s == ran_s
    cluster.state.apply(event)
    assert cluster.state.lost_s[0] == cluster.state.service_s[0] == ran_s
    assert cluster.state.work(0, cluster.now_s) == 0.0


def test_a_job_lost_on_its_way_to_a_boundary_had_gone_on_until_then():
    cluster = cluster_with_a_job_that_is(S.SUSPENDING)
    cluster.passes(3.0)
    event = attempt_lost(cluster.state, 0, cluster.now_s, "gone")
    cluster.state.apply(event)
    assert event.lost_s == cluster.state.service_s[0] == 13.0


def test_a_second_loss_takes_only_what_was_done_since_the_first():
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    cluster.state.apply(attempt_lost(cluster.state, 0, cluster.now_s, "gone"))
    cluster.settle()
    cluster.passes(5.0)
    event = attempt_lost(cluster.state, 0, cluster.now_s, "gone")
    assert event.lost_s == 5.0
    cluster.state.apply(event)
    assert cluster.state.lost_s[0] == cluster.state.service_s[0] == 15.0


def test_a_node_with_other_devices_loses_what_ran_there_and_that_work_is_counted():
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    first, gone = node_left(cluster.state, "node0", cluster.now_s, NODE_CHANGED)
    assert first == AttemptLost(cluster.now_s, 0, 1, NODE_CHANGED, 10.0)
    assert gone == NodeLost(cluster.now_s, "node0")
    for event in (first, gone):
        cluster.state.apply(event)
    cluster.state.validate()
    assert (cluster.state_of(0), cluster.state.lost_s[0]) == (S.PENDING, 10.0)
    assert node_left(cluster.state, "node1", cluster.now_s, "gone") == [
        NodeLost(cluster.now_s, "node1")
    ]


@pytest.mark.parametrize(("lost", "other"), [("node0", "node1"), ("node1", "node0")])
def test_a_job_that_was_moving_leaves_the_node_that_stays(lost, other):
    cluster = cluster_with_a_job_that_is(S.MIGRATING)
    drop = {"type": "drop", "job_id": "the-job", "attempt": 1}
    assert left_elsewhere(cluster.state, lost) == [(other, drop)]


def test_a_job_that_does_not_move_is_on_no_other_node():
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    assert left_elsewhere(cluster.state, "node0") == []


def moving(node, *reports, last_node="node0"):
    """What follows when this node says hello while the job moves from node0 to node1."""
    cluster = cluster_with_a_job_that_is(S.MIGRATING)
    named = [report | {"job_id": "the-job", "attempt": 1} for report in reports]
    found = reconcile(cluster.state, node, named, 12.0, {}, {(0, 1): last_node})
    for event in found.events:
        cluster.state.apply(event)
    cluster.state.validate()
    return cluster, found


ARRIVING = {"type": "arriving"}


@pytest.mark.parametrize(
    ("node", "reports"),
    [("node0", [ALIVE]), ("node1", [ALIVE]), ("node1", [ARRIVING]), ("node1", []), ("node0", [])],
)
def test_both_nodes_may_have_a_job_that_moves_or_not_yet_or_no_more(node, reports):
    cluster, found = moving(node, *reports)
    assert not found.kill
    assert not found.drop
    assert cluster.state_of(0) == S.MIGRATING


def test_a_job_that_ended_before_it_was_known_to_have_come_has_come_there_first():
    cluster, found = moving("node1", DONE)
    assert [type(event).__name__ for event in found.events] == ["JobResumed", "JobFinished"]
    assert cluster.state.migrations[0] == 1
    assert cluster.state_of(0).is_final
    assert found.left == [("node0", {"type": "drop", "job_id": "the-job", "attempt": 1})]


def test_a_job_whose_processes_ended_before_it_left_has_not_come():
    cluster, found = moving("node0", DONE)
    assert isinstance(found.events[0], JobFinished)
    assert cluster.state.migrations[0] == 0
    assert [name for name, _ in found.left] == ["node1"]


def test_what_a_job_left_behind_is_dropped_and_not_killed():
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    report = ALIVE | {"job_id": "the-job", "attempt": 1}
    found = reconcile(cluster.state, "node1", [report], 12.0, {}, {(0, 1): "node0"})
    assert ([m["type"] for m in found.drop], found.kill) == (["drop"], [])
    arriving = ARRIVING | {"job_id": "the-job", "attempt": 1}
    found = reconcile(cluster.state, "node1", [arriving], 12.0, {}, {(0, 1): "node0"})
    assert ([m["type"] for m in found.kill], found.drop) == (["kill"], [])


def test_a_job_that_is_stopped_while_it_moves_ends_where_its_state_lies():
    cluster = cluster_with_a_job_that_is(S.MIGRATING)
    cluster.happens(StopRequested, 0)
    (stop,) = cluster.send()
    assert node_of(cluster.state, stop) == "node0"
    report = ALIVE | {"job_id": "the-job", "attempt": 1}
    for node, kept in (("node0", True), ("node1", False)):
        found = reconcile(cluster.state, node, [report], 12.0, {}, {(0, 1): "node0"})
        assert bool(found.drop) != kept
        assert not found.kill


def leaving(node, *reports):
    """What follows when this node says hello while the job is being parked on node1."""
    cluster = cluster_with_a_job_that_leaves()
    assert seats(cluster.state, 0) == (0, 1)
    named = [report | {"job_id": "the-job", "attempt": 1} for report in reports]
    found = reconcile(cluster.state, node, named, 12.0, {}, {(0, 1): "node0"})
    for event in found.events:
        cluster.state.apply(event)
    cluster.state.validate()
    return cluster, found


@pytest.mark.parametrize(
    ("node", "reports"),
    [("node0", [ALIVE]), ("node1", [ALIVE]), ("node1", [ARRIVING]), ("node1", []), ("node0", [])],
)
def test_both_nodes_may_have_a_job_that_is_parked_or_not_yet_or_no_more(node, reports):
    cluster, found = leaving(node, *reports)
    assert not found.kill
    assert not found.drop
    assert cluster.state_of(0) == S.MIGRATING


@pytest.mark.parametrize("report", [DONE, LOST])
def test_a_copy_that_is_no_more_where_it_was_sent_takes_nothing_from_the_job(report):
    cluster, found = leaving("node1", report)
    assert [type(event) for event in found.events] == [CommandFailed]
    assert [message["type"] for message in found.forget] == ["forget"]
    assert found.left == []
    assert (cluster.state_of(0), cluster.state.attempt[0]) == (S.SUSPENDED, 1)
    assert cluster.state.home[0].nodes() == (0,)


def test_a_job_that_ends_where_its_state_lies_leaves_no_copy():
    cluster, found = leaving("node0", FAILED)
    assert cluster.state_of(0) == S.FAILED
    assert [name for name, _ in found.left] == ["node1"]


def test_a_copy_is_lost_with_the_node_that_has_the_state_but_not_the_state_with_a_copy():
    cluster = cluster_with_a_job_that_leaves()
    drop = {"type": "drop", "job_id": "the-job", "attempt": 1}
    assert left_elsewhere(cluster.state, "node0") == [("node1", drop)]
    assert left_elsewhere(cluster.state, "node1") == []
    gone = node_left(cluster.state, "node1", 12.0, "gone")
    assert gone == [NodeLost(12.0, "node1")]


def test_a_job_that_is_being_parked_is_not_ended_with_its_time():
    cluster = cluster_with_a_job_that_leaves()
    cluster.happens(NodeClosed, "node0", True, 11.0)
    assert overdue(cluster.state, 12.0) == []
    command = cluster.state.outstanding[0]
    cluster.happens(CommandFailed, 0, command.command_id, "no room", 20.0)
    assert overdue(cluster.state, 12.0) == [(0, 0)]


def failed_job(retries, **more):
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    cluster.state.spec[0] = cluster.state.spec[0]._replace(retries=retries)
    return cluster, ended(cluster.state, 0, FAILED | more, 12.0, {})


def test_a_job_that_fails_starts_anew_as_often_as_its_retries_say():
    cluster, event = failed_job(Retries(2))
    assert (event.error, event.exit_code) == ("exit code 3", 3)
    assert (event.retry_at_s, event.lost_s) == (21.0, 10.0)
    cluster.state.retried[0] = 1
    assert ended(cluster.state, 0, FAILED, 12.0, {}).retry_at_s == 31.0
    cluster.state.retried[0] = 2
    assert ended(cluster.state, 0, FAILED, 12.0, {}).outcome == S.FAILED


@pytest.mark.parametrize(
    ("cause", "more", "is_retried"),
    [
        ("failed", {}, True),
        ("exit-3", {}, True),
        ("exit-4", {}, False),
        ("exit-137", {"exit_code": -9}, True),
        ("out_of_memory", {}, False),
        ("out_of_memory", {"out_of_memory": True}, True),
        ("node_failure", {}, False),
    ],
)
def test_a_job_starts_anew_only_after_failures_that_its_retries_name(cause, more, is_retried):
    _, event = failed_job(Retries(1, (cause,)), **more)
    assert isinstance(event, AttemptLost) == is_retried


def test_a_success_and_a_stop_are_never_retried():
    _, event = failed_job(Retries(1), exit_code=0)
    assert event.outcome == S.SUCCEEDED
    cluster = cluster_with_a_job_that_is(S.STOPPING)
    cluster.state.spec[0] = cluster.state.spec[0]._replace(retries=Retries(1))
    assert ended(cluster.state, 0, FAILED, 12.0, {}).outcome == S.CANCELLED


def test_a_job_that_would_be_given_up_is_retried_and_its_losses_count_anew():
    cluster = cluster_with_a_job_that_is(S.RUNNING)
    cluster.state.spec[0] = cluster.state.spec[0]._replace(retries=Retries(1))
    event = lost(cluster.state, 0, LOST, 12.0, {0: 2})
    assert event.retry_at_s == pytest.approx(event.at_s + 10.0)
    assert losses_after(3, event) == 0
