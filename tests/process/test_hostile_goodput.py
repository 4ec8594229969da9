"""Jobs that report nonsense of their steps, noise and batches: pollux goes on for all others."""

import json
import shlex

import pytest

from .conftest import PROMPT, SCRIPTS, Cluster, own_base, until

LIMITS = {"initial": 8, "most": 256, "most_per_gpu": 32}
BATCH = {"size": 8, "gpus": 1, "per_gpu": 8, "accumulation": 0}
SOUND = LIMITS | BATCH | {"scaled_steps": 1.0, "epoch_samples": 1000, "sqr": 1.0, "var": 10.0}
SOUND |= {"steps": 10, "step_s": 0.2, "gradient_s": 0.15}
REPORT = {"type": "report", "step": 1, "total": 50, "metrics": {}, "at_s": "now"}
NO_NUMBERS = [
    {"step_s": float("nan"), "var": float("inf"), "steps": "x"},
    {"sqr": -1.0, "steps": -1},
]
NO_STEPS = [
    {"step_s": 0, "gradient_s": 0},
    {"step_s": 1e299},
    {"per_gpu": 1 << 61, "gpus": 1 << 61, "accumulation": 1 << 61},
    {"sqr": 9e299, "var": 9e299, "scaled_steps": 9e299},
]
WITHOUT_END = [{"size": 1e297}]  # samples in each of its steps that are left


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    base = tmp_path_factory.mktemp("planned")
    cluster = Cluster(base, "pollux", 3, objective="length", interval_s=0.5)
    cluster.environment = PROMPT | {"BOUNDARY_S": "1"}
    try:
        yield cluster.up()
    finally:
        cluster.close()


def reports(cluster, number, adaptation):
    """Submit a job that says this to its agent, and trains nothing."""
    answers = {"start": [REPORT | {"adaptation": adaptation}]}
    out = cluster.base / f"heard{number}"
    words = ["python", SCRIPTS / "hostile.py", out, "{}", json.dumps(answers)]
    return cluster.submit(
        shlex.join(map(str, words)),
        resources={"gpus": "1..2"},
        batch={"mode": "adapt", "max_global": 256},
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "wrong", [NO_NUMBERS, NO_STEPS, WITHOUT_END], ids=["no-numbers", "no-steps", "without-end"]
)
def test_decisions_go_on_whatever_jobs_report_of_their_training(planned, request, wrong):
    with own_base(planned, request):
        told = [SOUND, *(SOUND | each for each in wrong)]
        jobs = [reports(planned, number, each) for number, each in enumerate(told)]
        if wrong is not NO_NUMBERS:  # which come nowhere
            until(lambda: "adaptation" in planned.show(jobs[-1])["progress"], "it has told")
        assert planned.ends(planned.submit("true"))["attempt"] == 1
        assert {planned.show(job)["attempt"] for job in jobs} <= {0, 1}
    assert "policy pollux failed" not in (planned.base / "up.log").read_text()
