"""The server's life: where it listens, when it says so, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from rota.errors import InputError, StoreError
from rota.folder import Folder
from rota.server.serve import bind, run
from support.served import StandInController, served

TESTS = Path(__file__).parents[2]
PROGRAM = """
import sys
from rota.folder import Folder
from rota.server.serve import run
from support.served import StandInController

folder = Folder(sys.argv[1]).create()
controller = StandInController(folder)
run(controller, folder, on_listen=lambda url: print(url, flush=True))
print(*controller.life, flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "home").create()


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "127.0.0.1 ", "1.1.1.1"]
)
def test_only_loopback_addresses_are_taken(folder, host):
    with pytest.raises(InputError, match="host"):
        run(StandInController(folder), folder, host=host)
    assert not folder.server.exists()


def test_a_port_that_is_taken_is_named(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=str(port)):
            run(StandInController(folder), folder, port=port)


def test_no_answer_waits_for_the_client_to_confirm_its_head():
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_it_says_where_it_listens_and_takes_that_back(folder):
    controller = StandInController(folder)
    with served(folder, controller) as it:
        assert json.loads(folder.server.read_text()) == {"url": it.url, "pid": os.getpid()}
        assert controller.life == ["start"]
        assert {path.name for path in folder.path.iterdir()} == {
            "token",
            "agent.token",
            "server.json",
        }
    assert not folder.server.exists()
    assert controller.life == ["start", "stop"]
    address = urlsplit(it.url)
    with pytest.raises(OSError), socket.create_connection((address.hostname, address.port)):
        pass


def test_it_leaves_the_word_of_a_later_controller_alone(folder):
    with served(folder):
        folder.server.write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    assert folder.server.exists()


def test_a_controller_that_cannot_start_is_stopped_and_its_error_comes_through(folder):
    class Broken(StandInController):
        async def start(self):
            await super().start()
            raise StoreError("the disk is full")

    controller = Broken(folder)
    with pytest.raises(StoreError, match="full"):
        run(controller, folder)
    assert controller.life == ["start", "stop"]
    assert not folder.server.exists()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(folder, number):
    command = [sys.executable, "-c", PROGRAM, str(folder.path)]
    env = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            url = process.stdout.readline().strip()
            assert httpx.get(url + "/healthz", trust_env=False).status_code == 200
            process.send_signal(number)
            out, _ = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, out.strip()) == (0, "start stop")
    assert not folder.server.exists()


def test_it_ends_when_the_controller_can_not_go_on(folder):
    controller = StandInController(folder)
    run(controller, folder, on_listen=lambda url: controller.journal.stopped.set())
    assert controller.life == ["start", "stop"]
    assert not folder.server.exists()
