"""Arrays on a real cluster: one submission, many jobs."""

import subprocess
import sys
from itertools import pairwise

import pytest

from .conftest import until

pytestmark = pytest.mark.process


def rota(cluster, *words):
    command = [sys.executable, "-m", "rota.cli.main", *words]
    environment = {"ROTA_HOME": str(cluster.folder.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=cluster.base, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_an_array_runs_a_job_for_each_index_and_no_more_at_once_than_it_may(cluster):
    run = "echo {index} $ROTA_ARRAY_INDEX >> ran; test {index} != 3"
    code, out, err = rota(cluster, "run", "--name", "many", "--array", "1-3%1", "--wait", "--", run)
    assert (code, out) == (4, "many\n"), err
    assert "array many: 3 tasks, 1 at once" in err
    assert "3 trials have ended, 1 of them failed" in err
    assert (cluster.base / "ran").read_text() == "1 1\n2 2\n3 3\n"
    jobs = cluster.client.jobs(everything=True)
    assert [(job["name"], job["state"]) for job in jobs] == [
        ("many.1", "SUCCEEDED"),
        ("many.2", "SUCCEEDED"),
        ("many.3", "FAILED"),
    ]
    ends = [cluster.show(job["id"]) for job in jobs]
    for one, next_one in pairwise(ends):
        assert one["finish_s"] <= next_one["submit_s"]


def test_an_array_is_cancelled_by_its_name_and_jobs_by_a_range_of_ids(cluster):
    assert rota(cluster, "run", "--name", "many", "--array", "0-3", "sleep 1000")[0] == 0
    until(lambda: len(cluster.client.jobs()) == 4, "all of its jobs are there")
    code, out, _ = rota(cluster, "cancel", "[2-3]")
    assert (code, out.count("\n")) == (0, 2)
    cluster.ends("2", "CANCELLED")
    cluster.ends("3", "CANCELLED")
    assert rota(cluster, "cancel", "many")[0] == 0
    for job in ("1", "4"):
        cluster.ends(job, "CANCELLED")
