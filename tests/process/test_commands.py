"""What users ask a real cluster before, during and after their jobs: plan, story, report."""

from array import array

import pytest

from rota.errors import NotFoundError

from .conftest import until


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
    lines = [event["line"] for event in client.story(wide)]
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
    assert sorted(cluster.client.rank_logs(job_id)) == followed


def until_file(name):
    return f"until [ -e {name} ]; do sleep 0.02; done; "


def test_lines_and_the_story_come_in_the_order_of_their_times(cluster):
    client = cluster.client
    run = until_file("go") + "echo first; " + until_file("more") + "echo second"
    job_id = cluster.submit(run)
    cluster.until_state(job_id, "RUNNING")
    (cluster.base / "go").touch()
    times = cluster.folder.attempt(cluster.node_names()[0], job_id, 1) / "rank0.times"
    until(lambda: times.stat().st_size, "its agent has seen the first line")
    client.suspend(job_id)
    cluster.until_state(job_id, "SUSPENDED")
    client.resume(job_id)
    cluster.until_state(job_id, "RUNNING")
    (cluster.base / "more").touch()
    cluster.ends(job_id)
    size = times.with_suffix(".log").stat().st_size
    until(lambda: array("d", times.read_bytes())[-1] == size, "its agent has seen the last line")
    told = list(client.log_lines(job_id, system=True, follow=True))
    marks = ["started", "first", f"suspended by {client.user}", "resumed", "second", "succeeded"]
    assert [line.text for line in told if line.text in marks] == marks
    times_s = [line.at_s for line in told]
    assert times_s == sorted(times_s)
    (second,) = [line for line in told if line.text == "second"]
    assert "".join(client.logs(job_id, since_s=second.at_s)) == "second\n"


def test_a_job_is_cleaned_up_although_agent_and_controller_are_killed(cluster):
    client = cluster.client
    job_id = cluster.submit("echo x; echo w > $ROTA_CHECKPOINT_DIR/weights")
    cluster.ends(job_id)
    rest = cluster.folder.path / "checkpoints" / "cleaned" / "7.1"
    rest.mkdir(parents=True)  # left by an agent that was killed amid a removal
    cluster.kill(cluster.agent())
    assert client.clean(job_id)["num_bytes"] > 0
    until(lambda: not rest.exists(), "the next agent has removed the rest")
    left = [
        *cluster.folder.path.glob("nodes/*/jobs/*"),
        *cluster.folder.path.glob("checkpoints/[0-9]*"),
    ]
    assert left == []
    cluster.kill_controller()
    cluster.up()
    with pytest.raises(NotFoundError, match=f"removed by {client.user} with `rota clean`"):
        list(client.logs(job_id))
    assert client.clean(job_id)["num_bytes"] == 0
