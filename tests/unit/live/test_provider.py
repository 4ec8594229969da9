import asyncio
import errno
import json
import logging
import os
import shutil
import socket

import pytest

from rota.errors import InputError
from rota.folder import Folder, hold_lock
from rota.live.provider.local import (
    LocalNode,
    LocalProvider,
    keep_machine_name,
    last_words,
    lay_out,
    machine_name,
)
from support.shortage import no_descriptors


@pytest.fixture(autouse=True)
def host(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "box")


def test_one_node_is_this_machine_with_all_that_it_has():
    assert lay_out("box", 1, None, [], 4, 8) == [LocalNode("box")]
    assert lay_out("box", 1, 2, ["t4"], 0, 8) == [LocalNode("box", 2, 0, "t4")]


def test_several_nodes_have_gpus_of_their_own_and_a_type_each():
    nodes = lay_out("box", 3, 2, ["a100", "t4", "t4"], 6, 8)
    assert [node.name for node in nodes] == ["box-0", "box-1", "box-2"]
    assert [(node.first_gpu, node.gpus) for node in nodes] == [(0, 2), (2, 2), (4, 2)]
    assert [node.gpu_type for node in nodes] == ["a100", "t4", "t4"]
    assert {node.gpu_type for node in lay_out("box", 3, 1, ["v100"], 0, 1)} == {"v100"}


def test_what_is_there_is_shared_out_when_nobody_says_how_much():
    assert [node.gpus for node in lay_out("box", 2, None, [], 8, 4)] == [4, 4]
    assert [node.gpus for node in lay_out("box", 2, None, [], 0, 6)] == [3, 3]
    assert [node.gpus for node in lay_out("box", 3, None, [], 0, 2)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2, [], 4, 8), "--nodes: 3 nodes of 2 GPUs need 6, and this machine has 4"),
        ((5, None, [], 4, 8), "--nodes: 5 nodes of 1 GPUs need 5, and this machine has 4"),
        ((3, 2, ["a", "b"], 0, 8), "--gpu-types: a,b names 2 types for 3 nodes"),
        ((1, 2, ["a", "b"], 0, 8), "--gpu-types: a,b names 2 types for 1 node;"),
    ],
)
def test_what_can_not_be_laid_out_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        lay_out("box", *arguments)


def former(folder, *nodes):
    for node in nodes:
        folder.node(node.name).mkdir(parents=True)
        (folder.node(node.name) / "node.json").write_text(json.dumps(node._asdict()))


def unfinished(folder, node):
    attempt = folder.attempt(node, "1", 1)
    attempt.mkdir(parents=True)
    (attempt / "attempt.json").touch()


def test_a_machine_that_is_renamed_keeps_its_nodes_name_while_that_may_have_jobs(
    tmp_path, monkeypatch
):
    folder = Folder(tmp_path)
    assert machine_name(folder) == "box"
    keep_machine_name(folder, "box")
    former(folder, LocalNode("box"))
    unfinished(folder, "box")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu0 of lab")
    assert machine_name(folder) == "box"
    provider = LocalProvider(folder, lay_out(machine_name(folder), 1, None, [], 4, 8))
    assert (provider.names, provider.differences()) == ({"box"}, [])
    (folder.attempt("box", "1", 1) / "attempt.json").unlink()
    assert machine_name(folder) == "gpu0-of-lab"
    keep_machine_name(folder, "gpu0-of-lab")
    assert (tmp_path / "machine-name").read_text() == "gpu0-of-lab"


def test_former_nodes_without_jobs_are_forgotten(tmp_path):
    folder = Folder(tmp_path)
    former(folder, LocalNode("box-0", 2), LocalNode("box-1", 2, 2))
    provider = LocalProvider(folder, [LocalNode("box")])
    assert provider.names == {"box"}
    assert provider.taken_over == provider.differences() == []


