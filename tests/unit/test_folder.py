"""The state folder: for its owner alone, and told in a line if it can't be used."""

import errno
import json
import os
import shutil
import stat
import tempfile

import pytest

from rota import folder as folder_module
from rota.errors import InputError
from rota.folder import OWNER, Folder, hold_outside, remove_homeless


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
    socket = Folder(tmp_path).outside_socket("here")
    assert socket.parent.parent == sockets
    assert mode(socket.parent) == 0o700
    socket.parent.chmod(0o777)
    assert Folder(tmp_path).outside_socket("here") == socket
    assert mode(socket.parent) == 0o700


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "of somebody else"])
def test_what_stands_where_sockets_are_to_be_is_told(tmp_path, sockets, kind):
    folder = Folder(tmp_path)
    place = folder.outside_socket("here").parent
    shutil.rmtree(place)
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
        folder.outside_socket("here")
    assert f"{place} can't be the folder for the sockets" in str(error.value)
    assert why in str(error.value)
    assert "XDG_RUNTIME_DIR" in str(error.value)


def test_a_runtime_folder_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="No such file or directory"):
        Folder(tmp_path).outside_socket("here")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    place = Folder(tmp_path).outside_socket("here").parent
    assert place.parent == type(tmp_path)(tempfile.gettempdir())


@pytest.fixture
def homes(tmp_path, monkeypatch, sockets):
    """A maker of state folders, whose folders in host memory are in one of this test alone."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(folder_module, "HOST_MEMORY", memory)
    return lambda name: Folder(tmp_path / name).create()


def outside_of(folder):
    """What it has outside of the state folder: with a socket, and the state of a job."""
    socket, arenas = folder.outside_socket("node0"), folder.arenas("node0")
    socket.touch()
    (arenas / "1-1-0.arena").write_bytes(b"state")
    return {socket.parent, arenas.parent}


def test_what_a_state_folder_that_is_gone_has_left_outside_of_it_is_removed(homes):
    gone, there = homes("gone"), homes("there")
    left, kept = outside_of(gone), outside_of(there)
    shutil.rmtree(gone.path)
    assert set(remove_homeless()) == left
    assert remove_homeless() == []
    assert [path.exists() for path in (*left, *kept)] == [False, False, True, True]


def test_what_a_process_holds_is_not_removed(homes):
    gone = homes("gone")
    left = outside_of(gone)
    held = gone.hold()
    hosts = [hold_outside(path) for path in left]  # in another process, as it stands for
    shutil.rmtree(gone.path)
    assert remove_homeless() == []
    held.close()
    assert remove_homeless() == []
    for lock in hosts:
        lock.close()
    assert set(remove_homeless()) == left


@pytest.mark.parametrize(
    "doubt", ["it does not say", "it says something else", "on another disk", "a link", "a link in"]
)
def test_what_is_in_doubt_is_not_removed(homes, tmp_path, doubt):
    gone = homes("gone")
    left = outside_of(gone)
    shutil.rmtree(gone.path)
    for path in left:
        owner = path / OWNER
        told = json.loads(owner.read_text())
        if doubt == "it does not say":
            owner.unlink()
        elif doubt == "it says something else":
            owner.write_text("[]")
        elif doubt == "on another disk":  # one that is not mounted now
            owner.write_text(json.dumps(told | {"device": told["device"] + 1}))
        elif doubt == "a link":
            path.symlink_to(path.rename(tmp_path / f"other-{path.parent.name}"))
        else:
            owner.symlink_to(owner.rename(tmp_path / f"other-{path.parent.name}"))
    assert remove_homeless() == []
    assert all(list(path.iterdir()) for path in left)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of somebody else's")
def test_what_is_of_another_user_is_not_removed(homes):
    gone = homes("gone")
    left = outside_of(gone)
    shutil.rmtree(gone.path)
    for path in left:
        os.chown(path, 12345, 12345)
    assert remove_homeless() == []


def test_who_leaves_takes_the_empty_folders_alone_and_only_if_nobody_holds_them(homes):
    folder = homes("home")
    places = outside_of(folder)
    held = folder.hold()
    folder.leave()
    assert all(place.exists() for place in places)
    folder.outside_socket("node0").unlink()
    shutil.rmtree(folder.arenas("node0"))
    folder.leave()
    assert all(place.exists() for place in places)
    held.close()
    folder.leave()
    assert not any(place.exists() for place in places)


def test_who_leaves_last_takes_the_sockets_of_agents_that_were_killed(homes):
    folder = homes("home")
    sockets, _ = outside_of(folder)
    other = folder.hold()
    dead = folder.outside_socket("dead")
    dead.touch()
    shutil.rmtree(folder.arenas("node0"))
    folder.leave()
    assert dead.exists()
    other.close()
    folder.leave()
    assert not sockets.exists()


def test_folders_that_were_removed_while_somebody_waited_for_them_are_made_anew(homes, monkeypatch):
    folder = homes("home")
    places = outside_of(folder)
    first = set(places)

    def removed(lock, _):
        """As by another agent, which had the lock just before."""
        for place in places:
            if place in first and os.path.samestat(os.fstat(lock.fileno()), (place / OWNER).stat()):
                first.discard(place)
                shutil.rmtree(place)

    monkeypatch.setattr(folder_module.fcntl, "flock", removed)
    with folder.hold():
        assert first == set()
        assert all((place / OWNER).exists() for place in places)
