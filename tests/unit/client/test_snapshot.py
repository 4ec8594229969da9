"""Folders packed into snapshots: which files, always the same, and nothing that leads out."""

import gzip
import io
import os
import socket
import subprocess
import tarfile

import pytest

from rota.client import snapshot
from rota.client.snapshot import pack
from rota.errors import InputError
from rota.model.snapshot import MAX_BYTES, Check


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "work"
    (place / "src").mkdir(parents=True)
    (place / "train.py").write_text("print(1)\n")
    (place / "src" / "run.sh").write_text("echo\n")
    (place / "src" / "run.sh").chmod(0o700)
    return place


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


def members(packed):
    with tarfile.open(fileobj=io.BytesIO(packed.archive), mode="r:gz") as archive:
        return {each.name: each for each in archive}


def unpacked(packed, place):
    with tarfile.open(fileobj=io.BytesIO(packed.archive), mode="r:gz") as archive:
        archive.extractall(place, filter="data")
    return place


def test_all_files_of_a_folder_are_packed_with_who_may_execute_them(folder, tmp_path):
    (folder / "empty").mkdir()
    found = members(packed := pack(str(folder)))
    assert list(found) == ["empty", "src/run.sh", "train.py"]
    assert [found[name].mode for name in found] == [0o755, 0o755, 0o644]
    place = unpacked(packed, tmp_path / "there")
    assert (place / "train.py").read_text() == "print(1)\n"
    assert (place / "empty").is_dir()


def test_the_same_content_gives_the_same_digest_and_nothing_else_does(folder, tmp_path):
    before = pack(str(folder))
    os.utime(folder / "train.py", (7, 7))
    (folder / "train.py").chmod(0o600)
    other = tmp_path / "other"
    other.symlink_to(folder)
    assert pack(str(folder)) == pack(str(other)) == before
    (folder / "train.py").chmod(0o700)
    changed = {pack(str(folder)).digest}
    (folder / "train.py").write_text("print(2)\n")
    changed.add(pack(str(folder)).digest)
    (folder / "train.py").rename(folder / "test.py")
    changed.add(pack(str(folder)).digest)
    assert len(changed | {before.digest}) == 4
    check = Check(before.digest)
    check.feed(before.archive)
    check.end()


def test_in_a_repository_what_git_ignores_stays_here(folder):
    git(folder, "init")
    (folder / ".gitignore").write_text("*.pt\nruns/\n")
    (folder / "weights.pt").write_text("x")
    (folder / "kept.pt").write_text("x")
    (folder / "runs").mkdir()
    (folder / "runs" / "log").write_text("x")
    (folder / "gone.py").write_text("x")
    git(folder, "add", "--force", "kept.pt", "train.py", "gone.py")
    git(folder, "commit", "-m", "one")
    (folder / "gone.py").unlink()
    (folder / "new\nname.py").write_text("x")
    assert list(members(pack(str(folder)))) == [
        ".gitignore", "kept.pt", "new\nname.py", "src/run.sh", "train.py"
    ]  # fmt: skip
    assert list(members(pack(str(folder / "src")))) == ["run.sh"]
    with pytest.raises(InputError, match="no file in it is one that git would not ignore"):
        pack(str(folder / "runs"))


def test_a_repository_in_a_repository_is_packed_by_its_own_rules(folder):
    git(folder, "init")
    inner = folder / "inner"
    inner.mkdir()
    git(inner, "init")
    (inner / ".gitignore").write_text("out\n")
    (inner / "out").write_text("x")
    assert "inner/.gitignore" in (found := members(pack(str(folder))))
    assert not {"inner/out", "inner"} & found.keys()


def test_a_hook_of_git_packs_the_folder_that_it_is_told(folder, monkeypatch, tmp_path):
    git(folder, "init")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert "train.py" in members(pack(str(folder)))


def test_what_git_does_not_tell_is_refused(folder, monkeypatch):
    (folder / ".git").write_text("gitdir: /nowhere\n")
    with pytest.raises(InputError, match="git does not tell its files: fatal"):
        pack(str(folder))
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(InputError, match="there is no git here"):
        pack(str(folder))


