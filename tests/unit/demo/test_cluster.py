"""A run of the demo that takes too long is cut off; a job that fails ends it."""

import contextlib

import pytest

from rota.demo import cluster
from rota.demo.cluster import Run, run_workload
from rota.errors import RotaError
from rota.report.timeline import Timeline


class Slow:
    """A cluster on which the first job ends at once, and another one never does."""

    def __init__(self, first="SUCCEEDED"):
        self.first = first
        self.states = {}
        self.cancelled = []

    def submit(self, fields):
        job = str(len(self.states) + 2)  # 1 is the warm-up
        self.states[job] = "RUNNING" if self.states else self.first
        return {"id": job}

    def jobs(self, everything):
        return [{"id": job, "name": job, "state": state} for job, state in self.states.items()]

    def cancel(self, job):
        self.cancelled.append(job)
        self.states[job] = "CANCELLED"

    def logs(self, job, tail):
        return ["no module named torch"]


@pytest.fixture
def run_on(monkeypatch, tmp_path):
    def run(client, until_s):
        cluster_of_it = contextlib.nullcontext(client)
        monkeypatch.setattr(cluster, "private_cluster", lambda *_: cluster_of_it)
        monkeypatch.setattr(cluster, "read_run", lambda *_: Run(Timeline(()), []))
        monkeypatch.setattr(cluster, "LEAST_LIVE_S", 0.0)
        jobs = [(0.0, {}), (0.0, {})]
        settings = {"policy": "gandiva", "settings": {}, "gpus": 2}
        return run_workload(tmp_path, jobs, **settings, watch=lambda _: None, until_s=until_s)

    return run


def test_jobs_that_have_not_ended_by_then_are_cancelled_and_named(run_on):
    client = Slow()
    assert run_on(client, until_s=0.0).cut_off == {1}
    assert client.cancelled == ["3"]


def test_a_job_that_fails_ends_the_demo_with_its_last_words(run_on):
    with pytest.raises(RotaError, match="job 2: FAILED; its last words: no module named torch"):
        run_on(Slow(first="FAILED"), until_s=0.0)
