"""What users are told of a plan by layer."""

import pytest

from rota.explain.burst import burst_of
from rota.explain.why import explain
from rota.model.events import BurstPlanned, JobFinished
from rota.model.job import JobState
from rota.testing.builders import job
from support.driven import DrivenCluster

SENTENCES = {
    "idle parts and powers of two are told": (
        (32, (0.054, 0.03, 0.025, 0.0182), (0.0, 0.4)),
        "a step of 32 samples is predicted to take 30 ms on 2 GPUs, idle for 0 to 40 % of it; "
        "54 ms on 1 GPU, 18.2 ms on 4 GPUs",
    ),
    "a time that is not known is left out": (
        (1, (None, 2.5, None, 1.25), (0.125, 0.125)),
        "a step of 1 sample is predicted to take 2.5 s on 2 GPUs, idle for 12 % of it; "
        "1.25 s on 4 GPUs",
    ),
    "without another size there is one figure": (
        (8, (0.00125,), (0.0,)),
        "a step of 8 samples is predicted to take 1.25 ms on 1 GPU, idle for 0 % of it",
    ),
}


def planned(*plan):
    cluster = DrivenCluster(job("a", 2), cluster="1x2")
    cluster.settle()
    cluster.happens(BurstPlanned, 0, *plan)
    return cluster


@pytest.mark.parametrize("case", SENTENCES)
def test_a_plan_is_told_in_one_sentence(case):
    plan, sentence = SENTENCES[case]
    assert burst_of(planned(*plan).state, 0)["sentence"] == sentence


def test_a_verdict_has_all_figures():
    cluster = planned(32, (0.5, 0.25, None), (0.0, 0.625))
    told = explain(cluster.state, 0, 1.0)["burst"]
    del told["sentence"]
    assert told == {
        "at_s": cluster.now_s,
        "batch": 32,
        "gpus": 2,
        "step_s": 0.25,
        "idle": [0.0, 0.625],
        "by_gpus": [0.5, 0.25, None],
    }


def test_a_job_without_a_plan_and_one_that_has_ended_have_none():
    cluster = DrivenCluster(job("a", 2), cluster="1x2")
    cluster.settle()
    assert burst_of(cluster.state, 0) is None
    cluster = planned(32, (0.5, 0.25), (0.0, 0.625))
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED, 0)
    assert burst_of(cluster.state, 0) is None
