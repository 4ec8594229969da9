"""``rota agent``: as which node a machine goes on, with what, and where it calls."""

import json
import os
import socket

import pytest

from rota.client.client import Client
from rota.client.trust import fingerprint_of
from rota.folder import MEMBERSHIP, REMOVED, Folder, keep_membership, membership
from rota.live.wire.clock import boot_id
from rota.server.tls import listener
from support.served import controller_without_agents, served


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The controller's folder."""
    return Folder(tmp_path_factory.mktemp("head") / "home").create()


def cluster_at(head, place):
    return served(head, controller_without_agents(head), listener=listener(head, place))


def free_place():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def cluster(head):
    with cluster_at(head, free_place()) as it:
        yield it


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of a machine called ``machine``."""
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    return Folder(tmp_path / "home")


@pytest.fixture
def start(rota, monkeypatch):
    """Starts an agent: the words of its process, and what is said on the way."""

    def start(*words):
        begun = []

        def execv(_, command):
            begun.extend(command)
            raise SystemExit(0)

        monkeypatch.setattr(os, "execv", execv)
        code, _, error = rota("agent", *words)
        assert (code == 0) == bool(begun), error
        return set(begun), begun[begun.index("--node") + 1] if begun else None, error

    return start


def line(head):
    with Client(folder=head) as client:
        told = client.invite()
    words = {"--join": told["url"], "--token": told["token"]}
    words["--ca"] = fingerprint_of(told["certificate"])
    return [word for pair in words.items() for word in pair]


def begins(folder, job_id, boot):
    place = folder / "jobs" / job_id / "1"
    place.mkdir(parents=True)
    (place / "attempt.json").write_text(json.dumps({"boot_id": boot}))
    return place


def test_an_agent_goes_on_as_the_node_that_has_joined_with_what_it_offered(
    cluster, head, home, start
):
    offers = {"--gpus=2", "--gpu-type=t4", "--host-memory=1073741824", "--data-port=7801"}
    words = ["--gpus", "2", "--gpu-type", "t4", "--host-memory", "1GiB", "--data-port", "7801"]
    joined = [*line(head), "--node", "first"]
    told, node, said = start(*joined, *words)
    assert (offers <= told, node, said.count("\n")) == (True, "first", 1)
    for again in ([], joined[:-2], ["--node", "first"]):
        told, node, said = start(*again)
        assert (offers <= told, node) == (True, "first")
        assert said == "node first offers 2 GPUs, as before\nnode first offers GPUs of type t4, " \
            "as before\n"  # fmt: skip
    told, _, said = start("--gpus", "3", "--gpu-type", "")
    assert {"--gpus=3", "--gpu-type=", "--data-port=7801"} <= told
    assert (said, "--gpus=3" in start()[0]) == ("", True)
    assert (home.node("first") / MEMBERSHIP).stat().st_mode & 0o777 == 0o600


def test_other_devices_wait_until_the_jobs_of_the_node_have_ended(cluster, head, home, start):
    start(*line(head), "--node", "busy", "--gpus", "2")
    place = begins(home.node("busy"), "7", boot_id())
    told, _, said = start("--gpus", "1", "--gpu-type", "t4", "--log-limit", "2GiB")
    assert "--gpus=2" in told
    assert "--log-limit=2147483648" in told
    assert not any(word.startswith("--gpu-type") for word in told)
    assert said.splitlines() == [
        "--gpus: 1 is not taken now, because job 7 may be on node busy, which offers 2 GPUs; start "
        "the agent with it again once they have ended, or after `rota node drain busy`",
        "--gpu-type: t4 is not taken now, because job 7 may be on node busy, which offers GPUs of "
        "no type; start the agent with it again once they have ended, or after `rota node drain "
        "busy`",
    ]
    assert start("--gpus", "2")[2] == ""
    (place / "attempt.json").rename(place / "ended.json")
    begins(home.node("busy"), "8", "another boot")
    assert "--gpus=1" in start("--gpus", "1")[0]


def test_a_machine_that_joined_before_this_was_kept_takes_what_it_is_given(
    cluster, head, home, start
):
    start(*line(head), "--node", "old", "--gpus", "2")
    file = home.node("old") / MEMBERSHIP
    told = json.loads(file.read_text())
    del told["options"]
    file.write_text(json.dumps(told))
    begins(home.node("old"), "7", boot_id())
    assert not any(word.startswith("--gpus") for word in start()[0])
    del told["invitation"]
    file.write_text(json.dumps(told))
    told, _, said = start("--gpus", "2")
    assert ("--gpus=2" in told, said) == (True, "")


def test_of_several_nodes_the_one_with_the_machines_name_goes_on(cluster, head, home, start):
    start(*line(head), "--node", "one")
    start(*line(head), "--node", "two")
    _, node, said = start()
    assert (node, said) == (
        None,
        "error: --node: this machine has joined as one, two; name one of them\n",
    )
    assert start("--node", "three")[2].startswith(
        "error: --join: node three has not joined a cluster yet (as one, two it has); run the line "
    )
    start(*line(head), "--node", "machine")
    assert start()[1] == "machine"


def test_a_node_that_was_removed_does_not_go_on_where_another_one_does(
    cluster, head, home, start, monkeypatch
):
    monkeypatch.setattr(socket, "gethostname", lambda: "was")
    start(*line(head))
    warned = start(*line(head), "--node", "is")[2]
    assert "warning: this machine is node was of that cluster as well, and both may" in warned
    assert start()[1] == "was"
    for removed, goes_on in (("was", "is"), ("is", "was")):  # that is told once more
        place = home.node(removed)
        keep_membership(place, membership(place) | {REMOVED: True})
        assert start()[1] == goes_on


def test_a_machine_follows_a_controller_that_has_another_address(tmp_path, home, start):
    head = Folder(tmp_path / "head").create()
    with cluster_at(head, free_place()):
        old = line(head)
        start(*old, "--node", "moves", "--gpus", "2")
    before = json.loads((home.node("moves") / MEMBERSHIP).read_text())
    with cluster_at(head, free_place()) as cluster:
        told, node, said = start(*line(head))
        after = json.loads((home.node("moves") / MEMBERSHIP).read_text())
        assert (node, "--gpus=2" in told) == ("moves", True)
        assert said.startswith(f"node moves stays in the cluster at {after['url']}\n")
        assert after["url"] != before["url"]
        members = cluster.controller.members
        assert members.node_of(after["token"]) == "moves"
        assert members.node_of(before["token"]) is None
        assert members.names == {"moves"}


def test_a_machine_without_its_folder_is_not_the_node_that_has_joined(cluster, head, home, start):
    start(*line(head), "--node", "mine")
    (home.node("mine") / MEMBERSHIP).unlink()
    _, node, said = start(*line(head), "--node", "mine")
    assert node is None
    assert "node: mine has joined already; give this machine another name with --node" in said
