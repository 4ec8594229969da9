"""The worth of CPU cores to a job, as verdicts have it and terminals show it."""

import pytest

from rota.cli.verdict import why_text
from rota.explain.cpus import cpus_of
from rota.explain.why import explain
from rota.model.allocation import on_node
from rota.model.events import DecisionTaken, JobFinished, WorkerReported
from rota.model.job import JobState
from rota.model.notes import Notes
from rota.testing.builders import job
from support.driven import DrivenCluster

WORTH = "one core more would make it 21 % faster; cores are worth more to jobs 3, 7"
STEPS = {"steps": 10, "step_s": 0.5, "since_s": 0.5, "workers": 2}


@pytest.fixture
def cluster():
    """Job a runs with two cores of a stage that told their worth; job b waits."""
    cluster = DrivenCluster(job("a"), job("b"), cluster="1x1")
    notes = Notes(why_cpus={0: WORTH, 1: WORTH})
    plan = ({0: on_node(0, 1)}, {}, {}, None, None, notes, {0: 2000})
    cluster.happens(DecisionTaken, 1, "", *plan)
    for command in cluster.send():
        cluster.confirm(command)
    return cluster


def waits(cluster, wait_s):
    phases = {"train": STEPS | {"wait_s": wait_s}}
    cluster.happens(WorkerReported, 0, {"at_s": 1.0, "step": 10, "phases": phases})


@pytest.mark.parametrize(
    ("wait_s", "before"), [(None, ""), (0.05, ""), (0.19, "waits for data 38 % of each step; ")]
)
def test_the_worth_of_a_core_follows_the_wait_for_data(cluster, wait_s, before):
    waits(cluster, wait_s)
    verdict = explain(cluster.state, 0, 1.0)
    assert verdict["cpus"] == f"it has 2 CPU cores; {before}{WORTH}"
    text = " ".join(why_text(verdict).split())
    assert f"CPU cores it has 2 CPU cores; {before}{WORTH}" in text
    assert text.count("waits for data") == bool(before)


def test_a_job_that_waits_has_no_cores_to_tell_of(cluster):
    assert cpus_of(cluster.state, 1) is None


def test_a_job_that_has_ended_has_no_cores_to_tell_of(cluster):
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert cpus_of(cluster.state, 0) is None
