import socket

import pytest

from rota.errors import InputError
from rota.folder import Folder
from rota.server import place


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "home").create()


def test_an_address_stays_the_same_until_the_machine_has_another(folder, monkeypatch):
    monkeypatch.setattr(place, "BEYOND", ("127.0.0.1", 9))
    first = place.lasting_place(folder)
    host, _, port = first.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert place.lasting_place(folder) == first
    (folder.path / "listen").write_text("10.9.8.7:7800")  # the folder has been elsewhere
    assert place.lasting_place(folder).startswith("127.0.0.1:")


def test_without_a_network_the_address_is_asked_for(folder, monkeypatch):
    class Cut(socket.socket):
        def connect(self, address):
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(place.socket, "socket", Cut)
    with pytest.raises(InputError, match=r"--listen: .*Network is unreachable.*--listen gpu0.lab"):
        place.lasting_place(folder)