@pytest.mark.parametrize("target", ["../outside", "/etc/hostname", "src/../../outside", "loop/.."])
def test_a_link_that_leads_out_is_refused(folder, target):
    (folder.parent / "outside").write_text("secret")
    (folder / "loop").symlink_to("..")
    if target != "loop/..":
        (folder / "loop").unlink()
    (folder / "src" / "link").symlink_to(target if target[0] == "/" else f"../{target}")
    with pytest.raises(InputError, match=r"(link|loop)'.*this link leads out of the folder"):
        pack(str(folder))


@pytest.mark.parametrize("has_filters", [True, False])
@pytest.mark.parametrize("target", ["../../{}/train.py", "../src/../../{}", "zlater/../../../x"])
def test_a_link_that_agents_would_not_unpack_is_refused(folder, monkeypatch, target, has_filters):
    """Here each leads back into the folder."""
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    (folder / "src" / "link").symlink_to(target.format(folder.name))
    (folder / "src" / "deep" / "er").mkdir(parents=True)
    (folder / "src" / "zlater").symlink_to("deep/er")
    with pytest.raises(
        InputError, match="src/link' leads out of the folder once that is elsewhere"
    ):
        pack(str(folder))


def test_links_that_stay_are_kept_and_what_is_behind_them_is_packed_once(folder, tmp_path):
    (folder / "main.py").symlink_to("train.py")
    (folder / "code").symlink_to("src")
    (folder / "later").symlink_to("not-yet")
    packed = pack(str(folder))
    assert list(members(packed)) == ["code", "later", "main.py", "src/run.sh", "train.py"]
    place = unpacked(packed, tmp_path / "there")
    assert os.readlink(place / "main.py") == "train.py"
    assert (place / "code" / "run.sh").read_text() == "echo\n"


def test_a_folder_that_git_knows_and_that_is_a_link_now_is_the_link(folder):
    git(folder, "init")
    (folder / "data").mkdir()
    (folder / "data" / "a").write_text("x")
    git(folder, "add", ".")
    (folder / "data" / "a").unlink()
    (folder / "data").rmdir()
    (folder / "data").symlink_to("src")
    assert list(members(pack(str(folder)))) == ["data", "src/run.sh", "train.py"]
    (folder / "data").unlink()
    (folder / "data").symlink_to(folder.parent)
    with pytest.raises(InputError, match=r"data'.*leads out"):
        pack(str(folder))


def test_special_files_and_files_that_cannot_be_read_are_refused(folder, monkeypatch):
    os.mkfifo(folder / "pipe")
    with pytest.raises(InputError, match=r"pipe'.*neither a file nor a link nor a folder"):
        pack(str(folder))
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as it:
        monkeypatch.chdir(folder)
        it.bind("s")
        assert "s" not in members(pack(str(folder))), "nothing is in a socket"
    with pytest.raises(InputError, match="there is no such folder here"):
        pack(str(folder / "nowhere"))


def test_too_much_is_refused_with_the_largest_files_before_it_is_read(folder, monkeypatch):
    with open(folder / "big.bin", "wb") as file:
        file.truncate(1 << 40)
    with open(folder / "large.bin", "wb") as file:
        file.truncate(MAX_BYTES // 2)
    with pytest.raises(InputError) as refused:
        pack(str(folder))
    text = str(refused.value)
    assert "'big.bin' (1048576.0 MiB), 'large.bin' (32.0 MiB)" in text
    assert "at most 64.0 MiB" in text
    assert "have git ignore what the job does not need (git init, .gitignore)" in text
    (folder / "big.bin").unlink()
    assert len(gzip.decompress(pack(str(folder)).archive)) <= MAX_BYTES
    monkeypatch.setattr(snapshot, "MAX_FILES", 2)
    with pytest.raises(InputError, match="more than 2 files"):
        pack(str(folder))


def test_any_name_comes_out_as_it_went_in(folder, tmp_path):
    names = [b"\xff\xfe", "ü ñ".encode(), b"-rf", b"a\tb", b"x" * 255]
    for name in names:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(name)
    place = os.fsencode(unpacked(pack(str(folder)), tmp_path / "there"))
    for name in names:
        with open(os.path.join(place, name), "rb") as file:
            assert file.read() == name
