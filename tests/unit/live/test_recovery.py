import pytest

from rota.live.recovery import reconcile
from rota.model.events import AttemptLost, JobFinished, WorkerRegistered
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
