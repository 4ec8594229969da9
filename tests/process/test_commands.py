"""What users ask a real cluster before, during and after their jobs: plan, story, report."""

import pytest


def ids(jobs):
    return [job["id"] for job in jobs]


@pytest.fixture
def cluster(make_cluster):
    return make_cluster("smallest-first", gpus=2, min_run_time_s=0)


def test_a_plan_comes_true_and_the_story_and_the_report_tell_it(cluster):
    """The plan names whom the small job displaces; it does so; the story says for whom."""
    client = cluster.client
    wide = cluster.train("wide", "--steps", 10**6, gpus=2)
    cluster.until_step_advances("wide")
    small = {"run": "echo small", "name": "small", "workdir": str(cluster.base)}
    plan = client.plan(small)
    assert (plan["start"], plan["after"]) == ("after", [wide])
    assert [(job["id"], job["how"]) for job in plan["displaces"]] == [(wide, "suspended")]
    assert ids(client.jobs()) == [wide], "a plan submits nothing"
    job_id = client.submit(small)["id"]
    cluster.ends(job_id)
    cluster.until_step_advances("wide")
    client.cancel(wide)
    cluster.ends(wide, "CANCELLED")
    lines = [event["line"] for event in client.events(wide)]
    assert f"suspended in favour of job {job_id} (small) of {client.user}" in lines
    assert f"asked to stop by {client.user} (CANCELLED)" in lines
    told = client.report()
    assert told["ended"] == {"SUCCEEDED": 1, "CANCELLED": 1}
    assert told["all"]["preemptions"] == 1
    assert 0 < told["all"]["gpu_utilisation"] <= 1
    assert list(told["users"]) == [client.user]
    assert client.report(last_s=1e-6)["jobs"] == 0


def test_lines_of_all_ranks_are_followed_to_the_end(cluster):
    run = 'python -c \'import os; print("rank", os.environ["RANK"])\''
    job_id = cluster.submit(run, gpus=2)
    cluster.until_state(job_id, "RUNNING", "SUCCEEDED")
    followed = sorted(cluster.client.rank_logs(job_id, follow=True))
    assert followed == [(0, "rank 0"), (1, "rank 1")]
    cluster.ends(job_id)
    assert list(cluster.client.rank_logs(job_id)) == followed
