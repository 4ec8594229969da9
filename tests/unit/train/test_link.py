"""A worker's connection to its agent, seen from the agent's end."""

import os
import signal
import socket
from types import SimpleNamespace

from rota.live.wire import encode
from rota.train import link as link_module
from rota.train.link import Link


def test_a_session_that_is_over_is_over_although_a_child_still_has_its_connection(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        link = Link(str(tmp_path / "socket"))
        link.introduce({"type": "hello"})
        assert link.connect()
        agent, _ = server.accept()
        child = os.fork()
        if not child:
            signal.pause()
        try:
            with agent:
                agent.settimeout(60)
                assert link.send({"type": "last"})
                link.close()
                said = b"".join(iter(lambda: agent.recv(4096), b""))
            assert said == b'{"type":"hello"}\n{"type":"last"}\n'
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_child_that_closes_the_connection_leaves_it_to_its_parent(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        link = Link(str(tmp_path / "socket"))
        link.introduce({"type": "hello"})
        assert link.connect()
        agent, _ = server.accept()
        with agent:
            child = os.fork()
            if not child:
                link.close()
                os._exit(0)
            os.waitpid(child, 0)
            assert link.send({"type": "on"})
            assert agent.recv(4096) == b'{"type":"hello"}\n{"type":"on"}\n'
        link.close()


def test_a_message_that_is_looked_for_stays(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        link = Link(str(tmp_path / "socket"))
        assert not link.has("pause", 0.001)  # it connects
        agent, _ = server.accept()
        with agent:
            assert not link.has("pause", 0.001)
            agent.sendall(encode({"type": "cpus", "millicores": 2}))
            assert not link.has("pause", 0.001)
            agent.sendall(encode({"type": "pause", "gang": False}))
            while not link.has("pause", 1.0):
                pass
            assert link.has("pause", 0.0)
            assert [message["type"] for message in link.poll()] == ["cpus", "pause"]
            assert not link.has("pause", 0.001)
        link.close()


def test_without_an_agent_nothing_is_asked_for(tmp_path):
    link = Link(str(tmp_path / "none"))
    assert not link.has("pause", 0.001)
    link.close()


def test_a_program_that_has_no_agent_for_long_says_so_once(tmp_path, monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr(link_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    link = Link(str(tmp_path / "nobody"))
    for _ in range(100):
        assert not link.connect()
        now[0] += 1.0
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"no agent answers at {tmp_path}/nobody (No such file or directory)" in err
