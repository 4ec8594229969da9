"""Several nodes on one machine: an agent, a zygote and devices each, and one controller."""

import socket

import pytest

from rota.errors import NeverFitsError

from .conftest import Cluster, is_gone, node_of, until

HOST = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())
TYPES = ("--gpu-types", "a100,t4,t4")


def greeting(cluster: Cluster) -> str:
    """What the last ``rota up`` said."""
    return (cluster.base / "up.log").read_text().rpartition("rota is up")[2]


@pytest.fixture
def three_nodes(make_cluster):
    return make_cluster(nodes=3, gpus=1, options=TYPES)


def test_three_nodes_have_names_types_and_jobs_of_their_own(three_nodes):
    cluster = three_nodes
    names = [f"{HOST}-{i}" for i in range(3)]
    nodes = {node["name"]: node for node in cluster.client.nodes()}
    assert sorted(nodes) == names
    assert [nodes[name]["gpu_type"] for name in names] == ["a100", "t4", "t4"]
    assert [nodes[name]["num_gpus"] for name in names] == [1, 1, 1]
    run = "echo $ROTA_NODE $ROTA_CHECKPOINT_DIR; while [ ! -e go ]; do sleep 0.01; done"
    jobs = [cluster.submit(run) for _ in range(3)]
    shows = [cluster.until_state(job, "RUNNING") for job in jobs]
    assert sorted(map(node_of, shows)) == names
    holders = {node["name"]: node["jobs"] for node in cluster.client.nodes()}
    assert holders == {node_of(show): [show["id"]] for show in shows}
    (cluster.base / "go").touch()
    for job, show in zip(jobs, shows, strict=True):
        cluster.ends(job)
        said = "".join(cluster.client.logs(job))
        assert said == f"{node_of(show)} {cluster.folder.checkpoints(job)}\n"


def test_a_killed_agent_and_what_it_looks_after_are_no_matter_to_the_other_nodes(three_nodes):
    cluster = three_nodes
    jobs = [cluster.train(f"job{i}", "--steps", 10**6) for i in range(3)]
    for i in range(3):
        cluster.until_step_advances(f"job{i}")
    nodes = [node_of(cluster.show(job)) for job in jobs]
    agents = [cluster.agent_of(node) for node in nodes]
    cluster.kill(agents[0])
    until(lambda: cluster.agent_of(nodes[0]).pid != agents[0].pid, "there is another agent")
    assert [cluster.agent_of(node).pid for node in nodes[1:]] == [a.pid for a in agents[1:]]
    until(lambda: all(n["connected"] for n in cluster.client.nodes()), "all are connected")
    cluster.kill(*cluster.of_job(jobs[1]))
    cluster.ends(jobs[1], "FAILED")
    for i in (0, 2):
        cluster.until_step_advances(f"job{i}")
        assert cluster.show(jobs[i])["attempt"] == 1
        assert len({line["pid"] for line in cluster.lines(f"job{i}")}) == 1
        cluster.client.cancel(jobs[i])
        cluster.ends(jobs[i], "CANCELLED")


def test_a_restarted_controller_takes_all_nodes_and_their_jobs_over(three_nodes):
    cluster = three_nodes
    jobs = [cluster.train(f"job{i}", "--steps", 10**6) for i in range(3)]
    for i in range(3):
        cluster.until_step_advances(f"job{i}")
    nodes = [node_of(cluster.show(job)) for job in jobs]
    agents = [cluster.agent_of(node).pid for node in cluster.node_names()]
    cluster.kill_controller()
    cluster.up()
    assert [cluster.agent_of(node).pid for node in cluster.node_names()] == agents
    assert "taken over: 3 jobs that had started" in greeting(cluster)
    assert "because jobs may be there" not in greeting(cluster)
    for i, job in enumerate(jobs):
        cluster.until_step_advances(f"job{i}")
        show = cluster.show(job)
        assert (show["state"], show["attempt"], node_of(show)) == ("RUNNING", 1, nodes[i])


def test_other_nodes_are_asked_for_while_jobs_run_on_the_former_ones(three_nodes):
    cluster = three_nodes
    job = cluster.train("job", "--steps", 10**6)
    cluster.until_step_advances("job")
    node = node_of(cluster.show(job))
    others = [name for name in cluster.node_names() if name != node]
    agents = [cluster.agent_of(name) for name in others]
    cluster.kill_controller()
    cluster.kill(*agents)
    cluster.nodes, cluster.gpus, cluster.options = 1, 2, ()
    cluster.up()
    said = greeting(cluster)
    assert f"node {node} (1 GPU of type {'a100' if node == f'{HOST}-0' else 't4'}) stays" in said
    until(lambda: set(cluster.node_names()) == {HOST, node}, "the others are gone")
    assert cluster.show(job)["attempt"] == 1
    cluster.until_step_advances("job")
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    gone = [n["name"] for n in cluster.client.nodes() if not n["alive"]]
    assert sorted(gone) == sorted(others)
    cluster.down()
    cluster.up()
    assert cluster.node_names() == [HOST]
    assert "stays" not in greeting(cluster)


