"""A job begins with the checkpoints of another: all of them, or none."""

import os
import socket
from types import SimpleNamespace

import pytest

from rota.errors import AgentError, NeverStartsError
from rota.folder import Folder
from rota.live.agent import inheritance
from rota.live.agent.inheritance import PIECE_BYTES, inherit
from rota.model.obstacle import Obstacle


@pytest.fixture
def folder(tmp_path):
    """A state folder whose job 1 has left checkpoints."""
    folder = Folder(tmp_path)
    left = folder.checkpoints("1")
    (left / "deep").mkdir(parents=True)
    (left / "rota.pt").write_bytes(b"weights")
    (left / "deep" / "optimiser").write_bytes(b"moments")
    (left / "latest").symlink_to("rota.pt")
    return folder


def content(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_what_is_written_to_the_copy_leaves_the_former_job_as_it_was(folder):
    before = content(folder.checkpoints("1"))
    inherit(folder, "1", "2")
    copy = folder.checkpoints("2")
    assert content(copy) == before
    assert os.readlink(copy / "latest") == "rota.pt"
    (copy / "rota.pt").write_bytes(b"others")  # in place, which links would not survive
    assert content(folder.checkpoints("1")) == before


def test_a_later_attempt_finds_what_the_job_has_made_of_it(folder):
    inherit(folder, "1", "2")
    (folder.checkpoints("2") / "rota.pt").write_bytes(b"further")
    inherit(folder, "1", "2")
    assert (folder.checkpoints("2") / "rota.pt").read_bytes() == b"further"


def test_a_copy_that_was_cut_short_is_made_anew(folder):
    draft = folder.checkpoints("2.new")
    draft.mkdir()
    (draft / "half").touch()
    inherit(folder, "1", "2")
    assert content(folder.checkpoints("2")) == content(folder.checkpoints("1"))
    assert not draft.exists()


def test_a_folder_that_has_been_put_elsewhere_is_found_by_its_link(folder, tmp_path):
    left = folder.checkpoints("1")
    left.rename(tmp_path / "elsewhere")
    left.symlink_to(tmp_path / "elsewhere")
    inherit(folder, "1", "2")
    assert (folder.checkpoints("2") / "rota.pt").read_bytes() == b"weights"


def test_what_can_not_be_copied_is_not_begun_with_in_part(folder, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inheritance, "_copy", full)
    with pytest.raises(AgentError, match=r"resume_from: .* job 1 .* No space left on device; "):
        inherit(folder, "1", "2")
    assert not folder.checkpoints("2").exists()
    assert not folder.checkpoints("2.new").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_file_ends_the_job_with_its_path(folder, kind, monkeypatch):
    odd = folder.checkpoints("1") / "deep" / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            monkeypatch.chdir(odd.parent)  # a socket has a short path
            listening.bind(odd.name)
    with pytest.raises(NeverStartsError, match="odd is neither a file nor a link") as refused:
        inherit(folder, "1", "2")
    assert refused.value.obstacle == Obstacle.RESUME_FROM
    assert not folder.checkpoints("2").exists()
    assert not folder.checkpoints("2.new").exists()


def test_a_path_that_is_too_long_ends_the_job(folder, monkeypatch):
    monkeypatch.chdir(folder.checkpoints("1"))
    for _ in range(25):
        os.mkdir("x" * 200)
        os.chdir("x" * 200)
    with pytest.raises(NeverStartsError, match="File name too long") as refused:
        inherit(folder, "1", "2")
    assert refused.value.obstacle == Obstacle.RESUME_FROM


def test_checkpoints_that_are_gone_end_the_job_unless_another_node_may_have_them(folder):
    with pytest.raises(NeverStartsError, match=r"job 7 in .* are gone; submit") as refused:
        inherit(folder, "7", "8")
    assert refused.value.obstacle == Obstacle.RESUME_FROM
    with pytest.raises(AgentError) as passing:
        inherit(folder, "7", "8", is_shared=False)
    assert not isinstance(passing.value, NeverStartsError)
    assert not folder.checkpoints("8").exists()


def test_holes_stay_holes(folder):
    left = folder.checkpoints("1")
    with open(left / "sparse", "wb") as file:
        file.write(b"first")
        file.seek(64 << 20)
        file.write(b"middle")
        file.truncate(128 << 20)
    inherit(folder, "1", "2")
    copy = folder.checkpoints("2") / "sparse"
    assert copy.stat().st_size == 128 << 20
    assert copy.stat().st_blocks <= (left / "sparse").stat().st_blocks + 16
    assert copy.read_bytes() == (left / "sparse").read_bytes()


def test_nothing_is_copied_to_a_disk_that_has_no_room_for_all(folder, monkeypatch):
    (folder.checkpoints("1") / "large").write_bytes(b"x" * (1 << 20))
    room = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(
        inheritance, "os", SimpleNamespace(**vars(os) | {"statvfs": lambda _: room})
    )
    with pytest.raises(AgentError, match=r"take [0-9,]+ bytes, and the disk of .* for 4,096: make"):
        inherit(folder, "1", "2")
    assert not folder.checkpoints("2").exists()


def test_a_copy_ends_with_the_wish_for_it(folder):
    (folder.checkpoints("1") / "large").write_bytes(b"x" * (3 * PIECE_BYTES))
    asked = iter([True] * 4)
    with pytest.raises(AgentError, match="are copied no further: the job is to end"):
        inherit(folder, "1", "2", lambda: next(asked, False))
    assert not folder.checkpoints("2").exists()
    assert not folder.checkpoints("2.new").exists()
