import pytest

from rota.live.recovery import NODE_CHANGED, attempt_lost, node_changed, reconcile
from rota.model.events import AttemptLost, JobFinished, NodeLost, WorkerRegistered
from rota.model.job import JobState
from rota.testing.driven import cluster_with_a_job_that_is

ALIVE = {"type": "alive", "state": "running", "suspension": "boundary", "movable": True}
DONE = {"type": "ended", "at_s": 11.0, "exit_code": 0, "message": ""}
FAILED = DONE | {"exit_code": 3}
LOST = {"type": "lost", "error": "gone", "started": True}
S = JobState


def findings(state, report, *, losses=0, attempt=1):
    cluster = cluster_with_a_job_that_is(state)
    reports = [] if report is None else [report | {"job_id": "the-job", "attempt": attempt}]
    return reconcile(cluster.state, "node0", reports, 12.0, {0: losses})


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


def test_a_job_that_is_lost_again_and_again_is_given_up():
    assert isinstance(findings(S.RUNNING, LOST, losses=1).events[0], AttemptLost)
    (event,) = findings(S.RUNNING, LOST, losses=2).events
    assert event.outcome == S.LOST


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
    lost, gone = node_changed(cluster.state, "node0", cluster.now_s)
    assert lost == AttemptLost(cluster.now_s, 0, 1, NODE_CHANGED, 10.0)
    assert gone == NodeLost(cluster.now_s, "node0")
    for event in (lost, gone):
        cluster.state.apply(event)
    cluster.state.validate()
    assert (cluster.state_of(0), cluster.state.lost_s[0]) == (S.PENDING, 10.0)
    assert node_changed(cluster.state, "node1", cluster.now_s) == [NodeLost(cluster.now_s, "node1")]
