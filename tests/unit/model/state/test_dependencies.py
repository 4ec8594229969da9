"""Jobs that wait for the ends of others."""

import pytest

from rota.errors import TransitionError
from rota.model.events import (
    JobFinished,
    JobSubmitted,
    ResumeRequested,
    StopRequested,
    SuspendRequested,
)
from rota.model.job import Dependency, JobState
from rota.model.reason import Reason
from rota.testing.builders import job
from support.driven import DrivenCluster


def waiting(*whens, gpus=4):
    """A cluster with a job for each of these, and a last one that waits for all of them."""
    first = [job(f"first{n}") for n in range(len(whens))]
    awaited = tuple(Dependency(f"first{n}", when) for n, when in enumerate(whens))
    last = job("last")._replace(depends_on=awaited)
    cluster = DrivenCluster(*first, last, cluster=f"1x{gpus}")
    cluster.settle()
    cluster.passes(1.0)
    return cluster


def standing(cluster):
    row = len(cluster.state.spec) - 1
    return cluster.state_of(row), Reason(cluster.state.reason[row]).name


@pytest.mark.parametrize(
    ("when", "outcome", "is_met"),
    [
        ("succeeded", JobState.SUCCEEDED, True),
        ("succeeded", JobState.FAILED, False),
        ("succeeded", JobState.CANCELLED, False),
        ("failed", JobState.FAILED, True),
        ("failed", JobState.TIMEOUT, True),
        ("failed", JobState.LOST, True),
        ("failed", JobState.SUCCEEDED, False),
        ("failed", JobState.CANCELLED, False),
        *(("ended", state, True) for state in JobState if state.is_final),
    ],
)
def test_a_job_starts_once_another_one_has_ended_as_it_must(when, outcome, is_met):
    cluster = waiting(when)
    assert standing(cluster) == (JobState.PENDING, "WAIT_DEPENDENCY")
    assert 1 not in cluster.state.active
    cluster.happens(JobFinished, 0, outcome)
    cluster.settle()
    if is_met:
        assert standing(cluster) == (JobState.RUNNING, "NONE")
    else:
        assert standing(cluster) == (JobState.PENDING, "WAIT_DEPENDENCY")
        assert cluster.state.unmeetable[1].startswith(f"job first0 ended as {outcome.name}, and ")
    cluster.state.validate()


def test_it_waits_for_all_of_them():
    cluster = waiting("succeeded", "ended", "succeeded")
    for row in (1, 0):
        cluster.happens(JobFinished, row, JobState.SUCCEEDED)
        assert standing(cluster)[1] == "WAIT_DEPENDENCY"
    cluster.happens(JobFinished, 2, JobState.SUCCEEDED)
    cluster.settle()
    assert standing(cluster)[0] == JobState.RUNNING
    lines = [line for _, line in cluster.state.story(3)]
    assert lines[1] == "all jobs that it depends on have ended"


def test_what_has_ended_already_is_not_waited_for():
    cluster = waiting("succeeded")
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    late = job("late")._replace(depends_on=(Dependency("first0"),))
    cluster.happens(JobSubmitted, late)
    cluster.settle()
    assert standing(cluster)[0] == JobState.RUNNING


def test_a_job_of_before_keeps_its_place_while_it_waits():
    cluster = waiting("succeeded", gpus=1)
    cluster.happens(JobSubmitted, job("younger"))
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.state_of(1) == JobState.RUNNING
    assert cluster.state_of(2) == JobState.PENDING


def test_its_owner_may_suspend_and_resume_and_cancel_it_meanwhile():
    cluster = waiting("succeeded")
    cluster.happens(SuspendRequested, 1)
    assert standing(cluster) == (JobState.HELD, "HELD_BY_USER")
    cluster.happens(ResumeRequested, 1)
    assert standing(cluster) == (JobState.PENDING, "WAIT_DEPENDENCY")
    cluster.happens(SuspendRequested, 1)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert standing(cluster) == (JobState.HELD, "HELD_BY_USER")
    cluster.happens(ResumeRequested, 1)
    cluster.settle()
    assert standing(cluster)[0] == JobState.RUNNING
    other = waiting("succeeded")
    other.happens(StopRequested, 1)
    other.happens(JobFinished, 0, JobState.SUCCEEDED)
    other.settle()
    assert standing(other)[0] == JobState.CANCELLED


def test_the_end_of_one_that_can_never_start_is_told_to_those_that_wait_for_it():
    cluster = waiting("succeeded")
    cluster.happens(JobSubmitted, job("third")._replace(depends_on=(Dependency("last"),)))
    cluster.happens(JobFinished, 0, JobState.FAILED)
    assert list(cluster.state.unmeetable) == [1]
    why = cluster.state.unmeetable[1]
    cluster.happens(JobFinished, 1, JobState.CANCELLED, None, why)
    assert cluster.state.unmeetable == {
        2: "job last ended as CANCELLED, and this job waits for its success"
    }


def test_a_job_can_depend_only_on_those_before_it():
    cluster = waiting()
    for name in ("nobody", "late"):
        with pytest.raises(TransitionError, match="did not come before it"):
            cluster.happens(JobSubmitted, job("late")._replace(depends_on=(Dependency(name),)))


def test_what_happens_on_a_copy_leaves_the_state_as_it_was():
    cluster = waiting("succeeded", "ended")
    twin = cluster.state.copy()
    for row in (0, 1):
        twin.apply(JobFinished(1.0, row, JobState.SUCCEEDED))
    assert 2 in twin.active
    assert cluster.state.waits_for == {2: {0: ["succeeded"], 1: ["ended"]}}
    assert cluster.state.dependents == {0: [2], 1: [2]}