def test_former_nodes_that_may_have_jobs_are_taken_over_as_they_were(tmp_path):
    folder = Folder(tmp_path)
    former(folder, LocalNode("box-0", 2, 0, "t4"), LocalNode("box-1", 2, 2), LocalNode("box", 1))
    unfinished(folder, "box-0")
    unfinished(folder, "box-1")
    lock = hold_lock(folder.node("box") / "agent.lock")
    provider = LocalProvider(folder, [LocalNode("box-0", 4), LocalNode("box-1", 2, 2)])
    lock.close()
    assert provider.layout["box-0"] == LocalNode("box-0", 2, 0, "t4")
    assert set(provider.names) == {"box-0", "box-1", "box"}
    assert provider.differences() == [
        "node box (1 GPU) stays beside those asked for",
        "node box-0 stays as it was, with 2 GPUs of type t4",
    ]


def test_a_former_node_without_a_readable_note_is_looked_after_all_the_same(tmp_path):
    folder = Folder(tmp_path)
    former(folder, LocalNode("box-0", 2))
    (folder.node("box-0") / "node.json").write_text("{")
    unfinished(folder, "box-0")
    unfinished(folder, "old")
    provider = LocalProvider(folder, [LocalNode("box")])
    assert provider.taken_over == [LocalNode("box-0"), LocalNode("old")]


@pytest.mark.process
def test_an_agent_that_can_not_go_on_is_told_once_to_whoever_started_the_cluster(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = Folder(tmp_path / "home").create()
    provider = LocalProvider(folder, [LocalNode("box", 1)])
    place = folder.outside_socket("box").parent
    shutil.rmtree(place)
    place.touch()
    folder.socket("box").mkdir(parents=True)

    class Words(logging.Handler):
        """What is logged, until it has been ``wanted`` times."""

        def __init__(self, wanted):
            super().__init__()
            self.records, self.wanted, self.enough = [], wanted, asyncio.Event()

        def emit(self, record):
            self.records.append(record)
            if len(self.records) == self.wanted:
                self.enough.set()

    async def watch():
        words, log = Words(2), logging.getLogger("rota.provider")
        log.addHandler(words)
        agent = provider._agents["box"]
        agent.start()
        await words.enough.wait()
        await agent.stop()
        log.removeHandler(words)

    asyncio.run(watch())
    (error,) = provider.errors()
    assert provider.errors() == []
    own = folder.socket("box")
    why = f"rota agent: there is no place for the socket of this node's agent: {own}: "
    told = "node box: its agent ended, and is started again: "
    assert error.startswith(told + why)
    assert f"{place} can't be the folder for the sockets of this cluster's agents" in error
    (awaited,) = provider.awaited()
    assert (awaited.name, awaited.why in error) == ("box", True)


def test_the_last_words_of_a_log_are_its_last_line_with_words(tmp_path):
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_bytes(b"x" * 10_000 + b"\nthe \xff end\n\n")
    assert last_words(log) == "the \N{REPLACEMENT CHARACTER} end"


def test_an_agent_that_can_not_be_started_is_awaited_with_the_reason(tmp_path, monkeypatch):
    tries, again = [], asyncio.Event()

    async def fail(*_, **__):
        tries.append(1)
        if len(tries) > 1:
            again.set()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)

    async def main():
        provider = LocalProvider(Folder(tmp_path).create(), [LocalNode("box", 1)])
        await provider.start()
        await asyncio.wait_for(again.wait(), 60)
        (awaited,) = provider.awaited()
        assert "can't be started: no more process can be started here" in awaited.why
        (told,) = provider.errors()
        assert told.startswith("node box: its agent can't be started")
        assert not provider.errors()
        await provider.stop()

    asyncio.run(main())


def test_a_node_is_taken_for_alive_where_nobody_can_look(tmp_path):
    provider = LocalProvider(Folder(tmp_path).create(), [LocalNode("box", 1)])
    (tmp_path / "nodes" / "box").mkdir(parents=True)
    (tmp_path / "nodes" / "box" / "agent.lock").touch()
    with no_descriptors():
        (node,) = provider.nodes()
    assert node.is_alive
