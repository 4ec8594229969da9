"""Snapshots on a node: unpacked once, and copied for each attempt."""

import asyncio
import gzip
import hashlib
import io
import os
import tarfile

import pytest

from rota.client.snapshot import pack
from rota.errors import AgentError, NeverStartsError
from rota.folder import Folder
from rota.live.agent.cleaning import remove_cleaned
from rota.live.agent.endpoint import FolderEndpoint
from rota.live.agent.record import Record
from rota.live.agent.snapshots import Snapshots, unpack
from rota.live.agent.workdir import thin, workdir_of
from rota.live.wire import clock
from support.served import controller_without_agents, served
from support.small_disk import fill, small_disk

NODE = "here"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("node") / "home").create()


@pytest.fixture(scope="module")
def cluster(folder):
    with served(folder, controller_without_agents(folder)) as it:
        yield it


class Node:
    def __init__(self, folder, place):
        """A node with a folder of its own, whose controller is that of another folder."""
        self.folder = Folder(place)
        self.fetched = 0
        self._endpoint = FolderEndpoint(folder, None)
        self.snapshots = Snapshots(self.folder, NODE, self._address)
        self._home = folder

    def _address(self):
        self.fetched += 1
        return self._endpoint.address()

    def keep(self, digest, archive):
        self._home.snapshots.mkdir(exist_ok=True)
        (self._home.snapshots / digest).write_bytes(archive)

    def attempt(self, digest, job_id="1", number=1, **program):
        record = Record(
            version=1,
            job_id=job_id,
            attempt=number,
            slots=1,
            members=[0],
            gpus=[0],
            max_world=1,
            movable=False,
            visible=None,
            suspension="process",
            program={"run": "", "workdir": "", "snapshot": digest} | program,
        )
        place = self.folder.attempt(NODE, job_id, number)
        place.mkdir(parents=True, exist_ok=True)
        return record, place

    def prepare(self, *attempts):
        async def main():
            return await asyncio.gather(*(self.snapshots.prepare(*each) for each in attempts))

        return asyncio.run(main())


@pytest.fixture
def node(cluster, folder, tmp_path):
    return Node(folder, tmp_path / "there")


@pytest.fixture
def packed(node, tmp_path):
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "src" / "run.sh").write_text("echo\n")
    (work / "src" / "run.sh").chmod(0o755)
    (work / "link").symlink_to("src")
    made = pack(str(work))
    node.keep(made.digest, made.archive)
    return made


def test_attempts_at_once_have_it_unpacked_once_and_a_copy_each(node, packed):
    attempts = [node.attempt(packed.digest, str(job_id)) for job_id in range(3)]
    [tree, *_] = node.prepare(*attempts)
    assert node.fetched == 1
    assert (tree / "src" / "run.sh").stat().st_mode & 0o777 == 0o755
    for record, place in attempts:
        copy = place / "workdir"
        assert workdir_of(record.program, place) == str(copy)
        assert os.readlink(copy / "link") == "src"
        (copy / "link" / "run.sh").write_text("spoilt")
    assert (tree / "src" / "run.sh").read_text() == "echo\n"
    node.prepare(attempts[0])  # the same command once more
    assert (attempts[0][1] / "workdir" / "src" / "run.sh").read_text() == "spoilt"
    assert node.fetched == 1


def test_a_copy_that_was_cut_short_is_finished(node, packed):
    record, place = node.attempt(packed.digest)
    (place / "workdir" / "src").mkdir(parents=True)
    (place / "workdir" / "src" / "run.sh").write_text("ec")
    (place / "workdir" / "link").symlink_to("nowhere")
    node.prepare((record, place))
    assert (place / "workdir" / "src" / "run.sh").read_text() == "echo\n"
    assert os.readlink(place / "workdir" / "link") == "src"


def test_what_an_attempt_has_not_changed_is_removed_at_its_end(node, packed):
    record, place = node.attempt(packed.digest)
    copy = place / "workdir"
    (copy.with_name("other")).mkdir()
    thin(copy.with_name("other"))
    [tree] = node.prepare((record, place))
    for name in ("out", "src/kept"):
        (copy / name).mkdir()
        (copy / name / "result").write_text("1")
    (copy / "src" / "more").touch()
    (copy / "new").symlink_to("src")
    thin(copy)
    left = sorted(str(each.relative_to(copy)) for each in copy.rglob("*"))
    assert left == ["new", "out", "out/result", "src", "src/kept", "src/kept/result", "src/more"]
    node.prepare(other := node.attempt(packed.digest, "2"))
    copy = other[1] / "workdir"
    (copy / "link").unlink()
    (copy / "link").write_text("a file now")
    os.utime(copy / "src" / "run.sh")
    thin(copy)
    assert sorted(each.name for each in copy.rglob("*")) == ["link", "run.sh", "src"]
    assert sorted(each.name for each in tree.iterdir()) == ["link", "src"]
    thin(copy.with_name("gone"))


def test_a_job_with_a_setup_fills_its_folder_itself(node, packed):
    record, place = node.attempt(packed.digest, setup="true")
    node.prepare((record, place))
    assert list((place / "workdir").iterdir()) == []


