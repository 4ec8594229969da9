"""The meeting place of a gang answers who proves to know its secret, and nobody else."""

import contextlib
import json
import os
import signal
import socket
import threading
from datetime import timedelta

import psutil
import pytest

torch = pytest.importorskip("torch")
from torch.distributed import (  # noqa: E402
    DistNetworkError,
    DistStoreError,
    PrefixStore,
    TCPStore,
)

from rota.train import meeting  # noqa: E402
from rota.train.meeting import MeetingPlace, MeetingStore, proof_of  # noqa: E402

SOON = timedelta(milliseconds=200)


@pytest.fixture
def place():
    place = MeetingPlace("127.0.0.1", 0, "right")
    yield place
    place.close()


def store(place, secret="right", timeout=SOON):
    return MeetingStore(("127.0.0.1", place.port), secret, timeout)


def test_it_listens_at_its_address_alone(place):
    own = [each for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
    assert [each.laddr.ip for each in own if each.laddr.port == place.port] == ["127.0.0.1"]


def test_ranks_find_what_others_have_told(place):
    stores = store(place), store(place)  # torch keeps no reference to them
    one, other = (PrefixStore("a", each) for each in stores)
    one.set("x", b"\0\xff")
    assert other.get("x") == b"\0\xff"
    assert (other.add("n", 2), one.add("n", 3), other.get("n")) == (2, 5, b"5")
    assert other.check(["x", "n"])
    assert not other.check(["x", "y"])
    assert one.compare_set("c", "", "first") == b"first"
    assert other.compare_set("c", "", "second") == b"first"
    assert other.compare_set("c", "first", "second") == b"second"
    assert one.num_keys() == 3
    assert one.delete_key("x")
    assert not one.check(["x"])
    with pytest.raises(DistStoreError, match="no rank has told a/x"):
        one.wait(["x"], SOON)
    with pytest.raises(DistStoreError):
        one.get("x")


def test_a_rank_that_waits_goes_on_when_the_other_has_told(place):
    waiter, found = store(place, timeout=timedelta(seconds=30)), []
    thread = threading.Thread(target=lambda: found.append(waiter.get("late")))
    thread.start()
    store(place).set("late", "here")
    thread.join()
    assert found == [b"here"]


def test_who_does_not_know_the_secret_reads_and_changes_nothing(place):
    for wrong in ("wrong", ""):
        with pytest.raises(DistNetworkError):
            store(place, wrong)
    with pytest.raises(DistNetworkError), contextlib.closing(socket.socket()):
        TCPStore("127.0.0.1", place.port, None, is_master=False, timeout=SOON)
    assert store(place).num_keys() == 0


@pytest.mark.parametrize(
    "said",
    [
        b'{"do": "count"}\n',
        b'{"nonce": "a", "proof": "\xc3\xa9"}\n',
        b'{"nonce": "a", "proof": 7}\n{"do": "count"}\n',
        b"[]\n",
        b"\x80\x04K\x01.\n",
        b"x" * 100_000,
        b"[" * 400 + b"\n",
    ],
)
def test_what_proves_nothing_is_hung_up_on(place, said):
    with socket.create_connection(("127.0.0.1", place.port), timeout=30) as connection:
        heard = connection.makefile("rb")
        assert json.loads(heard.readline()).keys() == {"nonce"}
        with contextlib.suppress(OSError):
            connection.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert heard.read() == b""
    assert store(place).num_keys() == 0


def test_a_proof_is_good_for_one_connection(place):
    def connect():
        connection = socket.create_connection(("127.0.0.1", place.port), timeout=30)
        heard = connection.makefile("rb")
        return connection, heard, json.loads(heard.readline())["nonce"]

    first, heard, nonce = connect()
    proof = proof_of("right", "rank", nonce, "mine").decode()
    told = json.dumps({"nonce": "mine", "proof": proof}).encode() + b"\n"
    first.sendall(told)
    assert json.loads(heard.readline()).keys() == {"proof"}
    second, heard, _ = connect()
    second.sendall(told)
    assert heard.read() == b""
    first.close()
    second.close()


def test_a_place_that_does_not_know_the_secret_is_told_nothing():
    """Another process may have taken the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard = []

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'{"nonce": "n"}\n')
                heard.append(connection.recv(1 << 16))
                connection.sendall(b'{"proof": "it"}\n')
                heard.append(connection.recv(1 << 16))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DistNetworkError, match="does not know the gang's secret"):
            MeetingStore(listener.getsockname(), "right", SOON)
        thread.join()
    assert json.loads(heard[0]).keys() == {"nonce", "proof"}
    assert b"right" not in heard[0]
    assert heard[1] == b""


def test_those_who_say_nothing_keep_nobody_out(place, monkeypatch):
    silent = [
        socket.create_connection(("127.0.0.1", place.port))
        for _ in range(meeting.MOST_UNPROVEN + 9)
    ]
    store(place).set("x", "here")
    for each in silent:
        each.close()


@pytest.mark.parametrize("forked", [False, True])
def test_ranks_learn_at_once_that_the_place_is_gone(place, forked):
    """Also where a process that was forked meanwhile, as one of a loader, has all sockets, too."""
    one = store(place, timeout=timedelta(seconds=300))
    child = os.fork() if forked else None
    if child == 0:
        signal.pause()
    try:
        place.close()
        with pytest.raises(DistNetworkError, match="gone"):
            one.get("x")
        with pytest.raises(OSError, match="refused"):
            store(place)
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
