"""Jobs move between nodes: their state is written down, sent, checked, and they go on from it."""

import os

import pytest

from rota.model.commands import Migrate
from rota.model.events import CommandSent

from .conftest import PROMPT, Cluster, node_of, until
from .states import equal, weights

STEPS = 200


@pytest.fixture
def two_nodes(make_cluster):
    return make_cluster(nodes=2, gpus=1)


def suspend(cluster: Cluster, job: str) -> str:
    """Suspend a running job; the node where its state lies."""
    node = node_of(cluster.until_state(job, "RUNNING"))
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    return node


def occupy(cluster: Cluster, node: str, *, gpus: int = 1) -> str:
    """A job that has this node until it is cancelled. It takes the one with the lowest number."""
    job = cluster.submit("while :; do sleep 0.05; done", gpus=gpus, processes="node")
    assert node_of(cluster.until_state(job, "RUNNING")) == node
    return job


def move(cluster: Cluster, job: str, out: str, gate: int, *, gpus: int = 1) -> tuple[str, str]:
    """Suspend a training at a gate and let it go on on the other node; from where, to where."""
    source = node_of(cluster.until_state(job, "RUNNING"))
    cluster.suspend_at(job, out, gate)
    blocker = occupy(cluster, source, gpus=gpus)
    cluster.client.resume(job)
    target = node_of(cluster.until_state(job, "RUNNING"))
    cluster.client.cancel(blocker)
    cluster.ends(blocker, "CANCELLED")
    return source, target


def leftovers(cluster: Cluster, node: str, job: str) -> list[str]:
    """What a node still has of a job's attempts, which may be going just now."""
    folders = [cluster.folder.node(node) / "jobs" / job, cluster.folder.arenas(node)]
    walks = [walk for folder in folders for walk in os.walk(folder)]
    return [os.path.join(at, name) for at, _, names in walks for name in names]


@pytest.mark.live_path("move")
def test_a_training_that_moves_ends_with_the_weights_of_an_undisturbed_run(two_nodes):
    cluster = two_nodes
    alone = cluster.train("alone", "--steps", STEPS)
    cluster.ends(alone)
    job = cluster.train("job", "--steps", STEPS, "--gate", 60, "--gate", 120)
    source, target = move(cluster, job, "job", 60)
    assert source != target
    cluster.until_at("job", 120)
    until(lambda: leftovers(cluster, source, job) == [], "it has left nothing behind")
    cluster.opens("job", 120)
    show = cluster.ends(job)
    assert (show["attempt"], show["migrations"]) == (1, 1)
    assert cluster.step("job") == STEPS
    assert equal(weights(cluster.base / "job"), weights(cluster.base / "alone"))


def test_what_a_job_prints_on_both_nodes_is_one_log(two_nodes):
    cluster = two_nodes
    (cluster.base / "talk.py").write_text(
        "import os, time, torch, rota.train\n"
        "with rota.train.session() as s:\n"
        "    net = torch.nn.Linear(2, 1)\n"
        "    net, sgd = s.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))\n"
        "    for step in s.steps(12):\n"
        "        print(f'step {step} on', os.environ['ROTA_NODE'], flush=True)\n"
        "        while step in (5, 6) and not os.path.exists(f'go{step}'):\n"
        "            time.sleep(0.01)\n"
        "        s.report()\n"
    )
    job = cluster.submit("python talk.py")

    def said(word: str) -> bool:
        return word in "".join(cluster.client.logs(job))

    until(lambda: said("step 5 on"), "it waits at step 5")
    cluster.suspend_in_step(job)
    (cluster.base / "go5").touch()
    cluster.until_state(job, "SUSPENDED")
    source = cluster.show(job)["state_on"]
    assert cluster.show(job)["gpus"] == []
    blocker = occupy(cluster, source)
    cluster.client.resume(job)
    target = node_of(cluster.until_state(job, "RUNNING"))
    until(lambda: said("step 6 on"), "it waits at step 6")
    show = cluster.show(job)
    assert (show["state_on"], show["migrations"]) == (target, 1)
    assert f"resumed on {target}" in [line["line"] for line in show["story"]]
    (cluster.base / "go6").touch()
    cluster.ends(job)
    lines = "".join(cluster.client.logs(job)).splitlines()
    expected = [f"step {i} on {source if i < 6 else target}" for i in range(12)]
    assert [line for line in lines if line.startswith("step")] == expected
    (resumed_s,) = [at["at_s"] for at in show["story"] if at["line"] == f"resumed on {target}"]
    times = {line.text: line.at_s for line in cluster.client.log_lines(job)}
    assert [*times.values()] == sorted(times.values())
    assert times[f"step 5 on {source}"] <= resumed_s
    assert cluster.show(job)["state_on"] is None
    cluster.client.cancel(blocker)


def test_a_training_goes_on_only_with_the_versions_that_wrote_its_state(two_nodes):
    cluster = two_nodes
    (cluster.base / "other.py").write_text(
        "import os, time, torch, rota.train, rota.train.arena\n"
        "rota.train.arena.WRITTEN_BY = 'torch of ' + os.environ['ROTA_NODE']\n"
        "with rota.train.session() as s:\n"
        "    net = torch.nn.Linear(2, 1)\n"
        "    net, sgd = s.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))\n"
        "    for step in s.steps(12):\n"
        "        print(f'step {step}', flush=True)\n"
        "        while step == 5 and not os.path.exists('go'):\n"
        "            time.sleep(0.01)\n"
        "        s.report()\n"
    )
    job = cluster.submit("python other.py")
    until(lambda: "step 5" in "".join(cluster.client.logs(job)), "it waits at step 5")
    cluster.suspend_in_step(job)
    (cluster.base / "go").touch()
    cluster.until_state(job, "SUSPENDED")
    source = cluster.show(job)["state_on"]
    blocker = occupy(cluster, source)
    cluster.client.resume(job)
    told = f"its state was written by torch of {source}, and its program has other versions"
    until(lambda: told in str(cluster.show(job)["story"]), "the other node refuses it")
    cluster.client.cancel(blocker)
    show = cluster.ends(job)
    assert show["attempt"] == 1


