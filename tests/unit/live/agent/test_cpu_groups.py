"""Control groups on folders that stand for the kernel's, and on the kernel's where it lets us."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent import cpu_groups
from rota.live.agent.cpu_groups import (
    LEAF,
    GroupsV1,
    GroupsV2,
    Hierarchy,
    cores_in,
    find,
    hierarchies,
    identity,
    keep,
    kept,
)

HOSTILE = (
    "",
    ".",
    "..",
    "../../../etc",
    "7",
    "7.1/..",
    "7.1\n",
    "/7.1",
    "7.1.1",
    "-1.1",
    "7.x",
    "7.1 ",
)


class Kernel:
    """Folders that behave as control groups: a new one has its files, an empty one can go."""

    def __init__(self, monkeypatch, files):
        self.files, self.refused = files, {}
        self.mkdir, self.rmdir, self.write = Path.mkdir, Path.rmdir, cpu_groups._write
        monkeypatch.setattr(Path, "mkdir", lambda path, **options: self.make(path, options))
        monkeypatch.setattr(Path, "rmdir", lambda path: self.remove(path))
        monkeypatch.setattr(cpu_groups, "_write", self.writes)

    def make(self, path, options):
        known = path.exists()
        self.mkdir(path, **options)
        for name, text in self.files.items():
            if not known and path.parent.name != "":
                (path / name).write_text(text)

    def remove(self, path):
        if any(each.is_dir() for each in path.iterdir()) or members(path):
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        for file in path.iterdir():
            file.unlink()
        self.rmdir(path)

    def writes(self, file, text):
        """Write as the kernel does; a process leaves the group that it was in."""
        if not file.exists():
            raise OSError(errno.EACCES, "Permission denied", str(file))
        if file.name == "cgroup.subtree_control":
            if members(file.parent):
                raise OSError(errno.EBUSY, "Device or resource busy", str(file))
            self.write(file, text.replace("+", ""))
        elif file.name == "cgroup.procs":
            top = next(p for p in file.parents if not (p.parent / "cgroup.procs").exists())
            for other in [top, *(p for p in top.rglob("*") if p.is_dir())]:
                self.write(
                    other / "cgroup.procs", "\n".join(map(str, members(other) - {int(text)}))
                )
            self.write(file, "\n".join(map(str, members(file.parent) | {int(text)})))
        else:
            self.write(file, text)


def members(folder):
    file = folder / "cgroup.procs"
    return set(map(int, file.read_text().split())) if file.exists() else set()


V1 = {
    "cpu.cfs_quota_us": "-1\n",
    "cpu.shares": "1024\n",
    "cgroup.procs": "",
    "cpuset.cpus": "",
    "cpuset.mems": "",
}
V2 = {
    "cpu.weight": "100\n",
    "cgroup.controllers": "cpu cpuset\n",
    "cgroup.subtree_control": "",
    "cgroup.procs": "",
    "cpu.max": "max 100000\n",
    "cpuset.cpus": "\n",
}


@pytest.fixture
def first(tmp_path, monkeypatch):
    """Version 1, quotas and cores."""
    kernel = Kernel(monkeypatch, V1)
    for name in ("cpu", "cpuset"):
        (tmp_path / name).mkdir()
    for name, text in (("cpuset.cpus", "0-3\n"), ("cpuset.mems", "0-1\n")):
        (tmp_path / "cpuset" / name).write_text(text)
    kernel.top = tmp_path
    return kernel


@pytest.fixture
def second(tmp_path, monkeypatch):
    """Version 2: a delegated group with the agent and its controller in it."""
    kernel = Kernel(monkeypatch, V2)
    kernel.top = tmp_path / "delegated"
    kernel.top.mkdir()
    (kernel.top / "cgroup.procs").write_text("10\n11\n")
    return kernel


def test_version_1_holds_a_group_to_its_quota_and_to_chosen_cores(first):
    groups = GroupsV1.make(first.top / "cpu", "x", first.top / "cpuset")
    groups.set("7.1", 2500, {1, 2})
    cpu, cpuset = first.top / "cpu" / "rota-x" / "7.1", first.top / "cpuset" / "rota-x" / "7.1"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "250000"
    assert (cpuset / "cpuset.cpus").read_text() == "1,2"
    assert (cpuset / "cpuset.mems").read_text() == "0-1"
    assert groups.doors("7.1") == [str(each / "cgroup.procs") for each in (cpu, cpuset)]
    assert (cpu / "cpu.shares").read_text() == "2560"
    assert int((cpu.parent / "cpu.shares").read_text()) == 1024 * len(os.sched_getaffinity(0))
    groups.set("7.1", None)
    assert (cpu / "cpu.cfs_quota_us").read_text() == "-1"
    assert (cpu / "cpu.shares").read_text() == "1024"
    groups.remove("7.1")
    assert not (first.top / "cpu" / "rota-x").exists(), "nothing stays of the last group"


def test_version_2_keeps_the_agent_in_a_leaf_beside_the_jobs(second):
    groups = GroupsV2.make(second.top, "x", [10, 11])
    assert members(second.top) == set()
    assert members(second.top / LEAF) == {10, 11}
    assert (second.top / "cgroup.subtree_control").read_text() == "cpu cpuset"
    groups.set("7.1", 250)
    assert (second.top / "rota-x" / "cgroup.subtree_control").read_text() == "cpu cpuset"
    assert (second.top / "rota-x" / "7.1" / "cpu.max").read_text() == "25000 100000"
    assert (second.top / "rota-x" / "7.1" / "cpu.weight").read_text() == "25"
    again = GroupsV2.make(second.top / LEAF, "y", [12])
    assert again.trees == [second.top / "rota-y"], "another agent finds itself in the leaf"


def test_version_2_moves_nobody_else_and_leaves_all_as_it_was_then(second):
    (second.top / "cgroup.procs").write_text("10\n11\n99\n")
    with pytest.raises(AgentError, match=r"processes that are not Rota's are in .*delegated"):
        GroupsV2.make(second.top, "x", [10, 11])
    assert members(second.top) == {10, 11, 99}
    assert not (second.top / LEAF).exists()


def test_without_the_cpu_controller_there_are_no_groups_of_version_2(second):
    (second.top / "cgroup.controllers").write_text("hugetlb\n")
    with pytest.raises(AgentError, match="has no cpu controller"):
        GroupsV2.make(second.top, "x", [10])
    assert members(second.top) == {10, 11}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leads_out_of_the_folder(first, name):
    groups = GroupsV1.make(first.top / "cpu", "x", None)
    before = sorted(first.top.rglob("*"))
    for act in (groups.doors, groups.remove, groups.check, lambda name: groups.set(name, 500)):
        with pytest.raises(AgentError, match="no name of a control group"):
            act(name)
    assert sorted(first.top.rglob("*")) == before


def test_groups_of_others_are_never_touched(first, monkeypatch):
    mine, theirs = (GroupsV1.make(first.top / "cpu", each, None) for each in "xy")
    for groups in (mine, theirs):
        groups.set("7.1", 500)
        (groups.trees[0] / "notes").mkdir()
    assert mine.names() == ["7.1"]
    mine.close()
    assert theirs.names() == ["7.1"]
    assert [each.name for each in mine.trees[0].iterdir() if each.is_dir()] == ["notes"]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert theirs.names() == []
    with pytest.raises(PermissionError, match="it belongs to another user"):
        theirs.check("7.1")
    with pytest.raises(AgentError, match="rota-y belongs to another user"):
        GroupsV1.make(first.top / "cpu", "y", None)


def test_a_limit_that_is_there_is_not_written_again(first, monkeypatch):
    groups = GroupsV1.make(first.top / "cpu", "x", None)
    groups.set("7.1", 500)
    monkeypatch.setattr(cpu_groups, "_write", lambda *_: pytest.fail("it was written"))
    groups.set("7.1", 500)


def test_the_kernel_takes_no_quota_of_less_than_a_millisecond(first):
    groups = GroupsV1.make(first.top / "cpu", "x", None)
    groups.set("7.1", 1)
    assert (groups.trees[0] / "7.1" / "cpu.cfs_quota_us").read_text() == "1000"


def test_a_process_that_forks_is_moved_with_all_that_comes_of_it(first):
    groups = GroupsV1.make(first.top / "cpu", "x", None)
    groups.set("7.1", 500)
    tree = [[5], [5, 6], [5, 6, 7], [5, 6, 7]]
    groups.gather("7.1", lambda: tree.pop(0) if len(tree) > 1 else tree[0])
    assert members(groups.trees[0] / "7.1") == {5, 6, 7}


def test_the_next_agent_finds_the_groups_but_not_those_of_a_copied_folder(tmp_path):
    (tmp_path / "home").mkdir()
    folder, file = Folder(tmp_path / "home"), tmp_path / "cpu-groups.json"
    name = identity(folder, "n")
    assert kept(file, name) is None
    keep(file, GroupsV2([tmp_path / f"rota-{name}"]))
    found = kept(file, name)
    assert (type(found), found.trees) == (GroupsV2, [tmp_path / f"rota-{name}"])
    (tmp_path / "home").rename(tmp_path / "old")
    (tmp_path / "home").mkdir()
    assert identity(folder, "n") != name, "another folder in its place is another cluster"
    assert kept(file, identity(folder, "n")) is None
    for text in ("", "[]", '{"version": "cgroup v3", "trees": []}', '{"version": []}'):
        file.write_text(text)
        assert kept(file, name) is None
    keep(file, None)
    assert not file.exists()


def test_a_process_finds_its_groups_where_they_are_mounted(tmp_path):
    (tmp_path / "cgroup").write_text(
        "5:cpu,cpuacct:/docker/a b\n4:memory:/else\n3:pids:/../outside\n0::/user/me\n"
    )
    (tmp_path / "mountinfo").write_text(
        "23 1 0:5 / /proc rw - proc proc rw\n"
        "31 1 0:9 /docker/a\\040b /mnt/cpu\\040s rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n"
        "32 1 0:8 /docker /mnt/memory rw - cgroup cgroup rw,memory\n"
        "33 1 0:7 / /mnt/pids rw - cgroup cgroup rw,pids\n"
        "34 1 0:6 / /mnt/two rw - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert hierarchies(tmp_path) == [
        Hierarchy(1, frozenset({"cpu", "cpuacct"}), Path("/mnt/cpu s")),
        Hierarchy(2, frozenset(), Path("/mnt/two/user/me")),
    ]
    assert hierarchies(tmp_path / "none") == []


def test_without_control_groups_the_reason_is_told(tmp_path):
    groups, reasons = find("x", list, tmp_path)
    assert groups is None
    assert reasons == ["no hierarchy of control groups is mounted"]


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("0,2-3", {0, 2, 3})],
)
def test_lists_of_cores_are_read_as_the_kernel_writes_them(text, cores):
    assert cores_in(text) == cores


@pytest.fixture
def real():
    """Groups that the kernel gives this user."""
    groups, reasons = find(f"test-{os.getpid()}", list, binds=True)
    if groups is None:
        pytest.skip("no control groups: " + "; ".join(reasons))
    yield groups
    for name in groups.names():
        groups.remove(name)


def test_the_kernel_holds_a_process_and_lets_an_empty_group_go(real, record_property):
    record_property("mechanism", real.name)
    real.set("7.1", 250, {min(os.sched_getaffinity(0))} if real.binds else ())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        real.gather("7.1", lambda: [child.pid])
        real.check("7.1")
        assert str(child.pid) in Path(real.doors("7.1")[0]).read_text().split()
        if real.binds:
            assert os.sched_getaffinity(child.pid) == {min(os.sched_getaffinity(0))}
        with pytest.raises(OSError, match="busy"):
            real.remove("7.1")
        assert real.names() == ["7.1"]
    real.remove("7.1")
    assert not real.trees[0].exists()
    with pytest.raises(FileNotFoundError):
        real.check("7.1")


KILLED = """
import os, signal, sys
from pathlib import Path
from rota.live.agent import cpu_groups
from rota.live.agent.cpu_groups import GroupsV1, GroupsV2, try_out
name, moment, trees = sys.argv[1], sys.argv[2], list(map(Path, sys.argv[3:]))
groups = {kind.name: kind for kind in (GroupsV1, GroupsV2)}[name](trees)
write = cpu_groups._write
def writes(file, text):
    write(file, text)
    if file.name == moment:
        os.kill(os.getpid(), signal.SIGKILL)
