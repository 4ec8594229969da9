"""What a trial that waits while others of its search go on is told, and one that is stopped."""

from rota.explain.why import explain
from rota.model.allocation import on_node
from rota.model.events import JobFinished, MetricReported, StopRequested, TrialStopped
from rota.model.job import JobSpec, JobState, Program
from rota.model.reason import Reason
from rota.model.sweep import Report, Sweep, SweepTrial
from rota.policy.base import Policy
from support.driven import DrivenCluster

SWEEP = Sweep("digits", "val_acc")


class FirstTwo(Policy):
    """Two trials go on, and the others are behind."""

    def decide(self, view):
        what_if = view.what_if()
        for number, row in enumerate(view.active):
            if number >= 2:
                what_if.wait(row, Reason.TRIAL_BEHIND)
            elif what_if.target(row) is None:
                what_if.give(row, on_node(0, 1 << row))
        return what_if.plan()


def trial(number, sweep=SWEEP):
    program = Program("train.py", "/")
    return JobSpec(str(number), 1, 0.0, program=program, trial=SweepTrial(sweep, number))


def cluster(sweep=SWEEP):
    cluster = DrivenCluster(*(trial(n, sweep) for n in range(4)), policy=FirstTwo())
    cluster.settle()
    return cluster


def tells(cluster, row, *values):
    reports = tuple(Report(step, 0.0, value) for step, value in enumerate(values))
    cluster.happens(MetricReported, row, reports)


def behind(cluster, row):
    told = explain(cluster.state, row, cluster.now_s)
    assert told["reason"] == "TRIAL_BEHIND"
    (blocker,) = (each for each in told["blockers"] if each["rule"] == "TRIAL_BEHIND")
    return blocker, told["would_start_if"]


def test_a_trial_that_is_behind_is_told_what_it_and_the_others_have_reached():
    here = cluster()
    tells(here, 0, 0.5, 0.75, 0.7)
    tells(here, 2, 0.25)
    blocker, would = behind(here, 2)
    assert (
        blocker["have"] == "it has reached 0.25 of val_acc; job 0 has reached 0.75, 1 more goes on"
    )
    assert blocker["held_by"] == ["0", "1"]
    assert "promised more" in would
    assert behind(here, 3)[0]["have"].startswith("it has told nothing yet")


def test_of_a_metric_to_minimize_the_least_value_is_the_best():
    here = cluster(Sweep("digits", "loss", maximize=False))
    tells(here, 0, 3.0, 2.0)
    tells(here, 1, 1.5, 4.0)
    tells(here, 2, 9.0, 8.0)
    assert behind(here, 2)[0]["have"] == (
        "it has reached 8 of loss; job 1 has reached 1.5, job 0 has reached 2"
    )


def test_a_task_of_an_array_waits_for_its_place():
    here = cluster(Sweep("many", "", is_array=True))
    blocker, _ = behind(here, 3)
    assert blocker["need"] == "its place among the tasks of its array"
    assert blocker["have"] == f"jobs {', '.join(blocker['held_by'])} of the array go on"
    told = explain(here.state, 3, 0.0)
    assert told["sentence"] == "other tasks of its array come first"
    assert told["would_start_if"] == "a task of its array that goes on ended"


def test_a_trial_that_its_search_stops_says_so_while_it_ends_and_afterwards():
    here = cluster()
    why = "it is needed no longer: 2 others were better at report 3"
    for row in (0, 3):
        here.happens(TrialStopped, row, "2 others were better at report 3")
        here.happens(StopRequested, row)
    assert explain(here.state, 0, 0.0)["sentence"] == f"it is being stopped: {why}"
    here.settle()
    for row in (0, 3):
        assert here.state.job(row, 0.0).message == why
        assert explain(here.state, row, 0.0)["sentence"] == f"it ended as CANCELLED: {why}"
        assert any(line == why for _, line in here.state.story(row))


def test_one_that_ends_by_itself_meanwhile_keeps_its_own_words():
    here = cluster()
    here.happens(TrialStopped, 0, "too slow")
    here.happens(StopRequested, 0)
    here.happens(JobFinished, 0, JobState.FAILED, 1, "exit 1")
    assert here.state.job(0, 0.0).message == "exit 1"
