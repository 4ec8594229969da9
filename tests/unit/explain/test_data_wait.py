"""The part of a step in which a job waits for data, as verdicts have it and terminals show it."""

import pytest

from rota.cli.verdict import why_text
from rota.explain.data_wait import data_wait_of
from rota.explain.why import explain
from rota.model.allocation import on_node
from rota.model.events import DecisionTaken, JobFinished, WorkerReported
from rota.model.job import JobState
from rota.testing.builders import job
from support.driven import DrivenCluster

STEPS = {"steps": 10, "step_s": 0.5, "wait_s": 0.19, "since_s": 0.5, "workers": 2}
LINE = "waits for data 38 % of each step"


class Training(DrivenCluster):
    """A job that runs, and what a test lets it report."""

    def __init__(self):
        super().__init__(job("a"), job("b"), cluster="1x1")
        self.happens(DecisionTaken, 1, "", {0: on_node(0, 1)}, {}, {}, None, None)
        for command in self.send():
            self.confirm(command)

    def tells(self, **phases):
        self.happens(WorkerReported, 0, {"at_s": 1.0, "step": 10, "phases": phases})

    def why(self, row=0):
        return why_text(explain(self.state, row, 1.0))


@pytest.fixture
def cluster():
    return Training()


def test_the_last_report_tells_it(cluster):
    cluster.tells(train=STEPS)
    figures = {"share": 0.38, "wait_s": 0.19, "step_s": 0.5, "workers": 2, "sentence": LINE}
    assert data_wait_of(cluster.state, 0) == figures
    assert explain(cluster.state, 0, 1.0)["data_wait"] == figures
    assert cluster.why().splitlines()[-1] == f"data            {LINE}"


def test_why_is_silent_on_what_is_no_more_than_a_tenth(cluster):
    for wait_s, told in ((0.05, False), (0.06, True)):
        cluster.tells(train=STEPS | {"wait_s": wait_s})
        assert ("waits for data" in cluster.why()) is told


@pytest.mark.parametrize(
    "phases",
    [
        {},
        {"evaluate": STEPS},
        {"train": STEPS | {"wait_s": None}},
        {"train": STEPS | {"wait_s": 0.75}},
    ],
    ids=["nothing told", "a validation", "no loader", "more than a step"],
)
def test_what_no_report_tells_is_not_told(cluster, phases):
    cluster.tells(**phases)
    assert data_wait_of(cluster.state, 0) is None
    assert "data" not in cluster.why()


def test_a_job_that_does_not_run_waits_for_no_data(cluster):
    cluster.tells(train=STEPS)
    assert data_wait_of(cluster.state, 1) is None
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert data_wait_of(cluster.state, 0) is None
