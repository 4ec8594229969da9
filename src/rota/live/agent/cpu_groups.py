"""Control groups that hold jobs to their part of a node's CPU cores, of version 2 or 1.

A node's groups lie in a folder of its own, ``rota-IDENTITY``, below the group that its agent was
started in; a job's group is ``JOB.ATTEMPT`` in it. Folders of other nodes and clusters have another
identity, and are never touched. The kernel is asked by doing it: where a write or a process is
refused, :func:`find` says why.
"""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from rota.errors import AgentError
from rota.folder import Folder

PERIOD_US = 100_000
CORE = 1_000  # thousandths
LEAST_QUOTA_US = 1_000  # the kernel refuses less
NAME = re.compile(r"[0-9]{1,15}\.[0-9]{1,19}")
TRIAL = "0.0"  # the group that is tried; no job has this number
LEAF = "rota-agents"  # of version 2: the processes that do not belong to a job
PROC = Path("/proc/self")
# The process of a trial: once the agent lets go of it, it leaves its groups and removes them.
HELD = """
import os, sys
sys.stdin.read()
for group, home in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        with open(home + "/cgroup.procs", "w") as door:
            door.write(str(os.getpid()))
        os.rmdir(group)
        os.rmdir(os.path.dirname(group))
    except OSError:
        pass
"""
ESCAPED = re.compile(r"\\([0-7]{3})")


class Groups:
    """The groups of one node: ``folder`` in each of the ``trees``, the one of the quotas first.

    All methods raise OSError for what the kernel refuses, and AgentError for a name that is none.
    """

    name: ClassVar[str]

    def __init__(self, trees: Sequence[Path]) -> None:
        self.trees = list(trees)

    @property
    def binds(self) -> bool:
        """True if a group can be restricted to chosen cores, beside its quota."""
        raise NotImplementedError

    def set(
        self,
        group: str,
        millicores: int | None,
        cores: Collection[int] = (),
        *,
        background: bool = False,
    ) -> None:
        """Let the group use so much, on these cores alone if any are named; None: no limit.

        Where there is less than all groups may use, one in the ``background`` gets next to nothing.
        It is made if there is none. A limit that it has already is not written again: each write
        gives the group a new period.
        """
        folders = self._folders(group)
        for tree, folder in zip(self.trees, folders, strict=True):
            if not tree.is_dir():
                self._make(tree)
            folder.mkdir(exist_ok=True)
        quota = folders[0] / self._quota_file
        if quota.read_text().split() != self._quota(millicores):
            _write(quota, self._quota_text(millicores))
        self._weigh(folders[0], 0 if background else CORE if millicores is None else millicores)
        if cores and self.binds:
            self._bind(folders[-1], cores)

    def check(self, group: str) -> None:
        """Raise OSError unless the group is there, this user's, and can be written."""
        for folder in self._folders(group):
            if folder.stat().st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
            if not os.access(folder / "cgroup.procs", os.W_OK):
                raise OSError(errno.EROFS, "it can't be written", str(folder))

    def doors(self, group: str) -> list[str]:
        """The files into which a process writes its pid to join the group."""
        return [str(folder / "cgroup.procs") for folder in self._folders(group)]

    def gather(self, group: str, below: Callable[[], Iterable[int]]) -> None:
        """Move processes into the group, those that they fork meanwhile included."""
        for door in map(Path, self.doors(group)):
            seen: set[int] = set()
            while new := set(below()) - seen - {int(pid) for pid in door.read_text().split()}:
                seen |= new
                for pid in new:
                    with suppress(ProcessLookupError):
                        _write(door, str(pid))

    def names(self) -> list[str]:
        """The groups that are there; those with other names, or of other users, are not Rota's."""
        found: set[str] = set()
        for tree in self.trees:
            with suppress(OSError):
                found |= {name for name in os.listdir(tree) if self._is_own(tree / name)}
        return sorted(found)

    @staticmethod
    def _is_own(folder: Path) -> bool:
        return bool(NAME.fullmatch(folder.name)) and folder.stat().st_uid == os.geteuid()

    def remove(self, group: str) -> None:
        """Remove a group in which no process is left, and the folder of the last one."""
        for tree, folder in zip(self.trees, self._folders(group), strict=True):
            with suppress(FileNotFoundError):
                folder.rmdir()
            with suppress(OSError):
                tree.rmdir()

    def close(self) -> None:
        """Remove the groups without processes, and their folder once it is empty."""
        for group in self.names():
            with suppress(OSError):
                self.remove(group)
        for tree in self.trees:
            with suppress(OSError):
                tree.rmdir()

    def _folders(self, group: str) -> list[Path]:
        if not NAME.fullmatch(group):
            raise AgentError(f"{group!r:.80} is no name of a control group: it must be JOB.ATTEMPT")
        return [tree / group for tree in self.trees]

    _quota_file: ClassVar[str]
    _weight_file: ClassVar[str]

    def _make(self, tree: Path) -> None:
        """Make the folder of the node's groups."""
        tree.mkdir()
        if tree is self.trees[0]:
            self._weigh(tree, CORE * len(os.sched_getaffinity(0)))

    def _weigh(self, folder: Path, millicores: int) -> None:
        """Where there is less than all quotas together, have the kernel give in proportion.

        A group without a weight of its own counts as one process among those beside it.
        """
        file, weight = folder / self._weight_file, str(self._weight(millicores))
        if file.read_text().strip() != weight:
            _write(file, weight)

    def _weight(self, millicores: int) -> int:
        """The weight in the kernel's units: for a whole core, that of a process."""
        raise NotImplementedError

    def _quota(self, millicores: int | None) -> list[str]:
        """The words of the quota's file."""
        raise NotImplementedError

    def _quota_text(self, millicores: int | None) -> str:
        return " ".join(self._quota(millicores))

    def _bind(self, folder: Path, cores: Collection[int]) -> None:
        text = ",".join(map(str, sorted(cores)))
        if cores_in((folder / "cpuset.cpus").read_text()) != set(cores):
            _write(folder / "cpuset.cpus", text)


