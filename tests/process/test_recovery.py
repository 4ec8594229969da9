"""Power cuts, clocks that are set, and state folders that go: what jobs keep through them."""

import json

import psutil
import pytest
from websockets import ConnectionClosed
from websockets.sync.client import connect

from rota.live.wire import VERSION

from .conftest import is_gone, until

UNTIL_ENOUGH = "until [ -e enough ]; do sleep 0.05; done"


def test_a_wall_clock_that_is_set_ends_no_job_by_its_time_limit(cluster):
    """It is set while neither the controller nor the agent is there to see it."""
    job = cluster.submit(UNTIL_ENOUGH, time_limit="30m")
    started_s = cluster.until_state(job, "RUNNING")["first_start_s"]
    for ahead_s in (7200, -7200):
        old = cluster.agent()
        cluster.kill(cluster.controller(), old)
        cluster.environment["WALL_AHEAD_S"] = str(ahead_s)
        cluster.up()
        show = cluster.until_state(job, "RUNNING")
        assert (show["attempt"], show["first_start_s"]) == (1, started_s)
        assert show["run_s"] < 1800
    (cluster.base / "enough").touch()
    show = cluster.ends(job)
    assert show["attempt"] == 1
    assert 0 < show["run_s"] < 1800
    assert show["finish_s"] - started_s < 1800
    times = [line["at_s"] for line in show["story"]]
    assert times == sorted(times)


class Interrupted:
    """Jobs of a cluster whose processes are all killed at once, again and again."""

    def __init__(self, cluster):
        """One reports, one writes checkpoints of its own, one does nothing that can be seen."""
        self.cluster = cluster
        self.reports = cluster.train("reports", "--steps", 10**6)
        save = "echo x > $ROTA_CHECKPOINT_DIR/saved; echo x > saved$ROTA_ATTEMPT"
        self.saves = cluster.submit(f"{save}; exec sleep 100000")
        self.waits = cluster.submit("exec sleep 100000")
        self.jobs = [self.reports, self.saves, self.waits]
        self.attempt = 1

    def loses_power(self, *, reboots: bool) -> None:
        """Once all have got on, nothing runs any more; and then the cluster is started again."""
        cluster = self.cluster
        cluster.until_step_advances("reports")
        told = f"nodes/*/jobs/{self.reports}/{self.attempt}/metrics.jsonl"
        until(lambda: any(cluster.folder.path.glob(told)), "its agent has heard of a step")
        until((cluster.base / f"saved{self.attempt}").exists, "it has saved")
        for job in self.jobs:
            cluster.until_state(job, "RUNNING")
        cluster.kill(*cluster.processes())
        if reboots:  # as far as can be told from what is on the disk
            for file in cluster.folder.path.glob("nodes/*/jobs/*/*/attempt.json"):
                file.write_text(json.dumps(json.loads(file.read_text()) | {"boot_id": "before"}))
            cluster.folder.clock.write_text('{"boot_id": "before", "ahead_s": 1.0}')
        cluster.up()
        self.attempt += 1


@pytest.mark.sampled(0)
def test_power_cuts_are_not_the_losses_of_jobs_and_who_gets_on_is_not_given_up(make_cluster):
    cluster = make_cluster(gpus=3)
    it = Interrupted(cluster)
    for _ in range(3):
        it.loses_power(reboots=True)
    for _ in range(2):
        it.loses_power(reboots=False)
    waits = cluster.until_state(it.waits, "RUNNING")
    assert waits["attempt"] == 6, "two losses are its own"
    it.loses_power(reboots=False)
    show = cluster.ends(it.waits, "LOST")
    assert "3 attempts in a row were lost before they got on" in show["message"]
    for job in (it.reports, it.saves):
        show = cluster.until_state(job, "RUNNING")
        assert show["attempt"] == 7
        losses = [line for line in show["story"] if "lost: its node was rebooted" in line["line"]]
        assert len(losses) == 3


@pytest.mark.parametrize("victims", ["controller", "both"])
def test_what_a_job_did_while_nobody_could_hear_of_it_is_told_later(cluster, victims):
    job = cluster.train("job", "--steps", 60, "--gate", 10)
    cluster.until_at("job", 10)
    shim = psutil.Process(cluster.pids(job)["shim"])
    cluster.kill(cluster.controller(), *([cluster.agent()] if victims == "both" else []))
    cluster.opens("job", 10)
    until(lambda: is_gone(shim), "it has ended")
    cluster.up()
    progress = cluster.ends(job)["progress"]
    assert (progress["step"], progress["total"]) == (60, 60)


def agents(cluster):
    return [p for p in cluster.processes() if "rota.live.agent" in p.cmdline()]


def test_an_agent_whose_state_folder_is_another_one_by_now_ends_with_its_jobs(cluster):
    job = cluster.submit("exec sleep 100000")
    cluster.until_state(job, "RUNNING")
    worker = psutil.Process(cluster.pids(job)["worker"])
    old = cluster.agent()
    cluster.kill_controller()
    cluster.folder.path.rename(cluster.base / "former")
    cluster.up()
    until(lambda: is_gone(worker) and is_gone(old), "the former agent has ended with its job")
    job = cluster.submit("exec sleep 100000")
    cluster.until_state(job, "RUNNING")
    (agent,) = agents(cluster)
    assert agent.pid != old.pid
    assert cluster.pids(job)["worker"] != worker.pid


def test_the_words_of_an_agent_that_makes_no_sense_leave_the_cluster_as_it_is(shared_cluster, base):
    cluster = shared_cluster
    before = cluster.client.nodes()
    hello = {
        "type": "hello",
        "wire": VERSION,
        "node": before[0]["name"],
        "num_gpus": "two",
        "kind": "cpu",
    }
    token = cluster.folder.agent_token.read_text().strip()
    url = json.loads(cluster.folder.server.read_text())["url"].replace("http", "ws", 1)
    with connect(
        f"{url}/agent/v1", additional_headers={"Authorization": f"Bearer {token}"}
    ) as agent:
        agent.send(json.dumps(hello))
        told = json.loads(agent.recv(60))
        assert (told["type"], told["error"][:16]) == ("rejected", "num_gpus: 'two' ")
        with pytest.raises(ConnectionClosed, match="1008"):
            agent.recv(60)
    assert cluster.client.nodes() == before
    cluster.ends(cluster.submit("true"))


def test_a_job_goes_on_with_the_checkpoints_of_one_that_has_ended(shared_cluster, base):
    cluster = shared_cluster
    first = cluster.submit("echo 41 > $ROTA_CHECKPOINT_DIR/count; exit 3")
    cluster.ends(first, "FAILED")
    more = "read n < $ROTA_CHECKPOINT_DIR/count; echo $((n + 1)) > $ROTA_CHECKPOINT_DIR/count"
    second = cluster.submit(more, resume_from=int(first))
    assert cluster.ends(second)["resume_from"] == first
    counts = [cluster.folder.checkpoints(job) / "count" for job in (first, second)]
    assert [count.read_text() for count in counts] == ["41\n", "42\n"]