cpu_groups._write = writes
try_out(groups)
"""


@pytest.mark.parametrize("moment", ["limited", "joined"])
def test_no_group_stays_of_an_agent_that_is_killed_during_its_trial(real, moment, record_property):
    record_property("mechanism", real.name)
    file = {"limited": real._quota_file, "joined": "cgroup.procs"}[moment]
    words = [sys.executable, "-c", KILLED, real.name, file, *map(str, real.trees)]
    # The trial's process holds this pipe as well, and closes it as the last thing that it does.
    with subprocess.Popen(words, stderr=subprocess.PIPE) as agent:
        assert agent.stderr.read() == b""
    assert agent.returncode == -signal.SIGKILL
    assert real.names() == []
    assert not any(tree.exists() for tree in real.trees)


def test_a_group_on_a_read_only_mount_is_noticed(real, tmp_path):
    real.set("7.1", 250)
    above, view = real.trees[0].parent, tmp_path / "view"
    view.mkdir()
    if os.geteuid() or subprocess.run(["mount", "--bind", above, view], check=False).returncode:
        pytest.skip("only root can mount")
    try:
        seen = type(real)([view / real.trees[0].name])
        seen.check("7.1")
        subprocess.run(["mount", "-o", "remount,bind,ro", view], check=True)
        with pytest.raises(OSError, match="can't be written"):
            seen.check("7.1")
        with pytest.raises(OSError, match="Read-only"):
            seen.set("7.1", 300)
    finally:
        subprocess.run(["umount", view], check=True)