class GroupsV2(Groups):
    """Groups of version 2, where the agent's own group is delegated to its user.

    A group with processes of its own can have no limits below it, so that the agent, and what has
    started it, move into a leaf beside the jobs' groups.
    """

    name = "cgroup v2"
    _quota_file, _weight_file = "cpu.max", "cpu.weight"

    @property
    def binds(self) -> bool:
        return "cpuset" in (self.trees[0].parent / "cgroup.subtree_control").read_text().split()

    def _make(self, tree: Path) -> None:
        super()._make(tree)
        enabled = (tree.parent / "cgroup.subtree_control").read_text().split()
        limits = [f"+{each}" for each in ("cpu", "cpuset") if each in enabled]
        _write(tree / "cgroup.subtree_control", " ".join(limits))

    def _weight(self, millicores: int) -> int:
        return min(max(1, 100 * millicores // CORE), 10_000)

    def _quota(self, millicores: int | None) -> list[str]:
        return ["max" if millicores is None else str(quota_us(millicores)), str(PERIOD_US)]

    @classmethod
    def make(cls, own: Path, identity: str, family: Collection[int]) -> "GroupsV2":
        """The groups of a node below the group ``own`` of its agent.

        ``family`` are the processes that may be moved into the leaf. Raises OSError and AgentError.
        """
        top = own.parent if own.name == LEAF else own
        there = (top / "cgroup.controllers").read_text().split()
        if "cpu" not in there:
            raise AgentError(f"{top} has no cpu controller")
        wanted = [f"+{each}" for each in ("cpu", "cpuset") if each in there]
        control = top / "cgroup.subtree_control"
        if not {each[1:] for each in wanted} <= set(control.read_text().split()):
            cls._enable(top, " ".join(wanted), family)
        return cls([_own_folder(top, identity)])

    @staticmethod
    def _enable(top: Path, wanted: str, family: Collection[int]) -> None:
        """Let groups below ``top`` have limits; all is as it was if that is refused."""
        leaf = top / LEAF
        leaf.mkdir(exist_ok=True)
        members = set(map(int, (top / "cgroup.procs").read_text().split()))
        moved = [pid for pid in family if pid in members]
        try:
            for pid in moved:
                with suppress(ProcessLookupError):
                    _write(leaf / "cgroup.procs", str(pid))
            _write(top / "cgroup.subtree_control", wanted)
        except OSError as error:
            for pid in moved:
                with suppress(OSError):
                    _write(top / "cgroup.procs", str(pid))
            with suppress(OSError):
                leaf.rmdir()
            if error.errno == errno.EBUSY:
                raise AgentError(f"processes that are not Rota's are in {top}") from None
            raise


class GroupsV1(Groups):
    """Groups of version 1: quotas in one hierarchy, and cores in another where that is writable."""

    name = "cgroup v1"
    _quota_file, _weight_file = "cpu.cfs_quota_us", "cpu.shares"

    @property
    def binds(self) -> bool:
        return len(self.trees) > 1

    def set(
        self,
        group: str,
        millicores: int | None,
        cores: Collection[int] = (),
        *,
        background: bool = False,
    ) -> None:
        super().set(group, millicores, background=background)
        if self.binds:
            folder = self._folders(group)[-1]
            _inherit(folder)
            if cores:
                self._bind(folder, cores)

    def _make(self, tree: Path) -> None:
        super()._make(tree)
        if tree is not self.trees[0]:
            _inherit(tree)

    def _weight(self, millicores: int) -> int:
        return min(max(2, 1024 * millicores // CORE), 262_144)

    def _quota(self, millicores: int | None) -> list[str]:
        return ["-1" if millicores is None else str(quota_us(millicores))]

    @classmethod
    def make(cls, own: Path, identity: str, own_cpuset: Path | None) -> "GroupsV1":
        """The groups of a node below those of its agent. Raises AgentError."""
        trees = [_own_folder(own, identity)]
        if own_cpuset is not None and os.access(own_cpuset, os.W_OK):
            trees.append(_own_folder(own_cpuset, identity))
        return cls(trees)


def _inherit(folder: Path) -> None:
    """Give a new group of version 1 the cores and memory of the one above; it has none itself."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (folder / name).read_text().strip():
            _write(folder / name, (folder.parent / name).read_text().strip())


def _own_folder(above: Path, identity: str) -> Path:
    folder = above / f"rota-{identity}"
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise AgentError(f"{folder} belongs to another user")
    return folder


def _write(file: Path, text: str) -> None:
    with open(file, "w") as opened:
        opened.write(text)


def quota_us(millicores: int) -> int:
    """Microseconds of CPU time in a period."""
    return max(LEAST_QUOTA_US, millicores * PERIOD_US // 1000)


def identity(folder: Folder, node: str) -> str:
    """The name by which a node of the cluster in this folder knows its groups.

    It changes with the folder: another one in its place is another cluster.
    """
    status = os.stat(folder.path)
    words = (os.fspath(folder.path), str(status.st_dev), str(status.st_ino), node)
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:12]


def keep(file: Path, groups: Groups | None) -> None:
    """Write down where a node's groups are, for its next agent. Raises OSError."""
    if groups is None:
        file.unlink(missing_ok=True)
        return
    told = {"version": groups.name, "trees": [str(tree) for tree in groups.trees]}
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(json.dumps(told))
    os.replace(draft, file)


def kept(file: Path, name: str) -> Groups | None:
    """The groups that were written down by an agent with this :func:`identity`, if they were."""
    try:
        told = json.loads(file.read_text())
        trees = [Path(tree) for tree in told["trees"]]
        kind = {kind.name: kind for kind in (GroupsV1, GroupsV2)}[told["version"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # The folder may be a copy of another cluster's, whose groups are none of this one's.
    return kind(trees) if all(tree.name == f"rota-{name}" for tree in trees) else None


# -- finding out what works ------------------------------------------------------------------------


class Hierarchy(NamedTuple):
    """A mounted hierarchy, and the folder of this process's group in it."""

    version: int
    controllers: frozenset[str]  # of version 1
    own: Path


def find(
    name: str,
    family: Callable[[], Collection[int]],
    proc: Path = PROC,
    *,
    binds: bool = False,
    former: Groups | None = None,
) -> tuple[Groups | None, list[str]]:
    """Groups that hold a process when tried, and the reasons against those that do not.

    ``name`` is the node's :func:`identity`; see :meth:`GroupsV2.make` for ``family``. With
    ``binds`` they can also restrict jobs to chosen cores, if that is possible. ``former`` are those
    of an earlier agent, which may be elsewhere and are preferred: its jobs are in them.
    """
    mounted, reasons = hierarchies(proc), list[str]()
    by_controller = {each: one for one in mounted for each in one.controllers}
    second = next((one for one in mounted if one.version == 2), None)
    tries: dict[str, Callable[[], Groups]] = {}
    if former is not None and former.names():
        tries["those of the agent before"] = lambda: former
    if second is not None:
        tries[GroupsV2.name] = lambda: GroupsV2.make(second.own, name, family())
    if (cpu := by_controller.get("cpu")) is not None:
        cpuset = by_controller.get("cpuset")
        own_cpuset = cpuset.own if cpuset is not None and binds else None
        tries[GroupsV1.name] = lambda: GroupsV1.make(cpu.own, name, own_cpuset)
    for version, make in tries.items():
        groups = None
        try:
            groups = make()
            try_out(groups)
            return groups, reasons
        except (OSError, AgentError) as error:
            reasons.append(f"{version}: {error}")
            if groups is not None:
                groups.close()
    return None, reasons or ["no hierarchy of control groups is mounted"]


def try_out(groups: Groups) -> None:
    """Hold a process that does nothing, and let it go. Raises OSError and AgentError.

    The process outlives an agent that is killed meanwhile, and removes the group then.
    """
    words = [sys.executable, "-IS", "-c", HELD]
    for tree in groups.trees:
        leaf = tree.parent / LEAF
        words += [str(tree / TRIAL), str(leaf if leaf.is_dir() else tree.parent)]
    try:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
            groups.set(TRIAL, 500)
            for door in map(Path, groups.doors(TRIAL)):
                _write(door, str(child.pid))
                if str(child.pid) not in door.read_text().split():
                    raise AgentError(f"{door} takes no process")
    finally:
        with suppress(OSError):  # else the next look for groups of no attempt finds it
            groups.remove(TRIAL)


def hierarchies(proc: Path = PROC) -> list[Hierarchy]:
    """The hierarchies that are mounted where this process sees its own group."""
    own: dict[str, str] = {}
    try:
        lines = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, mount = (_unescaped(word) for word in before.split()[3:5])
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(options.split(",")) & own.keys() if kind == "cgroup" else {""}
        place = Path(next((own[each] for each in controllers if each in own), "/.."))
        if ".." in place.parts or not place.is_relative_to(root):
            continue
        folder = Path(mount, place.relative_to(root))
        version = 1 if kind == "cgroup" else 2
        found.append(Hierarchy(version, frozenset(controllers) - {""}, folder))
    return found


def _unescaped(word: str) -> str:
    return ESCAPED.sub(lambda match: chr(int(match[1], 8)), word)


def cores_in(text: str) -> set[int]:
    """The cores in a list as the kernel writes it: ``0-3,8``."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
