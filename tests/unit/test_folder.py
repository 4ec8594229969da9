"""The state folder: for its owner alone, and told in a line if it can't be used."""

import errno
import os
import stat
import tempfile

import pytest

from rota.errors import InputError
from rota.folder import Folder


@pytest.fixture
def sockets(tmp_path, monkeypatch):
    """Where folders of sockets are."""
    base = tmp_path / "run"
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    return base


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_open_to_others_is_closed_and_named(tmp_path):
    folder = Folder(tmp_path / "home").create()
    folder.path.chmod(0o755)
    (folder.path / "checkpoints").mkdir(mode=0o755)
    folder.controller_log.touch(mode=0o644)
    assert folder.close_to_others() == ["checkpoints", "controller.log"]
    assert folder.close_to_others() == []
    assert [mode(folder.path / name) for name in ("nodes", "checkpoints")] == [0o700] * 2
    assert [mode(file) for file in (folder.controller_log, folder.sweep_log)] == [0o600] * 2
    assert mode(folder.path) == 0o755  # it may hold more than Rota's


def test_checkpoints_may_be_a_link_to_a_folder_that_others_read(tmp_path):
    folder = Folder(tmp_path / "home").create()
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (folder.path / "checkpoints").symlink_to(shared)
    assert folder.close_to_others() == []
    assert mode(shared) == 0o755


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EROFS, "set ROTA_HOME, or --home, to a folder that you may write to"),
        (errno.EACCES, "set ROTA_HOME, or --home, to a folder that you may write to"),
        (errno.ENAMETOOLONG, "set ROTA_HOME, or --home, to a folder of yours"),
    ],
)
def test_a_folder_that_can_not_be_used_is_told_in_a_line_with_the_fix(tmp_path, number, fix):
    folder = Folder(tmp_path)
    for path, where in ((folder.server, " (server.json)"), (folder.path, ""), (None, "")):
        error = OSError(number, os.strerror(number), path and str(path))
        told = f"state folder {tmp_path}{where}: {os.strerror(number)}; {fix}"
        assert str(folder.unusable(error)) == told


def test_sockets_are_in_a_folder_that_only_their_owner_can_enter(tmp_path, sockets):
    socket = Folder(tmp_path).socket("here")
    assert socket.parent.parent == sockets
    assert mode(socket.parent) == 0o700
    socket.parent.chmod(0o777)
    assert Folder(tmp_path).socket("here") == socket
    assert mode(socket.parent) == 0o700


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "of somebody else"])
def test_what_stands_where_sockets_are_to_be_is_told(tmp_path, sockets, kind):
    folder = Folder(tmp_path)
    place = folder.socket("here").parent
    place.rmdir()
    why = "something else is there"
    if kind == "file":
        place.touch()
    elif kind == "of somebody else":
        if os.geteuid():
            pytest.skip("only root can make a folder of somebody else's")
        place.mkdir()
        os.chown(place, 12345, 12345)
        why = "it is there, and belongs to user 12345"
    else:
        place.symlink_to(tmp_path if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(InputError) as error:
        folder.socket("here")
    assert f"{place} can't be the folder for the sockets" in str(error.value)
    assert why in str(error.value)
    assert "XDG_RUNTIME_DIR" in str(error.value)


def test_a_runtime_folder_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="No such file or directory"):
        Folder(tmp_path).socket("here")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert Folder(tmp_path).socket("here").parent.parent == type(tmp_path)(tempfile.gettempdir())