def test_a_gang_moves_as_a_whole_and_there_and_back(make_cluster):
    cluster = make_cluster(nodes=2, gpus=2)
    alone = cluster.train("alone", "--steps", STEPS, gpus=2)
    cluster.ends(alone)
    gates = ("--gate", 50, "--gate", 100, "--gate", 150)
    job = cluster.train("gang", "--steps", STEPS, *gates, gpus=2)
    source, target = move(cluster, job, "gang", 50, gpus=2)
    cluster.until_at("gang", 100)
    first = cluster.submit("while [ ! -e free ]; do sleep 0.05; done", gpus=2, processes="node")
    assert node_of(cluster.until_state(first, "RUNNING")) == source
    cluster.suspend_at(job, "gang", 100)
    (cluster.base / "free").touch()
    cluster.ends(first)
    low = occupy(cluster, source, gpus=2)
    high = occupy(cluster, target, gpus=2)
    cluster.client.cancel(low)
    cluster.ends(low, "CANCELLED")
    cluster.client.resume(job)
    assert node_of(cluster.until_state(job, "RUNNING")) == source
    cluster.opens("gang", 150)
    assert cluster.ends(job)["migrations"] == 2
    cluster.client.cancel(high)
    assert equal(weights(cluster.base / "gang"), weights(cluster.base / "alone"))
    for name in (source, target):
        kept = [path for path in leftovers(cluster, name, job) if path.endswith(".arena")]
        assert kept == []
    assert leftovers(cluster, target, job) == []


def test_stopped_processes_wait_for_their_own_node(two_nodes):
    cluster = two_nodes
    job = cluster.submit("while [ ! -e go ]; do sleep 0.05; done")
    source = suspend(cluster, job)
    blocker = occupy(cluster, source)
    cluster.client.resume(job)
    until(lambda: cluster.show(job)["reason"] == "WAIT_TOPOLOGY", "it says for what it waits")
    (blocked,) = [
        b for b in cluster.client.explain(job)["blockers"] if b["rule"] == "WAIT_TOPOLOGY"
    ]
    assert blocked["need"] == f"1 GPU of {source}, where its stopped processes are"
    cluster.client.cancel(blocker)
    assert node_of(cluster.until_state(job, "RUNNING")) == source
    (cluster.base / "go").touch()
    assert cluster.ends(job)["migrations"] == 0
    moves = [e for e in cluster.events() if isinstance(e, CommandSent)]
    assert not any(isinstance(event.command, Migrate) for event in moves)


def test_jobs_that_take_turns_on_two_nodes_move_to_and_fro_unharmed(make_cluster):
    """Two share a node until there is room on the other, where one of them goes, and comes back."""
    # A move is on trial first, and nobody goes on from there before it is over: it is short, and
    # no speed is a reason to go back.
    trial = {"trial_s": 0.5, "least_gain": 1.0}
    cluster = make_cluster(
        "gandiva", environment=PROMPT, nodes=2, gpus=1, quantum_s=0.5, pack="off", **trial
    )

    def hold(name: str) -> str:
        return cluster.submit(f"while [ ! -e {name} ]; do sleep 0.02; done", processes="node")

    def ends(name: str, job: str) -> None:
        (cluster.base / name).touch()
        cluster.ends(job)

    def on(job: str) -> str | None:
        gpus = cluster.show(job)["gpus"]
        return gpus[0]["node"] if gpus else None

    stays = cluster.train("stays", "--until", "--steps", 10**6)
    here = node_of(cluster.until_state(stays, "RUNNING"))
    short = hold("short")
    there = node_of(cluster.until_state(short, "RUNNING"))
    moves = cluster.train("moves", "--until", "--steps", 10**6)
    for _ in range(2):  # both have had turns, and have something to carry along
        cluster.until_step_advances("stays")
        cluster.until_step_advances("moves")
    assert {cluster.show(job)["state_on"] for job in (stays, moves)} == {here}

    ends("short", short)
    until(lambda: {on(stays), on(moves)} == {here, there}, "one has gone where there is room")
    for name in ("stays", "moves"):
        cluster.until_step_advances(name)
    first = [cluster.show(job)["migrations"] for job in (stays, moves)]
    assert sorted(first) == [0, 1]
    out, job = ("stays", stays) if first[0] else ("moves", moves)
    other, other_job = ("moves", moves) if first[0] else ("stays", stays)
    (cluster.base / other / "enough").touch()
    cluster.ends(other_job)

    holds = {name: hold(name) for name in ("first", "second", "third")}  # here, here, and there
    until(lambda: all(on(held) for held in (job, holds["first"])), "all nodes are taken")
    until(lambda: cluster.show(job)["preemptions"] > 0 and on(holds["third"]), "it takes turns")
    for name in ("first", "second"):
        ends(name, holds[name])
    until(lambda: on(job) == here, "it has come back to where there is room")
    cluster.until_step_advances(out)
    assert cluster.show(job)["migrations"] >= 2
    (cluster.base / out / "enough").touch()
    ends("third", holds["third"])
    for name, id_ in (("stays", stays), ("moves", moves)):
        assert cluster.ends(id_)["attempt"] == 1
        alone = cluster.train(f"{name}_alone", "--steps", cluster.step(name))
        cluster.ends(alone)
        assert equal(weights(cluster.base / name), weights(cluster.base / f"{name}_alone"))