def test_a_job_on_a_node_that_nobody_asks_for_any_more_is_still_looked_after(three_nodes):
    """Its agent was killed, and its processes live: an agent must be there to end them."""
    cluster = three_nodes
    job = cluster.train("job", "--steps", 10**6)
    cluster.until_step_advances("job")
    node = node_of(cluster.show(job))
    cluster.freeze(cluster.controller())
    cluster.kill(cluster.agent_of(node))
    cluster.kill_controller()
    workers = cluster.of_job(job)
    cluster.nodes, cluster.options = 1, ()
    cluster.up()
    until(lambda: node in cluster.node_names(), "it is taken over")
    cluster.until_step_advances("job")
    assert cluster.show(job)["attempt"] == 1
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    assert all(is_gone(worker) for worker in workers)


def test_a_gang_is_on_one_node_or_waits_and_says_why(make_cluster):
    cluster = make_cluster("fifo-backfill", nodes=2, gpus=2, placement="spread")
    hold = "while [ ! -e {} ]; do sleep 0.01; done"
    one = cluster.submit(hold.format("one"), processes="node")
    two = cluster.submit(hold.format("two"), processes="node")
    places = {node_of(cluster.until_state(job, "RUNNING")) for job in (one, two)}
    assert len(places) == 2
    gang = cluster.train("gang", "--steps", 20, gpus=2)
    until(lambda: cluster.show(gang)["reason"] == "WAIT_GANG_FRAGMENTED", "it says why")
    with pytest.raises(NeverFitsError, match="the largest node has 2; ask for 2 or fewer"):
        cluster.submit("true", gpus=3)
    (cluster.base / "two").touch()
    cluster.ends(two)
    show = cluster.ends(gang)
    assert show["attempt"] == 1
    (cluster.base / "one").touch()
    cluster.ends(one)


def test_down_ends_all_nodes_and_jobs_start_anew_on_whatever_nodes_come_next(three_nodes):
    cluster = three_nodes
    jobs = [cluster.train(f"job{i}", "--steps", 10**6) for i in range(3)]
    for i in range(3):
        cluster.until_step_advances(f"job{i}")
    cluster.down()
    cluster.nodes, cluster.options = 1, ()
    cluster.up()
    show = cluster.until_state(jobs[0], "RUNNING")
    assert (show["attempt"], node_of(show)) == (2, HOST)
    for job in jobs:
        cluster.client.cancel(job)


def test_a_cluster_has_as_many_nodes_as_its_policy_asks_for(make_cluster):
    settings = {"utility": "0.2,0.5", "interval_s": 1, "shrink_after_s": 1}
    options = ("--nodes", "1..2", "--set", "nodes=1,2")
    cluster = make_cluster("pollux", gpus=1, options=options, **settings)
    assert [node["name"] for node in cluster.client.nodes()] == [f"{HOST}-0"]
    run = "echo hello from $ROTA_NODE; while [ ! -e go ]; do sleep 0.01; done"
    jobs = [cluster.submit(run) for _ in range(2)]
    shows = [cluster.until_state(job, "RUNNING") for job in jobs]
    assert {node_of(show) for show in shows} == {f"{HOST}-0", f"{HOST}-1"}
    assert cluster.client.awaited_nodes() == []
    agent = cluster.agent_of(f"{HOST}-1")
    (cluster.base / "go").touch()
    for job in jobs:
        cluster.ends(job)
    until(lambda: [n["alive"] for n in cluster.client.nodes()] == [True, False], "one is left")
    until(lambda: is_gone(agent), "its agent has ended")
    # The agent that is left has what was printed on the node that is gone.
    for job, show in zip(jobs, shows, strict=True):
        assert "".join(cluster.client.logs(job)) == f"hello from {node_of(show)}\n"
    # And the node comes back for more jobs.
    (cluster.base / "go").unlink()
    jobs = [cluster.submit(run) for _ in range(2)]
    shows = [cluster.until_state(job, "RUNNING") for job in jobs]
    assert {node_of(show) for show in shows} == {f"{HOST}-0", f"{HOST}-1"}
    (cluster.base / "go").touch()
    for job in jobs:
        cluster.ends(job)


def test_who_follows_an_output_goes_on_with_the_next_agent(make_cluster):
    cluster = make_cluster(gpus=1)
    job = cluster.submit("echo one; while [ ! -e go ]; do sleep 0.01; done; echo two")
    pieces = cluster.client.logs(job, follow=True)
    assert next(pieces) == "one\n"
    cluster.kill(cluster.agent_of(node_of(cluster.show(job))))
    (cluster.base / "go").touch()
    assert "".join(pieces) == "two\n"
    assert "".join(cluster.client.logs(job)) == "one\ntwo\n"


def test_who_follows_an_output_misses_nothing_that_is_printed_meanwhile(make_cluster):
    """The job opens its output anew all the time, is suspended, and is alone for a while."""
    cluster = make_cluster(gpus=1)
    line = "echo $n; echo again $n > /dev/stderr; n=$((n + 1))"
    job = cluster.submit(f"n=0; until [ -e go ]; do {line}; sleep 0.01; done; echo $n")
    pieces = cluster.client.logs(job, follow=True)
    text = next(pieces)
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    cluster.client.resume(job)
    show = cluster.until_state(job, "RUNNING")
    log = cluster.folder.attempt(node_of(show), job, 1) / "rank0.log"
    cluster.kill(cluster.agent_of(node_of(show)), cluster.controller())
    size = log.stat().st_size
    until(lambda: log.stat().st_size > size + 100, "it prints on")
    cluster.up()
    (cluster.base / "go").touch()
    text += "".join(pieces)
    last = int(text.split()[-1])
    assert text == "".join(f"{n}\nagain {n}\n" for n in range(last)) + f"{last}\n"