def test_files_of_another_boot_are_not_trusted(node, packed, monkeypatch):
    [tree] = node.prepare(node.attempt(packed.digest))
    (tree / "src" / "run.sh").write_text("")  # what a power cut may leave of it
    monkeypatch.setattr(clock, "boot_id", lambda: "the next one")
    record, place = node.attempt(packed.digest, "2")
    node.prepare((record, place))
    assert (place / "workdir" / "src" / "run.sh").read_text() == "echo\n"
    assert node.fetched == 2


def test_what_an_agent_that_was_killed_has_left_is_unpacked_anew(node, packed):
    place = node.folder.unpacked(NODE, packed.digest)
    for name in ("tree.part", "tree"):
        (place / name).mkdir(parents=True)
        (place / name / "half").touch()
    [tree] = node.prepare(node.attempt(packed.digest))
    assert sorted(each.name for each in tree.iterdir()) == ["link", "src"]
    assert sorted(each.name for each in place.iterdir()) == ["boot", "tree", "users"]


PYTHONS = ["this one", "3.11.2"]


def as_by(python, monkeypatch):
    """Unpack as a Python of this version does: Debian 12's is older than tarfile's filters."""
    if python == "3.11.2":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def archive_of(*members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind, target in members:
            told = tarfile.TarInfo(name)
            told.type, told.linkname = kind, target
            archive.addfile(told)
    return hashlib.sha256(data.getvalue()).hexdigest(), gzip.compress(data.getvalue())


@pytest.mark.parametrize(
    "member",
    [
        ("../out", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "../../../out"),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("link", tarfile.LNKTYPE, "../../../out"),
        ("device", tarfile.CHRTYPE, ""),
        ("pipe", tarfile.FIFOTYPE, ""),
    ],
)
@pytest.mark.parametrize("python", PYTHONS)
def test_an_archive_that_leads_out_is_refused_for_good(node, member, python, monkeypatch):
    as_by(python, monkeypatch)
    digest, archive = archive_of(("first", tarfile.REGTYPE, ""), member)
    node.keep(digest, archive)
    with pytest.raises(NeverStartsError, match=f"snapshot {digest[:12]}: ") as refused:
        node.prepare(node.attempt(digest))
    assert refused.value.obstacle == "snapshot"
    assert not (node.folder.unpacked(NODE, digest) / "boot").exists()
    assert not list(node.folder.unpacked(NODE, digest).rglob("out"))


def test_an_archive_through_whose_links_files_would_lead_out_is_refused(node, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    members = ("here", tarfile.SYMTYPE, "."), ("here/up", tarfile.SYMTYPE, "..")
    digest, archive = archive_of(*members, ("up/out", tarfile.REGTYPE, ""))
    node.keep(digest, archive)
    with pytest.raises(NeverStartsError, match="leads out of the folder"):
        node.prepare(node.attempt(digest))


def test_a_python_whose_tarfile_has_no_filters_unpacks_the_same(
    node, packed, tmp_path, monkeypatch
):
    def all_in(place):
        return {
            str(path.relative_to(place)): (path.lstat().st_mode, path.lstat().st_uid)
            for path in place.rglob("*")
        }

    (tmp_path / "archive").write_bytes(packed.archive)
    unpack(tmp_path / "archive", tmp_path / "with filters")
    as_by("3.11.2", monkeypatch)
    unpack(tmp_path / "archive", tmp_path / "without")
    assert all_in(tmp_path / "without") == all_in(tmp_path / "with filters")
    [tree] = node.prepare(node.attempt(packed.digest))
    assert os.readlink(tree / "link") == "src"


def test_what_the_controller_does_not_have_and_damage_on_the_way_are_told(node, packed):
    with pytest.raises(NeverStartsError, match=r"snapshot 000000000000: .*no longer \(404\)"):
        node.prepare(node.attempt("0" * 64))
    for wrong in ("..", "../../../checkpoints", "A" * 64, ["0" * 64]):
        with pytest.raises(AgentError, match="it is no digest"):
            node.prepare(node.attempt(wrong))
    node.keep(packed.digest, packed.archive[:-20])
    with pytest.raises(NeverStartsError, match="ends too early"):
        node.prepare(node.attempt(packed.digest))
    node.keep(packed.digest, packed.archive)
    node.prepare(node.attempt(packed.digest))


def test_it_is_removed_with_the_last_attempt_whose_files_are_kept(node, packed):
    attempts = [node.attempt(packed.digest, "1", 1), node.attempt(packed.digest, "2", 3)]
    node.prepare(*attempts)
    place = node.folder.unpacked(NODE, packed.digest)
    for _, gone in attempts:
        node.snapshots.set_needless_aside()
        assert place.exists()
        gone.rename(gone.with_name("cleaned"))
    node.snapshots.set_needless_aside()
    assert not place.exists()
    remove_cleaned(node.folder, NODE)
    assert list((node.folder.node(NODE) / "cleaned").iterdir()) == []


def test_a_node_whose_disk_is_full_says_so_and_tries_again(cluster, folder, packed, tmp_path):
    with small_disk(tmp_path / "small", 1 << 20) as place:
        node = Node(folder, place / "home")
        attempt = node.attempt(packed.digest)
        filler = fill(place)
        with pytest.raises(AgentError, match=r"snapshot .*: No space left on device") as full:
            node.prepare(attempt)
        assert not isinstance(full.value, NeverStartsError)
        filler.unlink()
        node.prepare(attempt)
        assert (attempt[1] / "workdir" / "src" / "run.sh").read_text() == "echo\n"
