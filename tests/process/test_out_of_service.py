"""Nodes that are cordoned, drained and enabled again, on a real cluster."""

import pytest

from .conftest import Cluster, node_of, until


@pytest.fixture
def two_nodes(make_cluster):
    return make_cluster(nodes=2, gpus=1)


def closed(cluster: Cluster, node: str) -> str | None:
    """How a node is closed."""
    return next(each["closed"] for each in cluster.client.nodes() if each["name"] == node)


def restart(cluster: Cluster) -> None:
    """Kill the controller, and start another one."""
    cluster.kill_controller()
    cluster.up()


@pytest.mark.live_path("drain")
def test_a_node_is_cordoned_drained_and_enabled_across_restarts_of_the_controller(two_nodes):
    cluster = two_nodes
    job = cluster.train("job", "--steps", 10**6)
    cluster.until_step_advances("job")
    source = node_of(cluster.show(job))
    cluster.client.cordon(source)
    restart(cluster)
    assert closed(cluster, source) == "cordoned"
    cluster.until_step_advances("job")
    assert node_of(cluster.show(job)) == source

    cluster.client.drain(source)
    until(lambda: closed(cluster, source) == "drained", "the job has left")
    show = cluster.until_state(job, "RUNNING")
    assert node_of(show) != source
    assert (show["attempt"], show["migrations"]) == (1, 1)
    cluster.until_step_advances("job")

    waiting = cluster.submit("true")
    until(lambda: "NODE_CLOSED" in rules(cluster, waiting), "it waits for the drained node")
    restart(cluster)
    assert closed(cluster, source) == "drained"
    cluster.client.enable(source)
    cluster.ends(waiting)
    assert node_of(cluster.show(job)) != source
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def rules(cluster: Cluster, job: str) -> list[str]:
    """The reason codes of what is in a job's way."""
    return [blocker["rule"] for blocker in cluster.client.explain(job)["blockers"]]


def test_a_job_that_can_not_leave_goes_on_until_its_time_is_up_and_starts_anew(two_nodes):
    cluster = two_nodes
    job = cluster.submit("echo $ROTA_NODE; while [ ! -e go ]; do sleep 0.05; done")
    source = node_of(cluster.until_state(job, "RUNNING"))
    until(lambda: cluster.show(job)["suspension"] == "PROCESS", "it is known to be a plain job")
    cluster.client.drain(source)
    other = cluster.submit("true")
    cluster.ends(other)
    assert closed(cluster, source) == "draining"
    show = cluster.show(job)
    assert (show["state"], show["attempt"]) == ("RUNNING", 1)
    cluster.client.drain(source, within_s=0.01)
    until(lambda: closed(cluster, source) == "drained", "it was stopped")
    show = cluster.until_state(job, "RUNNING")
    assert (show["attempt"], node_of(show) != source) == (2, True)
    assert any("its node was drained" in line["line"] for line in show["story"])
    (cluster.base / "go").touch()
    cluster.ends(job)
